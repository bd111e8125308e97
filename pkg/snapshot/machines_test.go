package snapshot_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

var xlarge = TypeNamed("g4dn.xlarge")

// room is the room of an empty g4dn.xlarge.
var room = planner.Resources{MilliCPU: 3900, MemoryBytes: 15 << 30, EphemeralBytes: 90 << 30, Pods: 29, Replicas: 10}

// machine returns a cluster with a pending pod and one machine. The machine has a Node unless the edits remove it.
func machine(stage func(*karpv1.NodeClaim), replicas int64, edits ...func(*facts.Cluster)) *facts.Cluster {
	c := Shared()
	Labeled(map[string]string{"team": "ml"})(&c.NodePools[0])
	c.Pods = []corev1.Pod{Pod("waiting", Selecting("team", "ml"), Selecting(karpv1.NodePoolLabelKey, "gpu-shared"))}
	c.NodeClaims = []karpv1.NodeClaim{Claim("m", &c.NodePools[0], xlarge, stage)}
	c.Nodes = []corev1.Node{Node(&c.NodeClaims[0], xlarge, replicas)}
	for _, edit := range edits {
		edit(c)
	}
	return c
}

func node(edit func(*corev1.Node)) func(*facts.Cluster) {
	return func(c *facts.Cluster) { edit(&c.Nodes[0]) }
}

func noNode(c *facts.Cluster) { c.Nodes = nil }

