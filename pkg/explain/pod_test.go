package explain

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func explainer(c *facts.Cluster) *Explainer {
	return New(c, NewSettings(published.DefaultSettings()))
}

// with returns the shared cluster after changes.
func with(edits ...func(*facts.Cluster)) *facts.Cluster {
	c := Shared()
	for _, e := range edits {
		e(c)
	}
	return c
}

func pods(all ...corev1.Pod) func(*facts.Cluster) {
	return func(c *facts.Cluster) { c.Pods = append(c.Pods, all...) }
}

// machine adds a started xlarge with the number of pods, each with one of ten replicas.
func machine(name string, n int, edits ...func(*corev1.Pod)) func(*facts.Cluster) {
	return func(c *facts.Cluster) {
		kind := TypeNamed("g4dn.xlarge")
		claim := Claim(name, &c.NodePools[0], kind, Initialized(Now.Add(-time.Hour)), func(claim *karpv1.NodeClaim) {
			claim.CreationTimestamp, claim.Spec.ExpireAfter = metav1.NewTime(Now.Add(-time.Hour)), c.NodePools[0].Spec.Template.Spec.ExpireAfter
		})
		node := Node(&claim, kind, 10)
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(Now)}}
		c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, node)
		c.Pods = append(c.Pods, Pods(name, n, append([]func(*corev1.Pod){Running(name), OwnedBy("apps/v1", "ReplicaSet", "web"), func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.NewTime(Now.Add(-time.Hour))
		}}, edits...)...)...)
	}
}

func limited(names ...string) func(*facts.Cluster) {
	return func(c *facts.Cluster) { c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts(names...)) }
}

func refused(until time.Duration) func(*facts.Cluster) {
	return func(c *facts.Cluster) {
		c.Refused["gpu-shared"] = append(c.Refused["gpu-shared"], v1alpha1.RefusedOffering{
			InstanceType: v1alpha1.Any, Zone: v1alpha1.Any, CapacityType: v1alpha1.Any, Reason: "InsufficientCapacity", Failures: 3, NotBefore: metav1.NewTime(Now.Add(until)),
		})
	}
}

func TestAPodWithoutAPlaceIsToldWhatWouldHelp(t *testing.T) {
	t.Parallel()
	x := Pod("x")
	for name, c := range map[string]struct {
		cluster *facts.Cluster
		reason  planner.Reason
		change  string
		on      string
		price   planner.MicroUSD
		after   time.Duration
	}{
		"the limit of GPUs is reached": {
			with(limited(v1alpha1.ResourceGPU, "1"), machine("a", 10), pods(x)), planner.ReasonLimitReached, "limits nvidia.com/gpu: 2", "NodePool gpu-shared", 526_000, 0,
		},
		"two limits are": {
			with(limited(v1alpha1.ResourceGPU, "1", "cpu", "4"), machine("a", 10), pods(x)), planner.ReasonLimitReached, "limits nvidia.com/gpu: 2, cpu: 8", "NodePool gpu-shared", 526_000, 0,
		},
		"the limit of replicas is": {
			with(limited(v1alpha1.ResourceGPUShared, "10"), machine("a", 10), pods(x)), planner.ReasonLimitReached, "limits nvidia.com/gpu.shared: 20", "NodePool gpu-shared", 526_000, 0,
		},
		"a limit that many pods wait for": {
			with(limited(v1alpha1.ResourceGPU, "0"), pods(Pods("a", 25)...), pods(x)), planner.ReasonLimitReached, "limits nvidia.com/gpu: 3", "NodePool gpu-shared", 526_000, 0,
		},
		"the cloud refuses": {
			with(refused(3*time.Minute), pods(x)), planner.ReasonUnavailable, "retry 12:03:00Z (InsufficientCapacity ×3)", "", 526_000, 3 * time.Minute,
		},
		"it does not tolerate the taint": {
			with(pods(Pod("x", Tolerating()))), planner.ReasonNoPool, "tolerate nvidia.com/gpu.shared", "pod", 526_000, 0,
		},
		"it selects a label that no machine has": {
			with(pods(Pod("x", Selecting("team", "a")))), planner.ReasonNoPool, "remove nodeSelector team", "pod", 526_000, 0,
		},
		"it selects another value of a label": {
			with(pods(Pod("x", Selecting(corev1.LabelTopologyZone, "us-east-1z")))), planner.ReasonNoPool, "nodeSelector topology.kubernetes.io/zone: us-east-1a", "pod", 526_000, 0,
		},
		"it has several causes": {
			with(pods(Pod("x", Tolerating(), Selecting("team", "a")))), planner.ReasonNoPool, "tolerate nvidia.com/gpu.shared, remove nodeSelector team", "pod", 526_000, 0,
		},
		"it asks for the other resource": {
			with(pods(Pod("x", Asking("cpu", "300m", v1alpha1.ResourceGPU, "1")))), planner.ReasonNoPool, "request nvidia.com/gpu.shared instead of nvidia.com/gpu", "pod", 526_000, 0,
		},
		"it is too large": {
			with(pods(Pod("x", Asking("cpu", "300m", "memory", "900Gi", v1alpha1.ResourceGPUShared, "1")))), planner.ReasonTooLarge, "memory: 191Gi", "pod", 3_912_000, 0,
		},
		"it states too much device memory": {
			with(pods(Pod("x", GPUMemory("40Gi")))), planner.ReasonTooLarge, "karve.sh/gpu-memory: 15079Mi", "pod", 526_000, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := explainer(c.cluster).Pod("default", "x")
			if err != nil || got.State != PodWaits || len(got.Pools) != 1 {
				t.Fatalf("%+v, %v", got, err)
			}
			p := got.Pools[0]
			if p.Reason != c.reason || p.Message == "" || p.NodePool != "gpu-shared" {
				t.Errorf("%s: %s, want %s", p.Reason, p.Message, c.reason)
			}
			if p.Help == nil {
				t.Fatalf("nothing would help, for %s", p.Message)
			}
			if p.Help.Change != c.change || p.Help.On != c.on || p.Help.Price != c.price {
				t.Errorf("%q on %q for %d, want %q on %q for %d", p.Help.Change, p.Help.On, p.Help.Price, c.change, c.on, c.price)
			}
			if (p.Help.At != nil) != (c.after > 0) || p.Help.At != nil && !p.Help.At.Equal(Now.Add(c.after)) {
				t.Errorf("it happens at %v, want after %s", p.Help.At, c.after)
			}
		})
	}
}

