package reconcile

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	localaws "karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
)

func TestDisabledRolloutIsReportedAndLeftAlone(t *testing.T) {
	w := newRollouts(t)
	before := w.terms()
	w.controller.Enabled = false
	w.reconcilesTimes(2)
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionDegraded} {
		if c := meta.FindStatusCondition(w.rollout.Status.Conditions, kind); c == nil || c.Reason != "ImageRolloutsDisabled" || !strings.Contains(c.Message, "imageRollouts.enabled=true") {
			t.Errorf("%s is %+v", kind, c)
		}
	}
	if diff := cmp.Diff(before, w.terms()); diff != "" {
		t.Errorf("the EC2NodeClass has changed: %s", diff)
	}
	if w.rollout.Status.Nodes != 2 {
		t.Errorf("it has %d nodes, want 2", w.rollout.Status.Nodes)
	}
	w.controller.Enabled = true
	w.reconcilesTimes(2)
	w.wantStep(v1alpha1.StepSettled)
}

func TestRolloutAdoptsClassWithCurrentImage(t *testing.T) {
	w := newRollouts(t)
	w.reconcilesTimes(2)
	w.wantPinned("v20260815")
	class := w.nodeClass("gpu")
	if family, _, _ := unstructured.NestedString(class.Object, "spec", "amiFamily"); family != "AL2023" {
		t.Errorf("amiFamily is %q, want AL2023 as in the replaced alias", family)
	}
	if a := class.GetAnnotations(); a[v1alpha1.ImageRolloutAnnotation] != "gpu" || a[v1alpha1.FormerSelectorTermsAnnotation] != `[{"alias":"al2023@latest"}]` {
		t.Errorf("annotations are %v", a)
	}
	w.wantStep(v1alpha1.StepSettled)
	w.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Pinned")
	if s := w.rollout.Status; s.Nodes != 2 || s.NodesUpdated != 2 || s.Current.Release != "v20260815" || s.Current.Created == nil {
		t.Errorf("status is %+v", s)
	}
	w.wantEvents(1, "Normal TakenOver")
	before := w.aws.Calls("GetParameter")
	w.reconcilesTimes(8)
	if calls := w.aws.Calls("GetParameter") - before; calls > 1 {
		t.Errorf("AWS was asked %d times in 40 seconds, with a refresh of a minute", calls)
	}
}

func TestHealthyImageReachesClassThroughCanary(t *testing.T) {
	w := newRelease(t, func(r *v1alpha1.GPUImageRollout) { r.Spec.Check.Command = []string{"check", "--gpu"} })
	claim := w.canary()

	shadow := w.nodeClass(claim.Name)
	if o := metav1.GetControllerOf(shadow); o == nil || o.UID != w.rollout.UID {
		t.Errorf("the canary's class is owned by %v", shadow.GetOwnerReferences())
	}
	if role, _, _ := unstructured.NestedString(shadow.Object, "spec", "role"); role != "node" {
		t.Errorf("the canary's class has the spec %v, want that of the class", shadow.Object["spec"])
	}
	if o := metav1.GetControllerOf(claim); o == nil || o.UID != w.rollout.UID {
		t.Errorf("the canary is owned by %v", claim.OwnerReferences)
	}
	if !slices.ContainsFunc(claim.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == v1alpha1.CanaryTaintKey }) ||
		claim.Labels[karpv1.NodePoolLabelKey] != "gpu" || claim.Labels[v1alpha1.CanaryLabel] != "gpu" || claim.Spec.NodeClassRef.Name != claim.Name {
		t.Errorf("the canary is %+v", claim)
	}
	if _, zone, capacityType := shape(claim); zone == "" || capacityType != karpv1.CapacityTypeOnDemand {
		t.Errorf("the canary is of zone %q and capacity type %q", zone, capacityType)
	}
	node := w.boots(claim, 0)
	w.reconcilesTimes(2)
	if pod := (&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: checks, Name: claim.Name}}); w.read(pod) {
		t.Error("the GPU is checked before its replicas are there")
	}
	w.exposes(node, 10)
	w.reconcilesTimes(2)
	pod := w.check(claim.Name)
	if c := pod.Spec.Containers[0]; c.Image != "check" || !slices.Equal(c.Command, []string{"check", "--gpu"}) || c.Resources.Limits.Name(v1alpha1.ResourceGPUShared, "").Value() != 1 {
		t.Errorf("the check is %+v", c)
	}
	w.forget() // A restart in between.
	pod.Status.Phase = corev1.PodSucceeded
	w.updateStatus(pod)
	w.reconcilesTimes(1)
	w.wantStep(v1alpha1.StepSoaking)
	w.clock.Step(29 * time.Minute)
	w.reconcilesTimes(1)
	w.wantStep(v1alpha1.StepSoaking)
	w.wantPinned("v20260815")
	w.clock.Step(time.Minute)
	w.reconcilesTimes(2)
	w.wantStep(v1alpha1.StepRolling)
	w.wantPinned("v20261112")
	w.wantNoCanary()
	if w.read(w.rollout); w.rollout.Status.Nodes != 2 || w.rollout.Status.NodesUpdated != 0 {
		t.Errorf("status is %+v, want none of two nodes updated", w.rollout.Status)
	}
	for _, name := range []string{"one", "two"} {
		old := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.read(old)
		w.delete(old)
		w.release(old)
		w.running(name + "-new")
	}
	w.reconcilesTimes(1)
	w.wantStep(v1alpha1.StepSettled)
	for _, event := range []string{"CanaryStarted", "CanaryPassed", "CanarySoaked", "Promoted", "RolledOut"} {
		if !slices.ContainsFunc(w.happened(), func(e string) bool { return strings.Contains(e, event) }) {
			t.Errorf("no event reports %s", event)
		}
	}
	if n := w.counted("karve_image_rollout_nodes_updated"); n != 2 {
		t.Errorf("the metric counts %v updated nodes", n)
	}
}