// A pod must not get a second machine while its first machine is starting.
func TestStartingMachinesOfferPromisedCapacity(t *testing.T) {
	t.Parallel()
	unregistered := node(func(n *corev1.Node) {
		n.Labels = map[string]string{corev1.LabelHostname: "ip-10-0-0-1"}
		n.Annotations, n.Status = nil, corev1.NodeStatus{}
		// The last taint belongs to the machine's bootstrap, which removes it before the Node registers.
		n.Spec.Taints = []corev1.Taint{
			karpv1.UnregisteredNoExecuteTaint,
			{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule},
			{Key: "bootstrap", Effect: corev1.TaintEffectNoSchedule},
		}
	})
	for name, tc := range map[string]struct {
		c    *facts.Cluster
		want planner.Resources
	}{
		"not launched":                  {machine(func(*karpv1.NodeClaim) {}, 0, noNode), room},
		"launched":                      {machine(Launched(Now), 0, noNode), room},
		"with an unregistered Node":     {machine(Launched(Now), 0, unregistered), room},
		"registered, Node not seen yet": {machine(Registered(Now), 0, noNode), room},
		"with the startup taint":        {machine(Registered(Now), 0), room},
		// The NodeClaim is read live, and the Node from a cache that may be stale.
		"registered, stale Node":                          {machine(Registered(Now), 0, unregistered), room},
		"initialized, stale Node":                         {machine(Initialized(Now), 0, unregistered), room},
		"with the startup taint and some of the replicas": {machine(Registered(Now), 4), room},
		"with all replicas and the startup taint":         {machine(Registered(Now), 10), room},
		"with taints of a starting node": {machine(Registered(Now), 0, node(func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
		})), room},
		"admitted but not initialized, some replicas missing": {
			machine(Registered(Now), 3, node(func(n *corev1.Node) { n.Spec.Taints = n.Spec.Taints[:1] })),
			planner.Resources{MilliCPU: 3900, MemoryBytes: 15 << 30, EphemeralBytes: 90 << 30, Pods: 29, Replicas: 3},
		},
		"launched smaller than in the catalog": {
			machine(Launched(Now), 0, noNode, func(c *facts.Cluster) {
				c.NodeClaims[0].Status.Allocatable = Amounts("cpu", "3", "memory", "14Gi", "pods", "20", "nvidia.com/gpu", "1")
			}), planner.Resources{MilliCPU: 3000, MemoryBytes: 14 << 30, EphemeralBytes: 90 << 30, Pods: 20, Replicas: 10},
		},
		"with a type missing from the catalog": {
			machine(func(*karpv1.NodeClaim) {}, 0, noNode, func(c *facts.Cluster) { c.UseInstanceTypes(nil) }),
			planner.Resources{MilliCPU: 300, MemoryBytes: 1 << 30, EphemeralBytes: 1 << 40, Pods: 110, Replicas: 10},
		},
		"with pending DaemonSet pods": {
			machine(Registered(Now), 0, func(c *facts.Cluster) {
				c.DaemonSets = []appsv1.DaemonSet{DaemonSet("a", "cpu", "100m"), DaemonSet("b", "cpu", "200m")}
				c.Pods = append(c.Pods, Pod("a-1", Asking("cpu", "100m"), Running("m"), OwnedBy("apps/v1", "DaemonSet", "a")),
					Pod("static", Asking("cpu", "50m"), Running("m"), OwnedBy("v1", "Node", "m")))
			}), planner.Resources{MilliCPU: 3900 - 350, MemoryBytes: 15 << 30, EphemeralBytes: 90 << 30, Pods: 29 - 3, Replicas: 10},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			view := snapshot.Build(tc.c)
			if len(view.Nodes) != 1 || view.Nodes[0].Name != "m" {
				t.Fatalf("nodes: %+v", view.Nodes)
			}
			if diff := cmp.Diff(tc.want, view.Nodes[0].Free); diff != "" {
				t.Errorf("free (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]int{0}, view.Classes[0].Nodes); diff != "" {
				t.Errorf("nodes that admit the pod (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodeThatTakesNoPodsIsLeftOut(t *testing.T) {
	t.Parallel()
	now := metav1.NewTime(Now)
	for name, c := range map[string]*facts.Cluster{
		"deleted claim": machine(Initialized(Now), 10, func(c *facts.Cluster) { c.NodeClaims[0].DeletionTimestamp = &now }),
		"deleted claim without a Node": machine(Launched(Now), 0, noNode, func(c *facts.Cluster) {
			c.NodeClaims[0].DeletionTimestamp = &now
		}),
		"deleted Node":           machine(Initialized(Now), 10, node(func(n *corev1.Node) { n.DeletionTimestamp = &now })),
		"cordoned":               machine(Initialized(Now), 10, node(func(n *corev1.Node) { n.Spec.Unschedulable = true })),
		"disrupted by Karpenter": machine(Initialized(Now), 10, node(taint(karpv1.DisruptedTaintKey))),
		"broken":                 machine(Registered(Now.Add(-10*time.Minute)), 9),
		"foreign and cordoned":   machine(Initialized(Now), 10, func(c *facts.Cluster) { c.NodeClaims, c.Nodes[0].Spec.Unschedulable = nil, true }),
		"foreign without GPUs":   machine(Initialized(Now), 0, func(c *facts.Cluster) { c.NodeClaims = nil }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := snapshot.Build(c).Nodes; len(got) != 0 {
				t.Errorf("nodes: %+v", got)
			}
		})
	}
}

func taint(key string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
}

// The disruption controller keeps nodes that pending pods would use.
func TestNodeWithDisruptingTaintStillOffersCapacity(t *testing.T) {
	t.Parallel()
	view := snapshot.Build(machine(Initialized(Now), 10, node(taint(v1alpha1.DisruptingTaintKey))))
	if len(view.Nodes) != 1 || view.Nodes[0].Free != room || len(view.Classes[0].Nodes) != 1 {
		t.Errorf("nodes %+v, class %+v", view.Nodes, view.Classes[0])
	}
}

func TestReadyNodeOffersCapacityLeftByItsPods(t *testing.T) {
	t.Parallel()
	c := machine(Initialized(Now), 10)
	c.DaemonSets = []appsv1.DaemonSet{DaemonSet("agent", "cpu", "100m")}
	c.Pods = append(c.Pods, Pod("runs", Running("m")), Pod("agent-1", Asking("cpu", "100m"), Running("m"), OwnedBy("apps/v1", "DaemonSet", "agent")),
		Pod("leaves", Running("m"), func(pod *corev1.Pod) { pod.DeletionTimestamp = new(metav1.NewTime(Now)) }),
		Pod("ended", Running("m"), func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }), Pod("elsewhere", Running("other")))
	view := snapshot.Build(c)
	want := planner.Resources{MilliCPU: 3900 - 700, MemoryBytes: 13 << 30, EphemeralBytes: 90 << 30, Pods: 29 - 3, Replicas: 8}
	if diff := cmp.Diff(want, view.Nodes[0].Free); diff != "" {
		t.Errorf("free (-want +got):\n%s", diff)
	}
	m := view.Machines[0]
	if m.ReplicasInUse() != 2 || m.Exposed() != 10 || m.Empty() || m.AwaitsReplicas() || !m.Launched() || m.Pool() != "gpu-shared" {
		t.Errorf("machine: %d of %d in use, empty %t, awaits %t", m.ReplicasInUse(), m.Exposed(), m.Empty(), m.AwaitsReplicas())
	}
	c.Pods = c.Pods[2:3]
	if m := snapshot.Build(c).Machines[0]; !m.Empty() {
		t.Error("a node with a DaemonSet's pod only is not empty")
	}
}

func TestNodeStartsWithCordonedGPUs(t *testing.T) {
	t.Parallel()
	for exposed, want := range map[int64]struct {
		state lifecycle.State
		room  int64
	}{30: {lifecycle.Initializing, 30}, 0: {lifecycle.Registered, 40}} {
		c := Shared()
		t12 := TypeNamed("g4dn.12xlarge")
		c.NodeClaims = []karpv1.NodeClaim{Claim("m", &c.NodePools[0], t12, Registered(Now))}
		c.Nodes = []corev1.Node{Node(&c.NodeClaims[0], t12, 0, CordonedGPUs(exposed))}
		view := snapshot.Build(c)
		if state, room := view.Machines[0].State(), view.Nodes[0].Free.Replicas; state != want.state || room != want.room {
			t.Errorf("a node that exposes %d of 40 replicas is %s with room for %d, want %s and %d", exposed, state, room, want.state, want.room)
		}
	}
}

func TestReadyNodeWithoutReplicasOffersNone(t *testing.T) {
	t.Parallel()
	c := machine(Initialized(Now), 0)
	c.Pods = append(c.Pods, Pod("runs", Running("m")))
	if got := snapshot.Build(c).Nodes[0].Free; got.Replicas != 0 || got.MilliCPU != 3600 {
		t.Errorf("free: %+v", got)
	}
}

func TestForeignNodeWithGPUsOffersCapacity(t *testing.T) {
	t.Parallel()
	c := machine(Initialized(Now), 5, func(c *facts.Cluster) { c.NodeClaims = nil })
	view := snapshot.Build(c)
	if len(view.Machines) != 0 || len(view.Nodes) != 1 || view.Nodes[0].Free.Replicas != 5 || len(view.Classes[0].Nodes) != 1 {
		t.Errorf("machines %+v, nodes %+v, class %+v", view.Machines, view.Nodes, view.Classes[0])
	}
	c.Pods[0] = Pod("pinned", func(pod *corev1.Pod) {
		pod.Spec.Affinity = required(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"m"}},
		}})
	})
	if class := snapshot.Build(c).Classes[0]; len(class.Nodes) != 1 || len(class.Offerings) != 0 || class.Blocked != nil {
		t.Errorf("a pod that names the node: %+v", class)
	}
}