func TestAPodThatIsHelpedByNoNodePool(t *testing.T) {
	t.Parallel()
	racks := func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "x"}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: "example.com/rack", WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
		}}
	}
	stock := func(c *facts.Cluster) {
		c.NodePools = append(c.NodePools, KarpenterPool("stock"))
		c.GPUNodeClasses[0].Spec.Sharing.ResourceName = v1alpha1.ResourceGPU
		c.NodePools[0].Spec.Template.Spec.Taints[0].Key = "nvidia.com/gpu"
	}
	for name, c := range map[string]struct {
		cluster *facts.Cluster
		reason  planner.Reason
		change  string
	}{
		"one that Karpenter could serve": {
			with(stock, pods(Pod("x", Asking("cpu", "300m", v1alpha1.ResourceGPU, "1"), Tolerating("nvidia.com/gpu")))), planner.ReasonLeftToKarpenter, "nodeSelector karpenter.sh/nodepool: gpu-shared",
		},
		"one with a wrong annotation": {with(pods(Pod("x", GPUMemory("much")))), planner.ReasonUnsupported, "remove the annotation karve.sh/gpu-memory"},
		"one with a huge annotation":  {with(pods(Pod("x", GPUMemory("1e2000000000")))), planner.ReasonUnsupported, "remove the annotation karve.sh/gpu-memory"},
		"one that no machine has the label for": {
			with(pods(Pod("x", racks))), planner.ReasonRule, "whenUnsatisfiable: ScheduleAnyway for the spread over example.com/rack",
		},
		"one without its volume": {with(pods(Pod("x", Claiming("data")))), planner.ReasonVolumes, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := explainer(c.cluster).Pod("default", "x")
			if err != nil || got.State != PodWaits || got.Reason != c.reason || got.Message == "" || len(got.Pools) > 0 {
				t.Fatalf("%+v, %v, want %s", got, err, c.reason)
			}
			if change := ""; got.Help != nil && got.Help.Change != c.change || got.Help == nil && c.change != change {
				t.Errorf("%+v would help, want %q", got.Help, c.change)
			}
		})
	}
}