func TestBadImageNeverReachesClass(t *testing.T) {
	cluster.Long(t)
	w := newRelease(t)
	claim := w.canary()
	w.boots(claim, 9)
	began := w.clock.Now()
	for len(w.rollout.Status.Distrusted) == 0 {
		w.reconcilesTimes(1)
		if w.clock.Since(began) > 11*time.Minute {
			t.Fatalf("no verdict after %s: %+v", w.clock.Since(began), w.rollout.Status)
		}
	}
	if d := w.rollout.Status.Distrusted[0]; d.Reason != "ReplicasMissing" || d.Image.Release != "v20261112" || !strings.Contains(d.Message, "9 of 10") {
		t.Errorf("distrusted is %+v", d)
	}
	w.wantPinned("v20260815")
	w.wantNoCanary()
	w.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, "ImageDistrusted")
	w.forget()
	w.clock.Step(time.Hour)
	w.reconcilesTimes(5)
	w.wantStep(v1alpha1.StepSettled)
	w.wantNoCanary()
}

func TestRefusedCanaryIsLaunchedElsewhere(t *testing.T) {
	w := newRelease(t)
	first := w.canary()
	w.delete(first) // Karpenter deletes it because the launch was refused.
	w.reconcilesTimes(1)
	if c := w.rollout.Status.Candidate; w.rollout.Status.Canary != nil || c == nil || c.Attempts != 1 {
		t.Fatalf("status is %+v", w.rollout.Status)
	}
	w.clock.Step(time.Minute)
	second := w.canary()
	typeA, zoneA, _ := shape(first)
	typeB, zoneB, _ := shape(second)
	if second.Name == first.Name || typeA == typeB && zoneA == zoneB {
		t.Errorf("the second canary is %s, %s in %s, after %s, %s in %s", second.Name, typeB, zoneB, first.Name, typeA, zoneA)
	}
}

func TestOrphanedCanaryIsRemoved(t *testing.T) {
	w := newRelease(t)
	w.boots(w.canary(), 10)
	w.reconcilesTimes(2)
	if c := w.check(w.rollout.Status.Canary.Name).Spec.Containers[0]; c.Image != "check" || !slices.Equal(c.Args, []string{"check"}) || c.Command != nil {
		t.Errorf("without a check of its own it is %+v", c)
	}
	w.rollout.Status.Canary, w.rollout.Status.Candidate = nil, nil
	w.updateStatus(w.rollout)
	w.aws.Cut("SSM")
	w.forget()
	w.reconcilesTimes(1)
	w.wantNoCanary()
}