func TestNodeIsFoundByProviderIDUntilClaimNamesIt(t *testing.T) {
	t.Parallel()
	c := machine(Launched(Now), 0, node(func(n *corev1.Node) { n.Name = "ip-10-0-0-1" }))
	if m := snapshot.Build(c).Machines[0]; m.Node == nil || m.Node.Name != "ip-10-0-0-1" {
		t.Errorf("node: %v", m.Node)
	}
}

func TestMachineIsBrokenWithoutReplicasAfterTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 10 * time.Minute
	registered := machine(Registered(Now), 9)
	for name, tc := range map[string]struct {
		c     *facts.Cluster
		after time.Duration
		want  bool
	}{
		"in time":                        {registered, timeout - 1, false},
		"too late":                       {registered, timeout, true},
		"too late, all replicas present": {machine(Registered(Now), 10), timeout, false},
		"Node not seen yet":              {machine(Registered(Now), 0, noNode), timeout, true},
		"not registered in time":         {machine(Launched(Now), 0, noNode), timeout - 1, false},
		"not registered, too late":       {machine(Launched(Now), 0, noNode), timeout, true},
		"deleted, Node gone": {machine(Registered(Now), 0, noNode, func(c *facts.Cluster) {
			c.NodeClaims[0].DeletionTimestamp = &metav1.Time{Time: Now}
		}), timeout, false},
		"initialized, Node not seen yet":             {machine(Initialized(Now), 0, noNode), timeout - 1, false},
		"initialized, Node gone":                     {machine(Initialized(Now), 0, noNode), timeout, true},
		"replicas present, not initialized in time":  {uninitialized(), timeout - 1, false},
		"replicas present, not initialized too late": {uninitialized(), timeout, true},
		"replicas present a minute later": {uninitialized(func(n *corev1.Node) {
			n.Annotations[v1alpha1.ReplicasReadySinceAnnotation] = Now.Add(time.Minute).Format(time.RFC3339)
		}), timeout, false},
		"replicas lost again, not initialized": {uninitialized(func(n *corev1.Node) { n.Status.Allocatable = nil }), timeout, true},
		"never launched":                       {machine(func(*karpv1.NodeClaim) {}, 0, noNode), timeout, false},
		"admitted long ago":                    {machine(Initialized(Now), 0), timeout, false},
		"no promise":                           {machine(Registered(Now), 0, func(c *facts.Cluster) { c.NodeClaims[0].Annotations[nodecontract.GPUsAnnotation] = "" }), timeout, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := records.Machines(tc.c)[0].Broken(Now.Add(tc.after), timeout); got != tc.want {
				t.Errorf("broken: %t", got)
			}
		})
	}
}