func TestTheNodesThatDoNotTakeAPodAreCounted(t *testing.T) {
	t.Parallel()
	c := with(limited(v1alpha1.ResourceGPU, "4"), machine("a", 10), machine("b", 10), machine("d", 2, GPUMemory("6Gi")), machine("e", 9, Asking("memory", "1600Mi", v1alpha1.ResourceGPUShared, "1")),
		pods(Pod("x", GPUMemory("6Gi"), Asking("memory", "2Gi", v1alpha1.ResourceGPUShared, "1"))))
	got, err := explainer(c).Pod("default", "x")
	if err != nil {
		t.Fatal(err)
	}
	want := []NodeCount{
		{Count: 2, Why: "full"},
		{Count: 1, Why: "too little GPU memory left", Example: "d", Left: "2.7Gi of GPU memory"},
		{Count: 1, Why: "too little memory left", Example: "e", Left: "960Mi of memory"},
	}
	if len(got.Nodes) != len(want) {
		t.Fatalf("%+v, want %+v", got.Nodes, want)
	}
	for i := range want {
		if got.Nodes[i] != want[i] {
			t.Errorf("%+v, want %+v", got.Nodes[i], want[i])
		}
	}
}

// TestANodeIsToldForItsOwnReason counts a node with room that a pod may not use, for each reason.
func TestANodeIsToldForItsOwnReason(t *testing.T) {
	t.Parallel()
	same := func(key string, edit func(*corev1.Affinity, []corev1.PodAffinityTerm)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{}
			edit(p.Spec.Affinity, []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}}})
		}
	}
	apart := func(a *corev1.Affinity, terms []corev1.PodAffinityTerm) {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
	}
	together := func(a *corev1.Affinity, terms []corev1.PodAffinityTerm) {
		a.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
	}
	for name, c := range map[string]struct {
		edits []func(*corev1.Pod)
		why   string
	}{
		"a taint":            {[]func(*corev1.Pod){Tolerating()}, "with the taint nvidia.com/gpu.shared, which it does not tolerate"},
		"a label":            {[]func(*corev1.Pod){Selecting("team", "a")}, "without the label team=a"},
		"anti-affinity":      {[]func(*corev1.Pod){same(corev1.LabelHostname, apart)}, "kept from it by podAntiAffinity, its own or that of pods that run or of DaemonSets"},
		"affinity to a rack": {[]func(*corev1.Pod){same("example.com/rack", together)}, "without the label example.com/rack, which a rule about other pods needs"},
		"affinity to a pod that no node has": {[]func(*corev1.Pod){same(corev1.LabelHostname, together), func(p *corev1.Pod) {
			p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector.MatchLabels["app"] = "b"
		}}, "excluded by podAffinity on kubernetes.io/hostname"},
		"another resource": {[]func(*corev1.Pod){Asking("cpu", "300m", v1alpha1.ResourceGPU, "1")}, "without nvidia.com/gpu"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := explainer(with(limited(v1alpha1.ResourceGPU, "1"), machine("a", 3, WithLabels("app", "a")), pods(Pod("x", c.edits...)))).Pod("default", "x")
			if err != nil || len(got.Nodes) != 1 || got.Nodes[0].Why != c.why || got.Nodes[0].Count != 1 {
				t.Errorf("%+v, %v, want %q; %s", got.Nodes, err, c.why, got.Message)
			}
		})
	}
	for name, edit := range map[string]func(*corev1.Pod){"a volume that is missing": Claiming("data"), "a wrong annotation": GPUMemory("much")} {
		if got, err := explainer(with(machine("a", 3), pods(Pod("x", edit)))).Pod("default", "x"); err != nil || len(got.Nodes) > 0 {
			t.Errorf("%s is said to be the fault of nodes: %+v, %v", name, got.Nodes, err)
		}
	}
}

// TestAntiAffinityIsNoMissingPool has a pool in one zone, where a pod runs from which another has to stay apart, and a full node in another zone.
func TestAntiAffinityIsNoMissingPool(t *testing.T) {
	t.Parallel()
	apart := func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "x"}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}},
		}}}
	}
	c := with(machine("a", 1, WithLabels("app", "x")), machine("b", 10), pods(Pod("x", apart)))
	c.Nodes[1].Labels[corev1.LabelTopologyZone] = Zones[1]
	Requiring(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, c.Nodes[0].Labels[corev1.LabelTopologyZone])(&c.NodePools[0])
	got, err := explainer(c).Pod("default", "x")
	if err != nil || got.Reason != planner.ReasonRule || !strings.Contains(got.Message, "has no room on the 1 node that would take it, and podAntiAffinity") {
		t.Fatalf("%s: %s, %v", got.Reason, got.Message, err)
	}
	if p := got.Pools[0]; p.Reason != planner.ReasonRule || p.Help == nil || p.Help.Changes[0].Action != RemovePodAntiAffinity {
		t.Errorf("%+v", p)
	}
}

