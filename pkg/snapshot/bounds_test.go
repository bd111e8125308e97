package snapshot_test

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// several returns n different texts.
func several(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("x-%d", i)
	}
	return all
}

// excesses has edits that give a pod n of one of its parts, and a number of them that takes more than the bound.
var excesses = map[string]struct {
	beyond int
	edit   func(pod *corev1.Pod, n int)
}{
	"required node affinity":  {1_000, func(p *corev1.Pod, n int) { requiring(nodeTerms("x", n, 1))(p) }},
	"preferred node affinity": {1_000, func(p *corev1.Pod, n int) { preferring(nodeTerms("x", n, 1))(p) }},
	"expressions": {1_000, func(p *corev1.Pod, n int) {
		terms := nodeTerms("x", 1, 1)
		for range n - 1 {
			terms[0].MatchExpressions = append(terms[0].MatchExpressions, terms[0].MatchExpressions[0])
		}
		requiring(terms)(p)
	}},
	"values of node affinity": {2_000, func(p *corev1.Pod, n int) { requiring(nodeTerms("x", 1, n-1))(p) }},
	"node selector": {2_000, func(p *corev1.Pod, n int) {
		p.Spec.NodeSelector = map[string]string{}
		for _, key := range several(n) {
			p.Spec.NodeSelector[key] = ""
		}
	}},
	"pod affinity": {400, func(p *corev1.Pod, n int) { near(zone, several(n)...)(p) }},
	"preferred pod anti-affinity": {400, func(p *corev1.Pod, n int) {
		anti := &corev1.PodAntiAffinity{}
		for _, t := range podTerms(host, several(n)...) {
			anti.PreferredDuringSchedulingIgnoredDuringExecution = append(anti.PreferredDuringSchedulingIgnoredDuringExecution, corev1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: t})
		}
		affinityOf(p).PodAntiAffinity = anti
	}},
	"topology spread": {400, func(p *corev1.Pod, n int) {
		for range n {
			spreadOver(zone, "x")(p)
		}
	}},
	"values of pod affinity": {2_000, func(p *corev1.Pod, n int) {
		near(zone, "x")(p)
		t := &p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
		t.LabelSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: several(n - 1)}}}
	}},
	"namespaces": {2_000, func(p *corev1.Pod, n int) {
		near(zone, "x")(p)
		t := &p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
		t.Namespaces = several(n - 1)
	}},
	"keys of labels to match": {2_000, func(p *corev1.Pod, n int) {
		spreadOver(zone, "x")(p)
		p.Spec.TopologySpreadConstraints[0].MatchLabelKeys = several(n - 1)
	}},
	"tolerations": {400, func(p *corev1.Pod, n int) {
		Tolerating(append(several(n-1), v1alpha1.ResourceGPUShared)...)(p)
	}},
	"containers": {200, func(p *corev1.Pod, n int) {
		for range n - 1 {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{})
		}
	}},
	"requests": {2_000, func(p *corev1.Pod, n int) {
		r := &p.Spec.Containers[0].Resources
		r.Limits = corev1.ResourceList{}
		for _, name := range several(n) {
			r.Limits[corev1.ResourceName("example.com/"+name)] = r.Requests[corev1.ResourceCPU]
		}
	}},
	"host ports": {400, func(p *corev1.Pod, n int) {
		for i := range n {
			HostPort(int32(i + 1))(p)
		}
	}},
	"volumes": {200, func(p *corev1.Pod, n int) { Claiming(several(n)...)(p) }},
	"text": {64 << 10, func(p *corev1.Pod, n int) {
		Tolerating(strings.Repeat("x", n), v1alpha1.ResourceGPUShared)(p)
	}},
}

func TestPodsBeyondABoundWaitAlone(t *testing.T) {
	t.Parallel()
	for name, x := range excesses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, times := range []int{1, 5} {
				c := Shared()
				hostile := Pod("hostile")
				x.edit(&hostile, x.beyond*times)
				c.Pods = append(Pods("web", 11), hostile)
				view := snapshot.Build(c)
				plan := solve.Plan(view.Snapshot)
				if err := check.Plan(view.Snapshot, plan); err != nil {
					t.Fatal(err)
				}
				if len(plan.Launches) != 2 || len(plan.Unplaced) != 1 || plan.Unplaced[0].Pod != "default/hostile" || plan.Unplaced[0].Reason != planner.ReasonUnsupported {
					t.Fatalf("want two launches for the others, and that one left out: %+v", plan)
				}
				if m := plan.Unplaced[0].Message; !strings.Contains(m, "more than 16 KiB, which Karve does not read") {
					t.Errorf("it is told %q", m)
				}
			}
		})
	}
}