// uninitialized returns a machine that exposes its replicas but has another startup taint that delays its initialization.
func uninitialized(edits ...func(*corev1.Node)) *facts.Cluster {
	return machine(Registered(Now), 10, node(func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "ebs.csi.aws.com/agent-not-ready", Effect: corev1.TaintEffectNoExecute}}
		for _, edit := range edits {
			edit(n)
		}
	}))
}

// The pods that were planned for a machine that never starts get another machine.
func TestMachineThatDoesNotStartOffersNoCapacity(t *testing.T) {
	t.Parallel()
	c := uninitialized()
	for after, rooms := range map[time.Duration]int{c.ReplicasTimeout - 1: 1, c.ReplicasTimeout: 0} {
		aged := *c
		aged.Now = Now.Add(after)
		if view := snapshot.Build(&aged); len(view.Nodes) != rooms {
			t.Errorf("after %s it is %d rooms, want %d", after, len(view.Nodes), rooms)
		}
	}
}

func TestPromiseIsReadFromAnnotations(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        facts.Promise
		replicas    int64
	}{
		"complete": {
			map[string]string{"karve.sh/resource": "nvidia.com/gpu", "karve.sh/gpus": "4", "karve.sh/replicas-per-gpu": "10", "karve.sh/micro-usd-per-hour": "3912000"},
			facts.Promise{Resource: "nvidia.com/gpu", GPUs: 4, ReplicasPerGPU: 10, MicroUSDPerHour: 3_912_000, ListMicroUSDPerHour: 3_912_000},
			40,
		},
		"missing": {nil, facts.Promise{}, 0},
		"invalid numbers": {
			map[string]string{"karve.sh/resource": "nvidia.com/gpu", "karve.sh/gpus": "-4", "karve.sh/replicas-per-gpu": "ten"},
			facts.Promise{Resource: "nvidia.com/gpu"},
			0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := facts.PromiseOf(tc.annotations)
			if diff := cmp.Diff(tc.want, got); diff != "" || got.Replicas() != tc.replicas {
				t.Errorf("%d replicas; promise (-want +got):\n%s", got.Replicas(), diff)
			}
		})
	}
}

func TestShapeOfClaimComesFromLabelsOrRequirements(t *testing.T) {
	t.Parallel()
	pool := Pool("p", "p")
	claim := Claim("m", &pool, xlarge)
	claim.Labels[corev1.LabelTopologyZone] = "us-east-1b"
	claim.Spec.Requirements[2].Values = []string{"spot", "on-demand"}
	instanceType, zone, capacityType := records.ShapeOf(&claim)
	if instanceType != "g4dn.xlarge" || zone != "us-east-1b" || capacityType != "spot" {
		t.Errorf("shape: %q %q %q", instanceType, zone, capacityType)
	}
}

func TestIsOurClaimRequiresPromiseAndPool(t *testing.T) {
	t.Parallel()
	pool := Pool("p", "p")
	ours := Claim("m", &pool, xlarge)
	noPromise, noPool := ours.DeepCopy(), ours.DeepCopy()
	delete(noPromise.Annotations, nodecontract.ResourceAnnotation)
	delete(noPool.Labels, karpv1.NodePoolLabelKey)
	if !facts.IsOurClaim(&ours) || facts.IsOurClaim(noPromise) || facts.IsOurClaim(noPool) {
		t.Error("IsOurClaim is wrong")
	}
}

// flexibleClaim returns a spot NodeClaim that admits two known types in two zones. The planner chose g4dn.xlarge in the first zone.
func flexibleClaim(pool *karpv1.NodePool, edits ...func(*karpv1.NodeClaim)) karpv1.NodeClaim {
	return Claim("m", pool, xlarge, append([]func(*karpv1.NodeClaim){func(claim *karpv1.NodeClaim) {
		claim.Spec.Requirements[0].Values = []string{"g4dn.xlarge", "g4dn.12xlarge", "p9.huge"}
		claim.Spec.Requirements[1].Values = Zones
		claim.Spec.Requirements[2].Values = []string{karpv1.CapacityTypeSpot}
	}}, edits...)...)
}

// made lets the cloud launch a machine of the type in the zone.
func made(instanceType, zone string) func(*karpv1.NodeClaim) {
	return func(claim *karpv1.NodeClaim) {
		Launched(Now)(claim)
		claim.Labels[corev1.LabelInstanceTypeStable], claim.Labels[corev1.LabelTopologyZone] = instanceType, zone
		claim.Labels[karpv1.CapacityTypeLabelKey] = karpv1.CapacityTypeSpot
	}
}