// TestTooLargeKeepsWhatTheLargestMachineHas asks for more replicas than any machine has.
func TestTooLargeKeepsWhatTheLargestMachineHas(t *testing.T) {
	t.Parallel()
	got, err := explainer(with(pods(Pod("x", Asking("cpu", "300m", v1alpha1.ResourceGPUShared, "100"))))).Pod("default", "x")
	if err != nil || got.Pools[0].Help == nil || got.Pools[0].Help.Change != "nvidia.com/gpu.shared: 40" || !strings.Contains(got.Pools[0].Message, "has 40") {
		t.Errorf("%+v: %s, %v", got.Pools[0].Help, got.Message, err)
	}
}

func TestTheStateOfAPod(t *testing.T) {
	t.Parallel()
	starting := func(c *facts.Cluster) {
		c.NodeClaims = append(c.NodeClaims, Claim("new", &c.NodePools[0], TypeNamed("g4dn.xlarge"), Launched(Now.Add(-time.Minute))))
		c.NodeClaims[0].CreationTimestamp = metav1.NewTime(Now.Add(-2 * time.Minute))
	}
	other := func(c *facts.Cluster) {
		c.Nodes = append(c.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mine", UID: "mine"}, Status: corev1.NodeStatus{Allocatable: Amounts("cpu", "8", "memory", "8Gi", "pods", "10", v1alpha1.ResourceGPUShared, "10")}})
	}
	for name, c := range map[string]struct {
		cluster *facts.Cluster
		state   PodState
		words   string
	}{
		"one that a machine is launched for": {with(pods(Pod("x"))), PodPlanned, "gets a new g4dn.xlarge of NodePool gpu-shared"},
		"one whose machine starts":           {with(starting, pods(Pod("x"))), PodComing, "waits for new, which is Launched"},
		"one that fits on a node":            {with(machine("a", 3), pods(Pod("x"))), PodFits, "has room on node a"},
		"one that is nominated":              {with(machine("a", 3), pods(Pod("x", func(p *corev1.Pod) { p.Status.NominatedNodeName = "a" }))), PodFits, "is nominated for node a, which has room for it"},
		"one that preempts elsewhere":        {with(other, pods(Pod("x", func(p *corev1.Pod) { p.Status.NominatedNodeName = "mine" }))), PodFits, "is nominated for node mine: the scheduler"},
		"one that runs":                      {with(machine("a", 3), pods(Pod("x", Running("a")))), PodRuns, "has run on a of NodePool gpu-shared"},
		"one that runs elsewhere":            {with(pods(Pod("x", Running("mine")))), PodRuns, "which Karve did not launch"},
		"one that has ended":                 {with(pods(Pod("x", Running("a"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))), PodEnded, "has ended"},
		"one that asks for nothing":          {with(pods(Pod("x", Asking("cpu", "1")))), PodForeign, "requests no GPU resource"},
		"one that is misspelled":             {with(pods(Pod("x", Asking("nvidia.com/gpu.shred", "1")))), PodForeign, "requests nvidia.com/gpu.shred, which nothing in the cluster serves; did you mean nvidia.com/gpu.shared?"},
		"one with a gate": {with(pods(Pod("x", func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
			p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated
		}))), PodWaits, "has the scheduling gate example.com/wait"},
		"one that no scheduler has tried": {with(pods(Pod("x", func(p *corev1.Pod) { p.Status.Conditions = nil }))), PodWaits, "has not been tried by scheduler default-scheduler yet"},
		"one of a DaemonSet":              {with(pods(Pod("x", OwnedBy("apps/v1", "DaemonSet", "agent")))), PodWaits, "belongs to a DaemonSet"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := explainer(c.cluster).Pod("default", "x")
			if err != nil || got.State != c.state || !strings.Contains(got.Summary, c.words) {
				t.Errorf("%s: %s, %v; want %s: %s", got.State, got.Summary, err, c.state, c.words)
			}
		})
	}
}

