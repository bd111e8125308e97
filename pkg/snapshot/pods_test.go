package snapshot_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// required returns a node affinity with these terms, one of which must match.
func required(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
}

func expression(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
}

func TestPodsNotWaitingForGPUAreIgnored(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*corev1.Pod){
		"gated": func(pod *corev1.Pod) {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "wait"}}
			pod.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated
		},
		"not yet processed by the scheduler": func(pod *corev1.Pod) { pod.Status.Conditions = nil },
		"a DaemonSet pod":                    OwnedBy("apps/v1", "DaemonSet", "x"),
		"a mirror pod":                       OwnedBy("v1", "Node", "x"),
		"terminating":                        func(pod *corev1.Pod) { pod.DeletionTimestamp = new(metav1.NewTime(Now)) },
		"succeeded":                          func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded },
		"failed":                             func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed },
		"bound":                              func(pod *corev1.Pod) { pod.Spec.NodeName = "x" },
		"without a GPU":                      Asking("cpu", "1"),
		"with a GPU amount of zero":          Asking("cpu", "1", "nvidia.com/gpu.shared", "0"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			c.Pods = []corev1.Pod{Pod("a", edit)}
			if view := snapshot.Build(c); len(view.Classes) != 0 || len(view.Pods) != 0 || facts.Waits(&c.Pods[0]) {
				t.Errorf("classes %+v, waits %t", view.Classes, facts.Waits(&c.Pods[0]))
			}
		})
	}
}