func TestAWSFaultIsReportedAndLastGoodImageIsKept(t *testing.T) {
	for fault, c := range map[string]struct {
		begin  func(*localaws.Server)
		reason string
	}{
		"denied":    {func(s *localaws.Server) { s.Deny("SSM") }, "AWSAccessDenied"},
		"throttled": {func(s *localaws.Server) { s.Throttle("DescribeImages") }, "AWSThrottled"},
		"cut off":   {func(s *localaws.Server) { s.Cut("SSM") }, "AWSUnreachable"},
	} {
		t.Run(fault, func(t *testing.T) {
			w := newRelease(t)
			c.begin(w.aws)
			w.reconcilesTimes(3)
			w.wantPinned("v20260815")
			w.wantStep(v1alpha1.StepSettled)
			w.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, c.reason)
			w.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Pinned")
			w.aws.Heal()
			w.clock.Step(time.Minute)
			w.canary()
			w.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, "AsWanted")
		})
	}
}

func TestClassWithDeletedImageIsPinnedToLastGoodOne(t *testing.T) {
	w := promoted(t)
	gone := w.image("v20261112")
	w.aws.RemoveImage(gone)
	w.resolveImages()
	w.clock.Step(time.Minute)
	w.reconcilesTimes(2)
	w.wantPinned("v20260815")
	if told := strings.Join(w.events(), "\n"); !strings.Contains(told, "RollingBack") || !strings.Contains(told, gone) {
		t.Errorf("told\n%s\nwant the id of the image that is gone", told)
	}
}

func TestClassWithoutImageGetsNextOneThatPassesCheck(t *testing.T) {
	w := newRollouts(t, func(r *v1alpha1.GPUImageRollout) {
		r.Spec.Windows, r.Spec.Soak = []v1alpha1.PromotionWindow{{Schedule: "0 0 1 1 *", Duration: "1h"}}, "24h"
	})
	w.reconcilesTimes(2)
	gone := w.image("v20260815")
	w.aws.RemoveImage(gone)
	w.resolveImages()
	w.clock.Step(time.Minute)
	w.reconcilesTimes(2)
	w.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, "ImageNotFound")
	w.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, "ImageNotFound")
	if c := meta.FindStatusCondition(w.rollout.Status.Conditions, v1alpha1.ConditionDegraded); !strings.Contains(c.Message, gone) {
		t.Errorf("the message is %q, want the id of the image that is gone", c.Message)
	}

	w.clock.Step(time.Minute)
	w.aws.PublishRelease(localaws.AL2023, "v20261112")
	w.passes(w.canary())
	w.reconcilesTimes(4)
	w.wantPinned("v20261112")
	w.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Pinned")
}

func TestDeletedImageIsNotPinned(t *testing.T) {
	w := promoted(t)
	w.aws.RemoveImage(w.image("v20260815"))
	w.rollout.Spec.Image = "v20260815"
	w.update(w.rollout)
	w.reconcilesTimes(3)
	w.wantPinned("v20261112")
	w.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, "ImageNotFound")
}

func TestDeletedEC2NodeClassIsReportedAndCanaryRemoved(t *testing.T) {
	w := newRelease(t)
	w.boots(w.canary(), 10)
	w.reconcilesTimes(1)
	w.delete(w.nodeClass("gpu"))
	w.reconcilesTimes(1)
	w.wantStep(v1alpha1.StepPending)
	w.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, "NodeClassNotFound")
	w.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, "NodeClassNotFound")
	w.wantNoCanary()
}

func TestSecondRolloutOfClassIsRefused(t *testing.T) {
	w := newRollouts(t)
	w.reconcilesTimes(2)
	second := &v1alpha1.GPUImageRollout{ObjectMeta: metav1.ObjectMeta{Name: "second"}, Spec: v1alpha1.GPUImageRolloutSpec{NodeClassRef: innerClass}}
	w.create(second)
	w.reconciles(w.controller, "second")
	w.read(second)
	if c := meta.FindStatusCondition(second.Status.Conditions, v1alpha1.ConditionAccepted); c == nil || c.Reason != "NodeClassTaken" || !strings.Contains(c.Message, "GPUImageRollout gpu") {
		t.Errorf("Accepted is %+v", c)
	}
	w.reconcilesTimes(1)
	w.wantCondition(v1alpha1.ConditionAccepted, metav1.ConditionTrue, "Accepted")
	w.delete(w.rollout)
	w.reconciles(w.controller, "second")
	w.reconciles(w.controller, "second")
	if a := w.nodeClass("gpu").GetAnnotations()[v1alpha1.ImageRolloutAnnotation]; a != "second" {
		t.Errorf("the class belongs to %q", a)
	}
}