func TestWhatARunningPodCosts(t *testing.T) {
	t.Parallel()
	got, err := explainer(with(machine("a", 4, Selecting(corev1.LabelTopologyZone, Zones[0])))).Pod("default", "a-001")
	if err != nil || got.Place == nil || got.Place.Price == nil || got.Place.NodePrice == nil {
		t.Fatalf("%+v, %v", got, err)
	}
	if p := got.Place; *p.Price != 52_600 || *p.NodePrice != 526_000 || p.Replicas != 1 || p.NodeReplicas != 10 || p.NodePool != "gpu-shared" || p.InstanceType != "g4dn.xlarge" {
		t.Errorf("%+v", p)
	}
	if len(got.Rules) != 1 || got.Rules[0].Text != "topology.kubernetes.io/zone: us-east-1a" {
		t.Errorf("rules %+v", got.Rules)
	}
	if got.Move == nil || got.Move.Cost == nil || *got.Move.Cost <= 0 || !strings.Contains(got.Move.Kept, "cost") {
		t.Errorf("move %+v", got.Move)
	}
}

func TestTheGPUIsTheOneThatTheAgentReports(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		asOf     time.Time
		gpus     []int
		reported bool
	}{
		"lately":   {Now.Add(-time.Minute), []int{0, 3}, true},
		"long ago": {Now.Add(-time.Hour), []int{0}, false},
	} {
		report := nodecontract.HoldersReport{AsOf: c.asOf, GPUs: []nodecontract.HeldGPU{
			{UUID: "GPU-a", Health: nodecontract.GPUInService, Holders: []nodecontract.GPUHolder{{Pod: "default/a-000", Container: "main"}}},
			{UUID: "GPU-b", Index: 3, Health: nodecontract.GPUInService, Holders: []nodecontract.GPUHolder{{Pod: "default/a-000", Container: "main"}}},
		}}
		got, err := explainer(with(machine("a", 2, GPUMemory("2Gi")), onNode(annotated(nodecontract.HoldersAnnotation, report.String())))).Pod("default", "a-000")
		if err != nil || !slices.Equal(got.Place.GPUs, c.gpus) || got.Place.Reported != c.reported {
			t.Errorf("%s: %+v, %v; want %v", name, got.Place, err, c.gpus)
		}
	}
}

func TestAPodThatDoesNotExist(t *testing.T) {
	t.Parallel()
	if _, err := explainer(Shared()).Pod("team", "x"); err == nil || !strings.Contains(err.Error(), "pod team/x does not exist") {
		t.Error(err)
	}
}

func TestPodOfAGroupTellsHowFarTheGroupIs(t *testing.T) {
	t.Parallel()
	ofGroup := func(minimum string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations = map[string]string{v1alpha1.GroupAnnotation: "train", v1alpha1.GroupMinMembersAnnotation: minimum}
		}
	}
	untried := func(p *corev1.Pod) { p.Status.Conditions = nil }
	for name, c := range map[string]struct {
		pods          []corev1.Pod
		state         PodState
		summary, rule string
	}{
		"enough exist":          {Pods("a", 2, ofGroup("2")), PodPlanned, "gets a new", "group default/train: 2 pods at once, 0 have a place, 2 wait"},
		"too few":               {Pods("a", 1, ofGroup("2")), PodWaits, "has no place: group default/train needs 2 pods at once, 1 exist", "group default/train: 2 pods at once, 0 have a place, 1 wait"},
		"too few, none tried":   {Pods("a", 1, ofGroup("2"), untried), PodWaits, "waits for others: group default/train needs 2 pods at once, 1 exist", "group default/train: 2 pods at once, 0 have a place, 1 wait"},
		"one of them was tried": {append(Pods("a", 1, ofGroup("2"), untried), Pod("b", ofGroup("2"))), PodPlanned, "gets a new", "group default/train: 2 pods at once, 0 have a place, 2 wait"},
		"different minimums":    {append(Pods("a", 2, ofGroup("2")), Pod("b", ofGroup("3"))), PodPlanned, "gets a new", "group default/train: 3 pods at once, 0 have a place, 3 wait; its pods state different minimums, and the largest counts"},
		"garbage":               {Pods("a", 1, ofGroup("all")), PodPlanned, "gets a new", `annotation karve.sh/group-min-members: "all" is no number of pods: write one from 1 to 2147483647; the pod is planned alone`},
	} {
		a, err := explainer(with(pods(c.pods...))).Pod("default", "a-000")
		if err != nil || a.State != c.state || !strings.HasPrefix(a.Summary, c.summary) || !slices.Contains(a.Rules, Rule{"group", c.rule}) {
			t.Errorf("%s: %v: %s, %q, rules %v", name, err, a.State, a.Summary, a.Rules)
		}
	}
}