func TestPodsWithinTheBoundAreRead(t *testing.T) {
	t.Parallel()
	for name, x := range excesses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			pod := Pod("large")
			x.edit(&pod, max(2, x.beyond/20))
			c.Pods = []corev1.Pod{pod}
			view := snapshot.Build(c)
			if len(view.Classes) != 1 {
				t.Fatalf("%d classes", len(view.Classes))
			}
			if blocked := view.Classes[0].Blocked; blocked != nil && strings.Contains(blocked.Message, "16 KiB") {
				t.Errorf("it is refused: %s", blocked.Message)
			}
		})
	}
}

func TestRunningPodsBeyondABoundHoldWhatTheyRequest(t *testing.T) {
	t.Parallel()
	for name, x := range excesses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := twoZones()
			runs := Pod("runs", Running("m-a"), away(host, "nobody"))
			x.edit(&runs, x.beyond)
			c.Pods = []corev1.Pod{runs, Pod("web", inApp("web"))}
			view := snapshot.Build(c)
			if got := view.Classes[classOf(view, "web")].Nodes; len(got) != 2 { // Its own anti-affinity is small enough, and matches no other pod.
				t.Errorf("pods may go to %d nodes, want 2", len(got))
			}
			for i := range view.Nodes {
				if m := view.MachineOn(i); m.Node.Name == "m-a" && view.Nodes[i].Free.Replicas != 9 {
					t.Errorf("its node has %d replicas left", view.Nodes[i].Free.Replicas)
				}
			}
		})
	}
}

func TestRunningPodsWithLongAntiAffinityKeepAllPodsAway(t *testing.T) {
	t.Parallel()
	c := twoZones()
	c.Pods = []corev1.Pod{Pod("runs", Running("m-a"), away(host, several(400)...)), Pod("web", inApp("web"))}
	view := snapshot.Build(c)
	if got := view.Classes[classOf(view, "web")].Nodes; len(got) != 1 {
		t.Errorf("pods may go to %d nodes, want 1", len(got))
	}
}

func TestTemplatesBeyondABoundDelayNoPods(t *testing.T) {
	t.Parallel()
	for name, x := range excesses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hostile := Pod("hostile", Asking("cpu", "10m"))
			x.edit(&hostile, x.beyond)
			ds := DaemonSet("hostile", "cpu", "10m")
			ds.Spec.Template.Spec, ds.Spec.Template.Annotations = hostile.Spec, hostile.Annotations
			buffered := Pod("buffer")
			x.edit(&buffered, x.beyond)
			c := Shared()
			c.DaemonSets = []appsv1.DaemonSet{ds}
			c.Buffers = []karpenter.Buffer{{Namespace: "default", Name: "b", Replicas: 3, Template: corev1.PodTemplateSpec{ObjectMeta: buffered.ObjectMeta, Spec: buffered.Spec}}}
			c.Pods = Pods("web", 11)
			plan := solve.Plan(snapshot.Build(c).Snapshot)
			if len(plan.Unplaced) > 0 || len(plan.Launches) == 0 {
				t.Errorf("want places for all: %+v", plan)
			}
		})
	}
}

func TestLongNodeAffinityTakesTurns(t *testing.T) {
	t.Parallel()
	const pods = 400
	for name, x := range map[string]struct {
		edit func([]corev1.NodeSelectorTerm) func(*corev1.Pod)
		// most is how many of the pods are planned for at once.
		most int
	}{"required": {requiring, 340}, "preferred": {preferring, 40}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			for i := range pods {
				name := fmt.Sprintf("long-%03d", i)
				c.Pods = append(c.Pods, Pod(name, in("crowd"), x.edit(nodeTerms(name, 70, 2))))
			}
			c.Pods = append(c.Pods, Pod("short", x.edit(nodeTerms("short", 1, 60))))
			had := map[string]bool{}
			for round := 0; len(had) < pods; round++ {
				if round > pods {
					t.Fatalf("%d of %d pods had a turn in %d rounds", len(had), pods, round)
				}
				v := snapshot.Build(c)
				now := 0
				for name := range v.Pods {
					if strings.HasPrefix(name, "crowd/") {
						had[name] = true
						now++
					}
				}
				if now == 0 || now > x.most {
					t.Errorf("%d pods with long node affinity are planned for in round %d", now, round)
				}
				if v.Pods["default/short"] == nil {
					t.Fatalf("a pod of another namespace waits in round %d", round)
				}
				c.Queue = v.NextQueue(c.Queue, refused(&v))
			}
		})
	}
}

func TestVolumesWithLongNodeAffinityAreReported(t *testing.T) {
	t.Parallel()
	c := Shared()
	bound("data", func(pv *corev1.PersistentVolume) {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: nodeTerms("x", 1_000, 1)}}
	})(c)
	c.Pods = []corev1.Pod{Pod("a", Claiming("data"))}
	wantBlocked(t, c, planner.ReasonVolumes, "PersistentVolume pv-data has a node affinity of more than 16 KiB")
}