func TestClassUsedByOtherNodePoolsIsLeftAlone(t *testing.T) {
	w := newRollouts(t)
	stock := snapshottest.KarpenterPool("cpu", budget("100%"))
	stock.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	w.create(&stock)
	w.reconcilesTimes(2)
	w.wantCondition(v1alpha1.ConditionAccepted, metav1.ConditionFalse, "NodeClassShared")
	if terms := w.terms(); terms[0].(map[string]any)["alias"] != "al2023@latest" {
		t.Errorf("the class was changed: %v", terms)
	}
}

func TestImageOfOtherArchitectureIsNotTested(t *testing.T) {
	w := newRollouts(t)
	w.reconcilesTimes(2)
	for _, i := range w.aws.Images() {
		if i.Variant == localaws.NVIDIA && i.Arch == "arm64" && i.Family == localaws.AL2023 {
			w.rollout.Spec.Image = i.ID
		}
	}
	w.update(w.rollout)
	w.reconcilesTimes(3)
	w.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, "ArchitectureMissing")
	w.wantPinned("v20260815")
	w.wantNoCanary()
}

func TestPromotedImageWhoseNodesFailIsRolledBack(t *testing.T) {
	w := newRelease(t)
	w.passes(w.canary())
	w.reconcilesTimes(1)
	w.clock.Step(30 * time.Minute)
	w.reconcilesTimes(3)
	w.wantPinned("v20261112")
	broken := w.claim("broken", w.pool, snapshottest.Registered(w.clock.Now()), func(c *karpv1.NodeClaim) { c.Status.ImageID = w.image("v20261112") })
	w.node(broken, 0)
	w.clock.Step(replicasTimeout)
	w.delete(broken) // The readiness controller may delete it before the rollout controller runs.
	w.reconcilesTimes(2)
	w.wantPinned("v20260815")
	if d := w.rollout.Status.Distrusted; len(d) != 1 || d[0].Reason != "NodesFailing" || !strings.Contains(d[0].Message, "broken") {
		t.Errorf("distrusted is %+v", d)
	}
	w.wantEvents(1, "Warning RollingBack")
}

func TestManualClassChangeIsNotReverted(t *testing.T) {
	w := newRollouts(t)
	w.reconcilesTimes(2)
	class := w.nodeClass("gpu")
	if err := unstructured.SetNestedSlice(class.Object, []any{map[string]any{"id": w.image("v20260801")}}, "spec", "amiSelectorTerms"); err != nil {
		t.Fatal(err)
	}
	w.update(class)
	w.reconcilesTimes(3)
	w.wantPinned("v20260801")
	w.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, "NodeClassChanged")
	class = w.nodeClass("gpu")
	class.SetAnnotations(nil)
	w.update(class)
	w.reconcilesTimes(3)
	w.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Pinned")
	if w.rollout.Status.Current.Release != "v20260801" {
		t.Errorf("current is %+v", w.rollout.Status.Current)
	}
}

func TestUnhealthyPoolGetsNoCanary(t *testing.T) {
	w := newRollouts(t)
	w.reconcilesTimes(2)
	w.read(w.pool)
	w.pool.Status.Conditions = append(w.pool.Status.Conditions, status.Condition{
		Type: v1alpha1.ConditionReplicasHealthy, Status: metav1.ConditionFalse, Reason: "ReplicasMissing", LastTransitionTime: metav1.NewTime(w.clock.Now()),
	})
	w.updateStatus(w.pool)
	w.clock.Step(time.Hour)
	w.aws.PublishRelease(localaws.AL2023, "v20261112")
	w.reconcilesTimes(4)
	w.wantStep(v1alpha1.StepTesting)
	w.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, "NoCanaryMachine")
	w.wantNoCanary()
}
