package quote_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// search returns a short search without a clock, so that its plans are deterministic.
func search() solve.Solver { return solve.Solver{Effort: 10_000} }

func of(t testing.TB, c *facts.Cluster) quote.Quote {
	t.Helper()
	q, err := quote.Of(c, search)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func text(t testing.TB, q *quote.Quote) string {
	t.Helper()
	return q.Text(false)
}

// launched returns the pods of the claims and the unplaced pods, and the price of the claims.
func launched(claims []quote.Claim, unplaced []quote.Unplaced) (pods []string, price planner.MicroUSD) {
	for _, claim := range claims {
		pods = append(pods, claim.Pods...)
		price += claim.Price
	}
	for _, u := range unplaced {
		pods = append(pods, u.Pod)
	}
	return pods, price
}

// withMachine returns a cluster with an empty machine called there.
func withMachine() *facts.Cluster {
	c := Shared()
	claim := Claim("there", &c.NodePools[0], TypeNamed("g4dn.xlarge"), Initialized(Now))
	c.NodeClaims = []karpv1.NodeClaim{claim}
	c.Nodes = []corev1.Node{Node(&claim, TypeNamed("g4dn.xlarge"), 10)}
	return c
}

// limited limits the GPUs of a NodePool.
func limited(gpus string) func(*karpv1.NodePool) {
	return func(np *karpv1.NodePool) { np.Spec.Limits = karpv1.Limits(Amounts("nvidia.com/gpu", gpus)) }
}

func TestQuoteHasEveryPodOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := withMachine()
		limited(fmt.Sprint(rapid.IntRange(0, 6).Draw(t, "limit")))(&c.NodePools[0])
		want := 0
		for i := range rapid.IntRange(0, 4).Draw(t, "workloads") {
			n := rapid.IntRange(1, 15).Draw(t, "pods")
			want += n
			c.Pods = append(c.Pods, Pods(fmt.Sprintf("w%d", i), n, Asking(
				"cpu", fmt.Sprintf("%dm", rapid.IntRange(100, 9000).Draw(t, "cpu")), "memory", "1Gi",
				v1alpha1.ResourceGPUShared, fmt.Sprint(rapid.IntRange(1, 5).Draw(t, "replicas"))))...)
		}
		q, err := quote.Of(c, search)
		if err != nil {
			t.Fatal(err)
		}
		pods, price := launched(q.Claims, q.Unplaced)
		for _, p := range q.Placements {
			pods = append(pods, p.Pods...)
		}
		for _, u := range q.Unplaced {
			if u.Reason == "" || u.Message == "" {
				t.Errorf("%s is unplaced without a reason", u.Pod)
			}
		}
		slices.Sort(pods)
		if len(pods) != want || len(slices.Compact(pods)) != want {
			t.Errorf("%d pods are in the quote, want each of %d once", len(pods), want)
		}
		if price != q.Price || q.Bound > q.Price || q.Karpenter == nil || *q.Karpenter < q.Bound && q.KarpenterUnplaced == 0 {
			t.Errorf("claims cost %d, price %d, bound %d, Karpenter %v", price, q.Price, q.Bound, q.Karpenter)
		}
		for line := range strings.Lines(q.Text(true) + q.Text(false)) {
			if strings.TrimRight(line, " \n") != strings.TrimSuffix(line, "\n") {
				t.Errorf("blanks at the end of %q", line)
			}
		}
	})
}

func TestHeadroomChangesNoOtherPartOfQuote(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := withMachine()
		limited(fmt.Sprint(rapid.IntRange(0, 6).Draw(t, "limit")))(&c.NodePools[0])
		c.Pods = Pods("p", rapid.IntRange(0, 25).Draw(t, "pods"), Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1"))
		without, err := quote.Of(c, search)
		if err != nil || without.Headroom != nil {
			t.Fatalf("headroom that nobody asked for: %+v, %v", without.Headroom, err)
		}
		wanted := rapid.IntRange(1, 40).Draw(t, "headroom")
		c.GPUNodeClasses[0].Spec.Headroom = []v1alpha1.Headroom{{Replicas: int32(wanted)}}
		q, err := quote.Of(c, search)
		if err != nil {
			t.Fatal(err)
		}
		h := q.Headroom
		q.Headroom = nil
		if diff := cmp.Diff(without, q, cmpopts.IgnoreUnexported(quote.Quote{}, quote.Claim{})); diff != "" {
			t.Errorf("with headroom (-without +with):\n%s", diff)
		}
		pods, price := launched(h.Claims, h.Unplaced)
		slices.Sort(pods)
		if h.Pods != wanted || price != h.Price || len(slices.Compact(pods)) != len(pods) || len(pods) > wanted {
			t.Errorf("the headroom for %d pods is wrong: %+v", wanted, h)
		}
		q.Headroom = h
		if text := q.Text(rapid.Bool().Draw(t, "wide")); !strings.Contains(text, "plus headroom") {
			t.Errorf("%s", text)
		}
	})
}

