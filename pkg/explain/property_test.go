package explain

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/internal/properties"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// drawn draws a cluster with up to three pools, machines, refusals and waiting pods.
func drawn(t *rapid.T) *facts.Cluster {
	c := Shared()
	for i := range rapid.IntRange(0, 2).Draw(t, "more pools") {
		c.NodePools = append(c.NodePools, Pool(fmt.Sprintf("pool-%d", i), "gpu-shared", Tainted(rapid.SampledFrom([]string{v1alpha1.ResourceGPUShared, "example.com/team"}).Draw(t, "taint"))))
	}
	for i := range c.NodePools {
		np := &c.NodePools[i]
		np.Spec.Limits = karpv1.Limits{}
		for _, name := range []corev1.ResourceName{v1alpha1.ResourceGPU, "cpu", "nodes"} {
			if rapid.IntRange(0, 2).Draw(t, "limited") == 0 {
				np.Spec.Limits[name] = *resource.NewQuantity(rapid.Int64Range(0, 6).Draw(t, string(name)), resource.DecimalSI)
			}
		}
		if rapid.IntRange(0, 3).Draw(t, "labeled") == 0 {
			np.Spec.Template.Labels = map[string]string{"team": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "team")}
		}
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "machines") {
		machine(fmt.Sprintf("m-%d", i), rapid.IntRange(0, 10).Draw(t, "pods on it"))(c)
	}
	for range rapid.IntRange(0, 2).Draw(t, "refusals") {
		c.Refused["gpu-shared"] = append(c.Refused["gpu-shared"], v1alpha1.RefusedOffering{
			InstanceType: rapid.SampledFrom([]string{v1alpha1.Any, "g4dn.xlarge", "g4dn.2xlarge"}).Draw(t, "type"), Zone: rapid.SampledFrom([]string{v1alpha1.Any, Zones[0]}).Draw(t, "zone"),
			CapacityType: v1alpha1.Any, Reason: "InsufficientCapacity", Failures: 1, NotBefore: metav1.NewTime(Now.Add(time.Duration(rapid.IntRange(-1, 5).Draw(t, "minutes")) * time.Minute)),
		})
	}
	for i := range c.NodePools {
		if rapid.IntRange(0, 5).Draw(t, "closed") == 0 {
			c.NodePools[i].Status.Conditions = []status.Condition{{Type: v1alpha1.ConditionReplicasHealthy, Status: metav1.ConditionFalse, Reason: "Because", Message: "of machines that did not start"}}
		}
		if rapid.IntRange(0, 3).Draw(t, "zoned") == 0 {
			Requiring(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, rapid.SampledFrom(Zones).Draw(t, "zone of the pool"))(&c.NodePools[i])
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "one replica") == 0 {
		c.GPUNodeClasses[0].Spec.Sharing.RequestsAboveOne = v1alpha1.RequestsAboveOneRefuse
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "workloads") {
		app := fmt.Sprint(i)
		edits := []func(*corev1.Pod){WithLabels("app", app), Asking(
			"cpu", rapid.SampledFrom([]string{"300m", "3", "60"}).Draw(t, "cpu"),
			"memory", rapid.SampledFrom([]string{"1Gi", "40Gi", "900Gi"}).Draw(t, "memory"),
			rapid.SampledFrom([]string{v1alpha1.ResourceGPUShared, v1alpha1.ResourceGPUShared, v1alpha1.ResourceGPUShared, v1alpha1.ResourceGPU}).Draw(t, "resource"),
			rapid.SampledFrom([]string{"1", "2", "50", "100"}).Draw(t, "replicas"),
		)}
		for range rapid.IntRange(0, 2).Draw(t, "wishes") {
			edits = append(edits, wish(t))
		}
		c.Pods = append(c.Pods, Pods("w"+app, rapid.IntRange(1, 12).Draw(t, "pods"), edits...)...)
	}
	return c
}

// wish draws something that a pod requires.
func wish(t *rapid.T) func(*corev1.Pod) {
	key := rapid.SampledFrom([]string{corev1.LabelTopologyZone, corev1.LabelHostname, "example.com/rack"}).Draw(t, "topology")
	term := func(p *corev1.Pod) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Labels["app"]}}}}
	}
	affinity := func(p *corev1.Pod) *corev1.Affinity {
		if p.Spec.Affinity == nil {
			p.Spec.Affinity = &corev1.Affinity{}
		}
		return p.Spec.Affinity
	}
	return rapid.SampledFrom([]func(*corev1.Pod){
		Tolerating(),
		Selecting("team", "a"),
		GPUMemory("4Gi"), GPUMemory("40Gi"), GPUMemory("lots"),
		Selecting(corev1.LabelTopologyZone, Zones[1]), Selecting(corev1.LabelTopologyZone, "elsewhere"),
		Claiming("missing"),
		func(p *corev1.Pod) {
			affinity(p).PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(p)}
		},
		func(p *corev1.Pod) {
			affinity(p).PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(p)}
		},
		func(p *corev1.Pod) {
			affinity(p).NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "team", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}},
			}}}
		},
		func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
				MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Labels["app"]}},
			})
		},
	}).Draw(t, "wish")
}

