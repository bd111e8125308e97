package bill_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/internal/properties"
)

func TestALedgerSaysWhatMachinesAreFor(t *testing.T) {
	t.Parallel()
	serve, batch := bill.Owner{Kind: "Deployment", Name: "serve"}, bill.Owner{Kind: "CronJob", Name: "batch"}
	ready := bill.Node{
		Name: "ready", NodePool: "gpu", GPUNodeClass: "t4", MicroUSDPerHour: 500_000, ListMicroUSDPerHour: 700_000, Replicas: 10, TakesPods: true,
		Holders: []bill.Holder{
			{Namespace: "a", Name: "serve-1", Owner: serve, Labels: []string{"red"}, Replicas: 2},
			{Namespace: "a", Name: "serve-2", Owner: serve, Labels: []string{""}, Replicas: 1},
			{Namespace: "b", Name: "batch-1", Owner: batch, Labels: []string{"red"}, Replicas: 3},
			{Namespace: "kube-system", Name: "exporter", Owner: bill.Owner{Kind: "DaemonSet", Name: "exporter"}, Daemon: true, Labels: []string{""}, Replicas: 1},
		},
	}
	starting := bill.Node{NodePool: "gpu", GPUNodeClass: "t4", MicroUSDPerHour: 100_000, Replicas: 10}
	drained := bill.Node{
		Name: "drained", NodePool: "big", GPUNodeClass: "a100", MicroUSDPerHour: 1_000_000, ListMicroUSDPerHour: 960_000, Replicas: 4,
		Holders: []bill.Holder{{Namespace: "b", Name: "batch-2", Owner: batch, Labels: []string{"blue"}, Replicas: 1}},
	}
	unknown := bill.Node{Name: "unknown", NodePool: "big", Replicas: 4, TakesPods: true}
	got := bill.Sum([]bill.Node{ready, ready, starting, starting, drained, unknown}, []string{"team"})
	want := bill.Ledger{
		Shares: map[bill.Share]int64{
			{NodePool: "gpu", GPUNodeClass: "t4", For: bill.Used}: 300_000, {NodePool: "gpu", GPUNodeClass: "t4", For: bill.Idle}: 150_000, {NodePool: "gpu", GPUNodeClass: "t4", For: bill.Overhead}: 250_000,
			{NodePool: "big", GPUNodeClass: "a100", For: bill.Used}: 250_000, {NodePool: "big", GPUNodeClass: "a100", For: bill.Overhead}: 750_000,
		},
		Owners: map[bill.OwnerShare]int64{
			{Namespace: "a", Owner: serve, NodePool: "gpu"}: 150_000, {Namespace: "b", Owner: batch, NodePool: "gpu"}: 150_000, {Namespace: "b", Owner: batch, NodePool: "big"}: 250_000,
		},
		Labels: map[bill.LabelShare]int64{
			{Key: "team", Value: "red", NodePool: "gpu"}: 250_000, {Key: "team", NodePool: "gpu"}: 50_000, {Key: "team", Value: "blue", NodePool: "big"}: 250_000,
		},
		Unpriced: 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The machine that starts costs as much in the list.
	want = bill.Ledger{
		Shares: map[bill.Share]int64{
			{NodePool: "gpu", GPUNodeClass: "t4", For: bill.Used}: 120_000, {NodePool: "gpu", GPUNodeClass: "t4", For: bill.Idle}: 60_000, {NodePool: "gpu", GPUNodeClass: "t4", For: bill.Overhead}: 20_000,
			{NodePool: "big", GPUNodeClass: "a100", For: bill.Used}: -10_000, {NodePool: "big", GPUNodeClass: "a100", For: bill.Overhead}: -30_000,
		},
		Owners: map[bill.OwnerShare]int64{
			{Namespace: "a", Owner: serve, NodePool: "gpu"}: 60_000, {Namespace: "b", Owner: batch, NodePool: "gpu"}: 60_000, {Namespace: "b", Owner: batch, NodePool: "big"}: -10_000,
		},
		Labels: map[bill.LabelShare]int64{
			{Key: "team", Value: "red", NodePool: "gpu"}: 100_000, {Key: "team", NodePool: "gpu"}: 20_000, {Key: "team", Value: "blue", NodePool: "big"}: -10_000,
		},
	}
	nodes, labels := []bill.Node{ready, ready, starting, starting, drained, unknown}, []string{"team"}
	sum := bill.Sum(nodes, labels)
	if diff := cmp.Diff(want, sum.Discounts(nodes, labels)); diff != "" {
		t.Errorf("the discounts (-want +got):\n%s", diff)
	}
}

func sums(t *rapid.T) {
	labels := []string{"team", "app"}
	name := func(what string, n int) string { return fmt.Sprint(what, "-", rapid.IntRange(0, n).Draw(t, what)) }
	var nodes []bill.Node
	prices := map[string]int64{}
	for i := range rapid.IntRange(0, 12).Draw(t, "nodes") {
		n := bill.Node{
			Name: fmt.Sprint("n", i), NodePool: name("pool", 2), MicroUSDPerHour: rapid.Int64Range(0, 40_000_000).Draw(t, "price"),
			Replicas: rapid.Int64Range(0, 48).Draw(t, "replicas"), TakesPods: rapid.Bool().Draw(t, "takes pods"),
		}
		n.GPUNodeClass = "class of " + n.NodePool
		for j := range rapid.IntRange(0, 8).Draw(t, "holders") {
			n.Holders = append(n.Holders, bill.Holder{
				Namespace: name("namespace", 3), Name: fmt.Sprint("p", j), Owner: bill.Owner{Kind: "Deployment", Name: name("owner", 3)}, Daemon: rapid.IntRange(0, 9).Draw(t, "daemon") == 0,
				Labels: []string{name("team", 2), name("app", 2)}, Replicas: rapid.Int64Range(0, 12).Draw(t, "held"),
			})
		}
		nodes = append(nodes, n)
		prices[n.NodePool] += n.MicroUSDPerHour
	}
	l := bill.Sum(nodes, labels)
	all, used := map[string]int64{}, map[string]int64{}
	for s, amount := range l.Shares {
		all[s.NodePool] += amount
		if s.For == bill.Used {
			used[s.NodePool] += amount
		}
	}
	for pool, price := range prices {
		if all[pool] != price {
			t.Fatalf("the shares of %s are %d, and its machines cost %d", pool, all[pool], price)
		}
	}
	byOwner, byLabel := map[string]int64{}, map[string]map[string]int64{"team": {}, "app": {}}
	for o, amount := range l.Owners {
		byOwner[o.NodePool] += amount
	}
	for v, amount := range l.Labels {
		byLabel[v.Key][v.NodePool] += amount
	}
	for name, got := range map[string]map[string]int64{"owners": byOwner, "teams": byLabel["team"], "apps": byLabel["app"]} {
		if diff := cmp.Diff(used, got); diff != "" {
			t.Fatalf("the %s do not pay for what is used (-used +paid):\n%s", name, diff)
		}
	}
}

func TestEveryDivisionOfALedgerAddsUpToThePrices(t *testing.T) { properties.Check(sums)(t) }
