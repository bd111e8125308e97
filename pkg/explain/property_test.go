package explain

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/internal/properties"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// drawn draws a cluster with up to three pools, machines, refusals and waiting pods.
func drawn(t *rapid.T) *snapshot.Cluster {
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
	for i := range rapid.IntRange(1, 4).Draw(t, "workloads") {
		edits := []func(*corev1.Pod){Asking("cpu", rapid.SampledFrom([]string{"300m", "3", "60"}).Draw(t, "cpu"), "memory", "1Gi", v1alpha1.ResourceGPUShared, rapid.SampledFrom([]string{"1", "2", "50"}).Draw(t, "replicas"))}
		switch rapid.IntRange(0, 5).Draw(t, "wish") {
		case 0:
			edits = append(edits, Tolerating())
		case 1:
			edits = append(edits, Selecting("team", "a"))
		case 2:
			edits = append(edits, GPUMemory(rapid.SampledFrom([]string{"4Gi", "40Gi"}).Draw(t, "gpu memory")))
		case 3:
			edits = append(edits, Selecting(corev1.LabelTopologyZone, rapid.SampledFrom([]string{Zones[1], "elsewhere"}).Draw(t, "zone")))
		case 4:
			edits = append(edits, WithLabels("app", fmt.Sprint(i)), func(p *corev1.Pod) {
				p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
					{TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}},
				}}}
			})
		}
		c.Pods = append(c.Pods, Pods(fmt.Sprintf("w%d", i), rapid.IntRange(1, 12).Draw(t, "pods"), edits...)...)
	}
	return c
}

// changedBy returns the cluster after a person has made a change, by its words and the pod that it describes.
func changedBy(t *rapid.T, c *snapshot.Cluster, h *Help) *snapshot.Cluster {
	after := *c
	after.Pods, after.NodePools, after.Refused = slices.Clone(c.Pods), slices.Clone(c.NodePools), map[string][]v1alpha1.RefusedOffering{}
	for class, all := range c.Refused {
		after.Refused[class] = slices.DeleteFunc(slices.Clone(all), func(r v1alpha1.RefusedOffering) bool { return h.At != nil && !r.NotBefore.After(*h.At) })
	}
	if name, ok := strings.CutPrefix(h.On, "NodePool "); ok {
		i := slices.IndexFunc(after.NodePools, func(np karpv1.NodePool) bool { return np.Name == name })
		np := after.NodePools[i].DeepCopy()
		for part := range strings.SplitSeq(strings.TrimPrefix(h.Change, "limits "), ", ") {
			key, value, _ := strings.Cut(part, ": ")
			np.Spec.Limits[corev1.ResourceName(key)] = resource.MustParse(value)
		}
		after.NodePools[i] = *np
		return &after
	}
	if h.On == "pod" {
		i := slices.IndexFunc(after.Pods, func(p corev1.Pod) bool { return p.Name == h.edit.pod.Name })
		after.Pods[i] = *h.edit.pod
		return &after
	}
	if h.At == nil {
		t.Fatalf("nobody knows how to do %+v", h)
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
			helps := []*Help{got.Help}
			for _, p := range got.Pools {
				helps = append(helps, p.Help)
				if p.Reason == "" || p.Message == "" {
					t.Fatalf("NodePool %s gives no reason for %s", p.NodePool, got.Pod)
				}
			}
			for _, h := range helps {
				if h == nil {
					continue
				}
				after := plan(snapshot.Build(changedBy(t, c, h)))
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
		running := c.Pods[slices.IndexFunc(c.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName != "" && snapshot.GPURequestOf(&p).Replicas > 0 })]
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