func TestClassesGroupPodsThatSchedulerTreatsAlike(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		edit func(*corev1.Pod)
		same bool
	}{
		"labels, images and namespace": {func(pod *corev1.Pod) {
			pod.Namespace, pod.Labels, pod.Spec.Containers[0].Image = "other", map[string]string{"a": "b"}, "x"
		}, true},
		"the same quantities in other units": {Asking("cpu", "0.3", "memory", "1024Mi", "nvidia.com/gpu.shared", "1"), true},
		"the same amounts in two containers": {split, true},
		"volumes that bind to no node":       {func(pod *corev1.Pod) { pod.Spec.Volumes = []corev1.Volume{{Name: "x"}} }, true},
		"preferred affinity":                 {func(pod *corev1.Pod) { pod.Spec.Affinity = preferences() }, false},
		"priority":                           {func(pod *corev1.Pod) { pod.Spec.Priority = new(int32(1)) }, false},
		"device memory":                      {GPUMemory("4Gi"), false},
		"zero device memory":                 {GPUMemory("0"), true},
		"host ports":                         {HostPort(8080), false},
		"ports of the pod":                   {HostPort(0), true},
		"requests":                           {Asking("cpu", "301m", "memory", "1Gi", "nvidia.com/gpu.shared", "1"), false},
		"replicas":                           {Asking("cpu", "300m", "memory", "1Gi", "nvidia.com/gpu.shared", "2"), false},
		"an additional resource":             {Asking("cpu", "300m", "memory", "1Gi", "nvidia.com/gpu.shared", "1", "example.com/fpga", "1"), false},
		"a node selector":                    {Selecting(corev1.LabelTopologyZone, "us-east-1a"), false},
		"required node affinity":             {func(pod *corev1.Pod) { pod.Spec.Affinity = required(expression("a", corev1.NodeSelectorOpExists)) }, false},
		"tolerations":                        {Tolerating("nvidia.com/gpu.shared", "x"), false},
		"an unsupported rule":                {func(pod *corev1.Pod) { pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x"}} }, false},
		"overhead":                           {func(pod *corev1.Pod) { pod.Spec.Overhead = Amounts("cpu", "1m") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			c.Pods = []corev1.Pod{Pod("b"), Pod("a"), Pod("c", tc.edit)}
			classes := snapshot.Build(c).Classes
			if tc.same != (len(classes) == 1) {
				t.Errorf("%d classes", len(classes))
			}
			for _, class := range classes {
				if !slices.IsSorted(class.Pods) {
					t.Errorf("the pods are not sorted: %v", class.Pods)
				}
			}
		})
	}
}

// split distributes the pod's requests over two containers.
func split(pod *corev1.Pod) {
	pod.Spec.Containers = []corev1.Container{
		{Name: "a", Resources: corev1.ResourceRequirements{Requests: Amounts("cpu", "100m", "memory", "1Gi")}},
		{Name: "b", Resources: corev1.ResourceRequirements{Requests: Amounts("cpu", "200m", "nvidia.com/gpu.shared", "1")}},
	}
}

func TestRequestsMatchScheduler(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	container := func(policy *corev1.ContainerRestartPolicy, amounts ...string) corev1.Container {
		return corev1.Container{RestartPolicy: policy, Resources: corev1.ResourceRequirements{Requests: Amounts(amounts...)}}
	}
	for name, tc := range map[string]struct {
		edit func(*corev1.Pod)
		want planner.Resources
	}{
		"one container": {func(*corev1.Pod) {}, planner.Resources{MilliCPU: 300, MemoryBytes: 1 << 30, Pods: 1, Replicas: 1}},
		"a larger init container": {func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{container(nil, "cpu", "1", "ephemeral-storage", "1Gi")}
		}, planner.Resources{MilliCPU: 1000, MemoryBytes: 1 << 30, EphemeralBytes: 1 << 30, Pods: 1, Replicas: 1}},
		"a sidecar and an init container after it": {func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{container(&always, "cpu", "200m"), container(nil, "cpu", "400m")}
		}, planner.Resources{MilliCPU: 600, MemoryBytes: 1 << 30, Pods: 1, Replicas: 1}},
		"overhead": {func(pod *corev1.Pod) { pod.Spec.Overhead = Amounts("cpu", "50m", "memory", "1Gi") }, planner.Resources{MilliCPU: 350, MemoryBytes: 2 << 30, Pods: 1, Replicas: 1}},
		"pod-level resources": {func(pod *corev1.Pod) {
			pod.Spec.Resources = &corev1.ResourceRequirements{Requests: Amounts("cpu", "2", "memory", "3Gi")}
		}, planner.Resources{MilliCPU: 2000, MemoryBytes: 3 << 30, Pods: 1, Replicas: 1}},
		"a GPU in an init container": {func(pod *corev1.Pod) {
			Asking("cpu", "1")(pod)
			pod.Spec.InitContainers = []corev1.Container{container(nil, "nvidia.com/gpu.shared", "3")}
		}, planner.Resources{MilliCPU: 1000, Pods: 1, Replicas: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			c.Pods = []corev1.Pod{Pod("a", tc.edit)}
			if diff := cmp.Diff(tc.want, snapshot.Build(c).Classes[0].Requests); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

func TestClassHasPriorityOfItsPods(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.Pods = []corev1.Pod{Pod("none"), Pod("high", func(pod *corev1.Pod) { pod.Spec.Priority = new(int32(1000)) }), Pod("low", func(pod *corev1.Pod) { pod.Spec.Priority = new(int32(-1)) })}
	view := snapshot.Build(c)
	for pod, want := range map[string]int32{"none": 0, "high": 1000, "low": -1} {
		if got := view.Classes[classOf(view, pod)].Priority; got != want {
			t.Errorf("%s has priority %d, want %d", pod, got, want)
		}
	}
}

func TestPodsBelowThePriorityCutoffUseFreeRoomOnly(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.PriorityCutoff = new(int32(-10))
	claim := Claim("a", &c.NodePools[0], TypeNamed("g4dn.xlarge"), Initialized(Now))
	c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, Node(&claim, TypeNamed("g4dn.xlarge"), 2))
	at := func(priority int32) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.Spec.Priority = &priority } }
	c.Pods = append(Pods("below", 3, at(-11)), Pod("at", at(-10)))
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if err := check.Plan(view.Snapshot, plan); err != nil {
		t.Fatal(err)
	}
	if len(plan.Launches) != 0 || len(plan.Placements) != 1 || len(plan.Placements[0].Pods) != 2 || len(plan.Unplaced) != 2 {
		t.Fatalf("the plan is %+v, want 2 pods on the node, and no machine for the others", plan)
	}
	want := "has no room on the 1 node that would take it, and no machine is launched for its priority -11, which is below settings.priorityCutoff -10: raise its priority, or wait for free room"
	if u := plan.Unplaced[0]; u.Reason != planner.ReasonPriority || u.Message != want {
		t.Errorf("%s: %s", u.Reason, u.Message)
	}
	if !slices.Contains(plan.Placements[0].Pods, "default/at") {
		t.Errorf("the pod at the cutoff has no room, but %v", plan.Placements[0].Pods)
	}

	c.Nodes, c.NodeClaims, c.Index = nil, nil, nil
	view = snapshot.Build(c)
	plan = solve.Plan(view.Snapshot)
	if len(plan.Launches) != 1 || len(plan.Launches[0].Pods) != 1 || len(plan.Unplaced) != 3 {
		t.Errorf("without nodes, the plan is %+v, want a machine for the pod at the cutoff alone", plan)
	}
}

