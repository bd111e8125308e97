package render_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

// A canary must be like any other machine of its pool. Otherwise its result says nothing about them.
func TestCanaryMatchesPoolButAdmitsNoPods(t *testing.T) {
	t.Parallel()
	c := cluster()
	view := snapshot.Build(c)
	rollout := &v1alpha1.GPUImageRollout{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	claim := render.Canary(&view.Pools[0], view.Offerings[0], rollout, "karve-canary-1", 2*time.Hour)

	template, o := &c.NodePools[0].Spec.Template, view.Offerings[0]
	if ref := claim.Spec.NodeClassRef; ref.Name != "karve-canary-1" || ref.Group != "karpenter.k8s.aws" || ref.Kind != "EC2NodeClass" {
		t.Errorf("it names the node class %+v, want one of its own", ref)
	}
	for key, want := range map[string]string{
		karpv1.NodePoolLabelKey: "gpu-shared", v1alpha1.GPUNodeClassLabel: "gpu-shared", v1alpha1.CanaryLabel: "gpu", "owner": "ml", "team": o.CustomLabels["team"],
	} {
		if got := claim.Labels[key]; got != want {
			t.Errorf("label %s is %q, want %q", key, got, want)
		}
	}
	if p := facts.PromiseOf(claim.Annotations); p.Resource != v1alpha1.ResourceGPUShared || p.ReplicasPerGPU != 10 || p.GPUs != o.Type.GPU.Count {
		t.Errorf("it promises %+v", p)
	}
	has := func(taints []corev1.Taint, key string) bool {
		return slices.ContainsFunc(taints, func(taint corev1.Taint) bool { return taint.Key == key })
	}
	if !has(claim.Spec.Taints, v1alpha1.CanaryTaintKey) || !has(claim.Spec.Taints, template.Spec.Taints[0].Key) {
		t.Errorf("taints are %v, want the pool's and its own", claim.Spec.Taints)
	}
	if !has(claim.Spec.StartupTaints, "cilium") || has(claim.Spec.StartupTaints, v1alpha1.ReplicasNotReadyTaintKey) {
		t.Errorf("startup taints are %v, want the pool's alone: nobody admits pods to a canary", claim.Spec.StartupTaints)
	}
	for key, want := range map[string]string{
		corev1.LabelInstanceTypeStable: o.Type.Name, corev1.LabelTopologyZone: o.Zone, karpv1.CapacityTypeLabelKey: o.CapacityType,
	} {
		if !slices.ContainsFunc(claim.Spec.Requirements, func(r karpv1.NodeSelectorRequirementWithMinValues) bool {
			return r.Key == key && slices.Equal(r.Values, []string{want})
		}) {
			t.Errorf("it does not ask for %s alone, %s", key, want)
		}
	}
	if d := claim.Spec.ExpireAfter.Duration; d == nil || *d != 2*time.Hour || claim.Spec.TerminationGracePeriod == nil {
		t.Errorf("it expires after %v and may drain for %v", d, claim.Spec.TerminationGracePeriod)
	}
	requests := claim.Spec.Resources.Requests
	if len(requests) != 2 || requests.Cpu().MilliValue() != o.Daemons.MilliCPU+100 || requests.Memory().Value() != o.Daemons.MemoryBytes+256<<20 {
		t.Errorf("it asks for %v, want what its DaemonSets and the check do", requests)
	}
	if !facts.IsCanary(claim) || facts.IsOurClaim(claim) {
		t.Error("the canary counts as a machine for pods")
	}
	claim.Spec.Taints[0].Key = "changed"
	if template.Spec.Taints[0].Key == "changed" {
		t.Error("the canary shares its taints slice with the NodePool, which belongs to a cache")
	}
}
