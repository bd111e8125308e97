package readiness

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

const timeout = 10 * time.Minute

func TestDecide(t *testing.T) {
	t.Parallel()
	now := snapshottest.Now
	for name, c := range map[string]struct {
		claim    func(*karpv1.NodeClaim)
		replicas int64
		promise  string
		want     verdict
		again    time.Duration
	}{
		"a node with all replicas is ready":                   {snapshottest.Registered(now), 10, "10", ready, 0},
		"more than was promised is ready":                     {snapshottest.Registered(now), 11, "10", ready, 0},
		"late replicas make a node ready":                     {snapshottest.Registered(now.Add(-time.Hour)), 10, "10", ready, 0},
		"a missing replica is waited for":                     {snapshottest.Registered(now.Add(-time.Minute)), 9, "10", wait, 9 * time.Minute},
		"a missing replica breaks a node after the timeout":   {snapshottest.Registered(now.Add(-timeout)), 9, "10", broken, 0},
		"a node without replicas is broken":                   {snapshottest.Registered(now.Add(-time.Hour)), 0, "10", broken, 0},
		"an unregistered machine is waited for":               {snapshottest.Launched(now.Add(-time.Minute)), 0, "10", wait, 9 * time.Minute},
		"an unregistered machine is broken after the timeout": {snapshottest.Launched(now.Add(-time.Hour)), 0, "10", broken, 0},
		"an unlaunched machine is not broken":                 {func(*karpv1.NodeClaim) {}, 0, "10", wait, 0},
		"a node without a promise is never ready":             {snapshottest.Registered(now), 10, "", wait, timeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := snapshottest.Pool("gpu", "gpu")
			xlarge := snapshottest.TypeNamed("g4dn.xlarge")
			claim := snapshottest.Claim("gpu-1", &pool, xlarge, c.claim)
			claim.Annotations[nodecontract.ReplicasPerGPUAnnotation] = c.promise
			node := snapshottest.Node(&claim, xlarge, c.replicas)
			m := records.Machine{Claim: &claim, Node: &node, Promise: facts.PromiseOf(claim.Annotations)}
			if got, again := decide(&m, now, timeout); got != c.want || again != c.again {
				t.Errorf("decide = %d, %s; want %d, %s", got, again, c.want, c.again)
			}
		})
	}
}

func TestKeepReasonsOfBrokenMachine(t *testing.T) {
	t.Parallel()
	since := snapshottest.Now
	silent := func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	}
	unrepaired := func(n *corev1.Node) { n.Annotations[repair.DoNotRepair] = "true" }
	for name, c := range map[string]struct {
		node   []func(*corev1.Node)
		others int
		pods   int
		keeps  bool
		until  time.Time
	}{
		"nothing":                                  {},
		"a pod, for another timeout":               {pods: 1, keeps: true, until: since.Add(timeout)},
		"its zone, for another timeout":            {node: []func(*corev1.Node){silent}, others: 2, keeps: true, until: since.Add(timeout)},
		"not its own lack of heartbeats":           {node: []func(*corev1.Node){silent}},
		"a user's annotation, forever":             {node: []func(*corev1.Node){unrepaired}, keeps: true},
		"a user's annotation during a zone outage": {node: []func(*corev1.Node){silent, unrepaired}, others: 2, pods: 1, keeps: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := snapshottest.Pool("gpu", "gpu")
			xlarge := snapshottest.TypeNamed("g4dn.xlarge")
			claim := snapshottest.Claim("gpu-1", &pool, xlarge, snapshottest.Registered(since.Add(-timeout)))
			node := snapshottest.Node(&claim, xlarge, 0, c.node...)
			m := records.Machine{Claim: &claim, Node: &node}
			for range c.pods {
				pod := snapshottest.Pod("shell")
				m.Pods = append(m.Pods, &pod)
			}
			nodes := []corev1.Node{node}
			for range c.others {
				nodes = append(nodes, snapshottest.Node(&claim, xlarge, 0, silent))
			}
			if why, until := keeps(&m, nodes, since, timeout); (why != "") != c.keeps || !until.Equal(c.until) {
				t.Errorf("kept for %q until %s; want %t until %s", why, until, c.keeps, c.until)
			}
		})
	}
}

func TestOnlyStartingNodesAreReconciled(t *testing.T) {
	t.Parallel()
	pool := snapshottest.Pool("gpu", "gpu")
	xlarge := snapshottest.TypeNamed("g4dn.xlarge")
	registered := snapshottest.Claim("gpu-1", &pool, xlarge, snapshottest.Registered(snapshottest.Now))
	initialized := snapshottest.Claim("gpu-1", &pool, xlarge, snapshottest.Initialized(snapshottest.Now))
	for name, c := range map[string]struct {
		object client.Object
		want   bool
	}{
		"with the startup taint":        {new(snapshottest.Node(&registered, xlarge, 0)), true},
		"with a foreign startup taint":  {new(snapshottest.Node(&registered, xlarge, 10, func(n *corev1.Node) { n.Spec.Taints = nil })), true},
		"initialized":                   {new(snapshottest.Node(&initialized, xlarge, 10)), false},
		"initialized and being deleted": {new(snapshottest.Node(&initialized, xlarge, 10, func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{} })), false},
		"foreign":                       {new(snapshottest.Node(&registered, xlarge, 0, func(n *corev1.Node) { n.Labels = nil })), false},
		"a pod":                         {&corev1.Pod{}, false},
	} {
		if got := claimOf(t.Context(), c.object); (len(got) == 1) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