// changedBy returns the cluster after a person has made the changes that are said to help a pod, to the objects.
func changedBy(t *rapid.T, c *facts.Cluster, pod string, h *Help) *facts.Cluster {
	after := *c
	after.Pods, after.NodePools, after.Refused = slices.Clone(c.Pods), slices.Clone(c.NodePools), map[string][]v1alpha1.RefusedOffering{}
	for class, all := range c.Refused {
		after.Refused[class] = slices.DeleteFunc(slices.Clone(all), func(r v1alpha1.RefusedOffering) bool { return h.At != nil && !r.NotBefore.After(*h.At) })
	}
	if (h.At == nil) == (len(h.Changes) == 0) {
		t.Fatalf("nobody knows how to do %+v", h)
	}
	for _, change := range h.Changes {
		if i := slices.IndexFunc(after.NodePools, func(np karpv1.NodePool) bool { return np.Name == change.NodePool }); i >= 0 {
			after.NodePools[i] = *after.NodePools[i].DeepCopy()
			change.ApplyToNodePool(&after.NodePools[i])
			if change.Action == Reopen {
				after.NodePools[i].Status.Conditions = nil
			}
			continue
		}
		i := slices.IndexFunc(after.Pods, func(p corev1.Pod) bool { return facts.PodName(&p) == pod })
		after.Pods[i] = *after.Pods[i].DeepCopy()
		change.ApplyTo(&after.Pods[i])
	}
	return &after
}

// TestWhatWouldHelpHelps checks that a pod which is said to have a place has one in a plan that passes the check, and that each change which would help gives the pod a place
// when it is made to the objects.
func TestWhatWouldHelpHelps(t *testing.T) {
	properties.Check(func(t *rapid.T) {
		c := drawn(t)
		x := explainer(c)
		now := x.planned()
		if err := check.Plan(now.view.Snapshot, now.plan); err != nil {
			t.Fatal(err)
		}
		for _, pod := range c.Pods {
			if pod.Spec.NodeName != "" || !strings.HasSuffix(pod.Name, "-000") && rapid.IntRange(0, 9).Draw(t, "asked") > 0 {
				continue // Pods of a workload mostly have the same answer.
			}
			got, err := x.Pod(pod.Namespace, pod.Name)
			if err != nil {
				t.Fatal(err)
			}
			if placed := now.refusal(got.Pod) == nil; placed == (got.State == PodWaits) {
				t.Fatalf("%s is %s, and the plan places it: %t", got.Pod, got.State, placed)
			}
			helps, admitted := []*Help{got.Help}, false
			for i, p := range got.Pools {
				admits := now.view.Admits(&now.view.Pools[i], &pod) == nil
				if admitted = admitted || admits; admits && p.Reason == planner.ReasonNoPool {
					t.Fatalf("NodePool %s admits %s and is said not to: %s", p.NodePool, got.Pod, p.Message)
				}
				helps = append(helps, p.Help)
				if p.Reason == "" || p.Message == "" {
					t.Fatalf("NodePool %s gives no reason for %s", p.NodePool, got.Pod)
				}
			}
			if admitted && got.Reason == planner.ReasonNoPool {
				t.Fatalf("a NodePool admits %s, and none is said to: %s", got.Pod, got.Message)
			}
			for _, h := range helps {
				if h == nil {
					continue
				}
				after := plan(snapshot.Build(changedBy(t, c, got.Pod, h)))
				if why := after.refusal(got.Pod); why != nil {
					t.Fatalf("%q on %q does not help %s: %s", h.Change, h.On, got.Pod, why.Message)
				}
			}
		}
	})(t)
}

// BenchmarkExplain answers one question about a cluster that was just read.
func BenchmarkExplain(b *testing.B) {
	for _, nodes := range []int{100, 1_000, 5_000} {
		c := Large(nodes)
		limited(v1alpha1.ResourceGPU, "1")(c)
		c.Pods = append(c.Pods, Pod("too-large", Asking("cpu", "60", v1alpha1.ResourceGPUShared, "1")), Pod("does-not-tolerate", Tolerating(), Asking("cpu", "3", v1alpha1.ResourceGPUShared, "9")))
		running := c.Pods[slices.IndexFunc(c.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName != "" && facts.GPURequestOf(&p).Replicas > 0 })]
		for name, ask := range map[string]func(*Explainer) error{
			"pod too large":        func(x *Explainer) error { _, err := x.Pod("default", "too-large"); return err },
			"pod not tolerating":   func(x *Explainer) error { _, err := x.Pod("default", "does-not-tolerate"); return err },
			"pod that runs":        func(x *Explainer) error { _, err := x.Pod(running.Namespace, running.Name); return err },
			"node":                 func(x *Explainer) error { _, err := x.Node(running.Spec.NodeName); return err },
			"index and view alone": func(x *Explainer) error { x.view(); return nil },
			"plan alone":           func(x *Explainer) error { x.planned(); return nil },
		} {
			b.Run(fmt.Sprintf("%s/%d nodes", name, nodes), func(b *testing.B) {
				for b.Loop() {
					if err := ask(explainer(c)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