func TestFlexibleClaimCountsAsLargestTypeUntilLaunched(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		edits []func(*karpv1.NodeClaim)
		gpus  int64
		cpus  int64
		price int64
	}{
		"not launched yet":            {nil, 4, 48_000, 526_000},
		"launched as chosen":          {[]func(*karpv1.NodeClaim){made("g4dn.xlarge", "us-east-1a")}, 1, 4000, 526_000},
		"launched as another type":    {[]func(*karpv1.NodeClaim){made("g4dn.12xlarge", "us-east-1a")}, 4, 48_000, spotPriceOf(t, "g4dn.12xlarge", "us-east-1a")},
		"launched in another zone":    {[]func(*karpv1.NodeClaim){made("g4dn.xlarge", "us-east-1b")}, 1, 4000, spotPriceOf(t, "g4dn.xlarge", "us-east-1b")},
		"launched as an unknown type": {[]func(*karpv1.NodeClaim){made("p9.huge", "us-east-1b")}, 1, 300, 526_000},
		"launched in an unknown zone": {[]func(*karpv1.NodeClaim){made("g4dn.xlarge", "us-east-1z")}, 1, 4000, 526_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			c.NodeClaims = []karpv1.NodeClaim{flexibleClaim(&c.NodePools[0], tc.edits...)}
			m := records.Machines(c)[0]
			if p := m.Physical(); p.GPUs != tc.gpus || p.MilliCPU != tc.cpus || p.Nodes != 1 {
				t.Errorf("it counts %+v, want %d GPUs and %d of CPU", p, tc.gpus, tc.cpus)
			}
			if m.Promise.MicroUSDPerHour != tc.price || m.Promise.Replicas() != 10 {
				t.Errorf("the promise is %+v, want a price of %d", m.Promise, tc.price)
			}
		})
	}
}

func spotPriceOf(t *testing.T, instanceType, zone string) int64 {
	t.Helper()
	for _, o := range TypeNamed(instanceType).Offerings {
		if o.Zone == zone && o.CapacityType == karpv1.CapacityTypeSpot {
			return o.MicroUSDPerHour
		}
	}
	t.Fatalf("there is no spot price of %s in %s", instanceType, zone)
	return 0
}

// The pods for which a NodeClaim was created keep their place on it while it starts, whatever type and zone the cloud chooses.
func TestPodsKeepPlaceOnFlexibleClaimWhateverTypeLaunches(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*karpv1.NodeClaim){
		"not launched yet": func(*karpv1.NodeClaim) {}, "as chosen": made("g4dn.xlarge", "us-east-1a"), "larger": made("g4dn.12xlarge", "us-east-1b"), "elsewhere": made("g4dn.xlarge", "us-east-1b"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "spot")(&c.NodePools[0])
			c.NodeClaims = []karpv1.NodeClaim{flexibleClaim(&c.NodePools[0], edit)}
			c.Pods = Pods("web", 10)
			plan := solve.Plan(snapshot.Build(c).Snapshot)
			if len(plan.Launches) != 0 || len(plan.Unplaced) != 0 || len(plan.Placements) != 1 {
				t.Errorf("plan: %+v", plan)
			}
		})
	}
}

// A canary machine has no room for pods, but counts against the limits.
func TestCanaryHoldsNoPodsButCountsAgainstLimits(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts("nvidia.com/gpu", "4"))
	canary := Claim("canary", &c.NodePools[0], TypeNamed("g4dn.xlarge"), Initialized(Now))
	canary.Labels[v1alpha1.CanaryLabel] = "gpu"
	node := Node(&canary, TypeNamed("g4dn.xlarge"), 10)
	node.Labels[v1alpha1.CanaryLabel] = "gpu"
	c.NodeClaims, c.Nodes = []karpv1.NodeClaim{canary}, []corev1.Node{node}
	c.Pods = []corev1.Pod{Pod("a", func(pod *corev1.Pod) {
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	})}
	view := snapshot.Build(c)
	if len(view.Machines) != 0 || len(view.Nodes) != 0 {
		t.Errorf("machines %+v, rooms %+v, want none", view.Machines, view.Nodes)
	}
	if canaries := records.Canaries(c); len(canaries) != 1 || canaries[0].Node == nil {
		t.Errorf("canaries %+v, want the one with its node", canaries)
	}
	if left := view.Snapshot.Pools[0].Remaining.GPUs; left != 3 {
		t.Errorf("%d GPUs are left of the limit of four, want 3", left)
	}
}