// admitted returns the instance types and zones of the offerings that admit the pod.
func admitted(c *facts.Cluster, edits ...func(*corev1.Pod)) []string {
	c.Pods = []corev1.Pod{Pod("a", edits...)}
	view := snapshot.Build(c)
	var names []string
	for _, i := range view.Classes[0].Offerings {
		o := view.Snapshot.Offerings[i]
		names = append(names, o.InstanceType+" "+o.Zone)
	}
	return names
}

func TestPodsAreAdmittedWhereSchedulerBindsThem(t *testing.T) {
	t.Parallel()
	const zone, cpus = corev1.LabelTopologyZone, "karpenter.k8s.aws/instance-cpu"
	affinity := func(terms ...corev1.NodeSelectorTerm) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.Affinity = required(terms...) }
	}
	both := expression(cpus, corev1.NodeSelectorOpIn, "4")
	both.MatchExpressions = append(both.MatchExpressions, expression(zone, corev1.NodeSelectorOpIn, "us-east-1a").MatchExpressions...)
	smallest := []string{"g4dn.xlarge us-east-1a", "g4dn.xlarge us-east-1b"}
	for name, tc := range map[string]struct {
		edit func(*corev1.Pod)
		want []string
	}{
		"by a selector":                             {Selecting(cpus, "4"), smallest},
		"by a deprecated label":                     {Selecting("beta.kubernetes.io/instance-type", "g4dn.xlarge"), smallest},
		"by two expressions, which must both match": {affinity(both), smallest[:1]},
		"by two terms, of which one must match":     {affinity(expression(cpus, corev1.NodeSelectorOpIn, "5"), both, expression("nowhere", corev1.NodeSelectorOpExists)), smallest[:1]},
		"by Gt":                                     {affinity(expression(cpus, corev1.NodeSelectorOpLt, "8")), smallest},
		"by Gt and a selector": {func(pod *corev1.Pod) {
			Selecting(zone, "us-east-1b")(pod)
			affinity(expression(cpus, corev1.NodeSelectorOpLt, "8"))(pod)
		}, smallest[1:]},
		"by the absence of a label":    {affinity(both, expression("nowhere", corev1.NodeSelectorOpGt, "1")), smallest[:1]},
		"not by an empty term":         {affinity(corev1.NodeSelectorTerm{}), nil},
		"not by Gt on an absent label": {affinity(expression("nowhere", corev1.NodeSelectorOpGt, "1")), nil},
		// Karpenter reads this as a requirement that the label be absent, and launches machines that the pod cannot use.
		"not by contradicting expressions": {func(pod *corev1.Pod) {
			Selecting("nowhere", "a")(pod)
			affinity(expression("nowhere", corev1.NodeSelectorOpIn, "b"))(pod)
		}, nil},
		"not without the toleration": {Tolerating("other"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, admitted(Shared(), tc.edit)); diff != "" {
				t.Errorf("admitted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnsatisfiablePreferencesAreDropped(t *testing.T) {
	t.Parallel()
	c := Shared()
	got := admitted(c, func(pod *corev1.Pod) {
		pod.Spec.Affinity = preferences()
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{WhenUnsatisfiable: corev1.ScheduleAnyway, TopologyKey: "zone"}}
	})
	if class := snapshot.Build(c).Classes[0]; len(got) != 8 || class.Blocked != nil || class.Preferences != nil {
		t.Errorf("admitted by %v, class %+v", got, class)
	}
}

func preferences() *corev1.Affinity {
	return &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
			{Weight: 1, Preference: expression("nowhere", corev1.NodeSelectorOpExists)},
		}},
		PodAffinity:     &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1}}},
		PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1}}},
	}
}