func TestAlternativePricesIgnoreLimitsForSamePods(t *testing.T) {
	t.Parallel()
	c := Shared()
	limited("2")(&c.NodePools[0])
	c.Pods = Pods("p", 30, Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1"))
	q := of(t, c)
	// Twenty of the thirty pods are placed. With whole GPUs, that takes twenty machines.
	if len(q.Unplaced) != 10 || q.Price != 2*526_000 || q.WholeGPUs != 20*526_000 || q.WholeGPUsUnplaced != 0 || q.KarpenterUnplaced != 0 {
		t.Errorf("%d have no place; $%d, whole GPUs %d (%d without), Karpenter without %d", len(q.Unplaced), q.Price, q.WholeGPUs, q.WholeGPUsUnplaced, q.KarpenterUnplaced)
	}
}

func TestAlternativePricesUseExistingNodes(t *testing.T) {
	t.Parallel()
	c := withMachine()
	c.Pods = Pods("p", 9, Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1"))
	q := of(t, c)
	if len(q.Claims) != 0 || len(q.Placements) != 1 || q.Price != 0 || q.WholeGPUs != 0 || *q.Karpenter != 0 {
		t.Errorf("%+v", q)
	}
	want := "NODE WITH ROOM   PODS   FOR\nthere               9   default/p-000, default/p-001, default/p-002, default/p-003 and 5 more\n"
	if diff := cmp.Diff(want, text(t, &q)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestWholeGPUPriceIgnoresReplicaOverrides(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.GPUNodeClasses[0].Spec.Sharing.Overrides = []v1alpha1.ReplicasOverride{{GPUName: "t4", Replicas: 5}}
	c.Pods = Pods("p", 10, Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1"))
	if q := of(t, c); q.Price != 2*526_000 || q.WholeGPUs != 10*526_000 {
		t.Errorf("$%d, whole GPUs %d", q.Price, q.WholeGPUs)
	}
	if *c.GPUNodeClasses[0].Spec.Sharing.Replicas != 10 || len(c.GPUNodeClasses[0].Spec.Sharing.Overrides) != 1 {
		t.Error("the cluster was changed")
	}
	// A sweep changes spec.sharing.replicas, which does not apply to this GPU because of the override.
	sweep, err := quote.SweepOf(c, []int32{2, 20}, search)
	if err != nil {
		t.Fatal(err)
	}
	if sweep.Rows[0].Price != 2*526_000 || sweep.Rows[1].Price != 2*526_000 {
		t.Errorf("%+v", sweep.Rows)
	}
}

func TestQuoteReportsPodsThatWholeGPUsCannotHold(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = Pods("p", 2, Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "7"))
	q := of(t, c)
	if q.WholeGPUsUnplaced != 2 || !strings.Contains(text(t, &q), "a whole GPU for each replica   0.000   -100 %, without a place for 2 of the pods") {
		t.Errorf("%d of the pods are without a place, in\n%s", q.WholeGPUsUnplaced, text(t, &q))
	}
}

func TestPodsAreGroupedByOwner(t *testing.T) {
	t.Parallel()
	c := Shared()
	replicaSet := func(pod *corev1.Pod) {
		OwnedBy("apps/v1", "ReplicaSet", "web-5d9")(pod)
		pod.Labels = map[string]string{"pod-template-hash": "5d9"}
	}
	asks := Asking("cpu", "100m", v1alpha1.ResourceGPUShared, "1")
	c.Pods = slices.Concat(Pods("web", 3, asks, replicaSet), Pods("db", 2, asks, OwnedBy("apps/v1", "StatefulSet", "db")), Pods("own", 1, asks))
	q := of(t, c)
	if got := text(t, &q); !strings.Contains(got, "   default/web (3), default/db (2), default/own-000\n") {
		t.Errorf("got\n%s", got)
	}
}

func TestJSONHasEmptyLists(t *testing.T) {
	t.Parallel()
	got, err := json.Marshal(of(t, Shared()))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"claims":[],"placements":[],"unplaced":[],"microUSDPerHour":0,"listMicroUSDPerHour":0,"boundMicroUSDPerHour":0,"karpenterMicroUSDPerHour":0,"wholeGPUsMicroUSDPerHour":0}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestCheapestOfSweepPlacesMostPods(t *testing.T) {
	t.Parallel()
	c := Shared()
	limited("1")(&c.NodePools[0])
	c.Pods = Pods("p", 8, Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1"))
	sweep, err := quote.SweepOf(c, []int32{16, 4, 8, 12}, search)
	if err != nil {
		t.Fatal(err)
	}
	if sweep.Cheapest != 8 || sweep.Rows[1].Unplaced != 4 || sweep.Rows[0].Machines != 1 {
		t.Errorf("%+v", sweep)
	}
	out := sweep.Text()
	want := `REPLICAS PER GPU   MACHINES     $/H   AT LEAST   COMPUTE   REQUESTS
              16          1   0.526      0.526       6 %       30 %
               4          1   0.526      0.526      25 %     3.3 ms   4 pods without a place
               8          1   0.526      0.526      13 %       61 %   cheapest
              12          1   0.526      0.526       6 %       30 %

COMPUTE and REQUESTS are for pods that are all busy, as measured on an NVIDIA H200 with 1, 2, 4, 8 and 16 pods; other numbers have the figures of the next larger one.
COMPUTE is the part of the GPU's throughput that each pod has. REQUESTS is the 99th percentile of the latency if each pod gets 100 requests per second with 2 ms
of work, or the part of the requests that it answers if they queue up.

No pod states how much GPU memory it needs (annotation karve.sh/gpu-memory), so memory does not limit how many share a GPU.
`
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestUnpricedReportsPoolsWithoutSpotPrices(t *testing.T) {
	t.Parallel()
	c := Recipe()
	c.NodePools = append(c.NodePools, Pool("silent", "gpu"), KarpenterPool("stock", Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpExists)),
		Pool("not-on-demand", "gpu", Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpNotIn, karpv1.CapacityTypeOnDemand)))
	if got := quote.Unpriced(c); got != nil {
		t.Errorf("%q have no prices, but there are some", got)
	}
	types := c.InstanceTypes()
	for i := range types {
		types[i].Offerings = slices.DeleteFunc(types[i].Offerings, func(o catalog.Offering) bool { return o.CapacityType == karpv1.CapacityTypeSpot })
	}
	if diff := cmp.Diff([]string{"gpu-shared", "gpu", "not-on-demand"}, quote.Unpriced(c)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// BenchmarkOf quotes ten thousand pods of fifty workloads.
func BenchmarkOf(b *testing.B) {
	c := Shared()
	for i := range 50 {
		c.Pods = append(c.Pods, Pods(fmt.Sprintf("w%d", i), 200, Asking(
			"cpu", fmt.Sprintf("%dm", 100+37*i), "memory", fmt.Sprintf("%dMi", 256+(i*i*29)%4096), v1alpha1.ResourceGPUShared, "1"))...)
	}
	for b.Loop() {
		of(b, c)
	}
}

func TestQuoteShowsReplicasPerGPUOfRange(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.GPUNodeClasses[0].Spec.Sharing.MaxReplicas = new(int32(40))
	c.Pods = Pods("small", 25, Asking("cpu", "10m", "memory", "16Mi", v1alpha1.ResourceGPUShared, "1"), GPUMemory("500Mi"))
	q := of(t, c)
	if len(q.Claims) != 1 || q.Claims[0].ReplicasPerGPU != 25 {
		t.Fatalf("the claims are %+v, want one machine of 25 replicas", q.Claims)
	}
	if got := text(t, &q); !strings.Contains(got, "1 × g4dn.xlarge (25 per GPU)") {
		t.Errorf("it does not say so:\n%s", got)
	}
	c.Pods = c.Pods[:5]
	q = of(t, c)
	if got := text(t, &q); strings.Contains(got, "per GPU)") || q.Claims[0].ReplicasPerGPU != 10 {
		t.Errorf("five pods need no more than the class says:\n%s", got)
	}
}
