package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/rollout"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// soaking returns a rollout whose candidate is being watched on a canary node.
func soaking() *v1alpha1.GPUImageRollout {
	image := func(name, id string) v1alpha1.GPUImage {
		return v1alpha1.GPUImage{Release: name, Images: []v1alpha1.ArchitectureImage{{Architecture: "amd64", ID: id}}}
	}
	current := image("v20261015", "ami-1")
	return &v1alpha1.GPUImageRollout{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu", Generation: 1},
		Spec: v1alpha1.GPUImageRolloutSpec{
			NodeClassRef: v1alpha1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "gpu"},
			Image:        v1alpha1.ImageNewest, Promotion: v1alpha1.PromotionAutomatic, Soak: "1h", CanaryTimeout: "10m",
		},
		Status: v1alpha1.GPUImageRolloutStatus{
			ObservedGeneration: 1, Step: v1alpha1.StepSoaking, StepSince: &metav1.Time{Time: noon.Add(-12 * time.Minute)}, Current: &current,
			Candidate: &v1alpha1.CandidateImage{Image: image("v20261112", "ami-2")}, Canary: &v1alpha1.CanaryNode{Name: "karve-canary-1", Node: "ip-10-0-1-7"},
			Good: []v1alpha1.GPUImage{current, image("v20260901", "ami-0")}, Nodes: 8, NodesUpdated: 8,
			Distrusted: []v1alpha1.DistrustedImage{{Image: image("v20261101", "ami-3"), Reason: "CheckFailed", Message: "the GPU check failed", Since: metav1.NewTime(noon.Add(-240 * time.Hour))}},
			Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionTrue, Reason: "Soaking", Message: "v20261112 runs well on node ip-10-0-1-7, which is watched until 2026-11-23T12:48:00Z"},
				{Type: v1alpha1.ConditionDegraded, Status: metav1.ConditionFalse, Reason: "AsWanted"},
			},
		},
	}
}

func rolloutsOf(t *testing.T, objects ...client.Object) connection {
	t.Helper()
	scheme, err := gather.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return connection{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()}
}

func TestTheStatusOfRolloutsIsShown(t *testing.T) {
	t.Parallel()
	fresh := &v1alpha1.GPUImageRollout{ObjectMeta: metav1.ObjectMeta{Name: "a-new-one", Generation: 1}, Spec: soaking().Spec}
	fresh.Spec.Promotion = v1alpha1.PromotionPaused
	c := rolloutsOf(t, soaking(), fresh)
	for name, want := range map[string]string{
		"": `
NAME        NODECLASS   CURRENT     CANDIDATE   STEP      SINCE   UPDATED   PROMOTION   PROBLEM
a-new-one   gpu         -           -           -         -       -         Paused      no
gpu         gpu         v20261015   v20261112   Soaking   12m     8 of 8    Automatic   no
`,
		"gpu": `
NAME   NODECLASS   CURRENT     CANDIDATE   STEP      SINCE   UPDATED   PROMOTION   PROBLEM
gpu    gpu         v20261015   v20261112   Soaking   12m     8 of 8    Automatic   no

STEP      STATE
Testing   done    check a GPU with v20261112 on canary node ip-10-0-1-7
Soaking   now     watch the canary node for 1h
Waiting   later   wait for a window
Rolling   later   replace the nodes as their NodePools' budgets allow

Now          v20261112 runs well on node ip-10-0-1-7, which is watched until 2026-11-23T12:48:00Z
Distrusted   v20261101 since 2026-11-13T12:00:00Z: the GPU check failed
`,
		"a-new-one": `
NAME        NODECLASS   CURRENT   CANDIDATE   STEP   SINCE   UPDATED   PROMOTION   PROBLEM
a-new-one   gpu         -         -           -      -       -         Paused      no

Now   the controller has not seen it yet; it needs imageRollouts.enabled=true in the chart
`,
	} {
		var out bytes.Buffer
		err := c.rolloutList(t.Context(), &out, output{}, noon)
		if name != "" {
			out.Reset()
			err = c.rolloutStatus(t.Context(), &out, name, output{}, noon)
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), out.String()); diff != "" {
			t.Errorf("%q (-want +got):\n%s", name, diff)
		}
	}
	var wide, data, none bytes.Buffer
	if err := c.rolloutList(t.Context(), &wide, output{format: "wide"}, noon); err != nil || !strings.Contains(wide.String(), "WAITS FOR") || !strings.Contains(wide.String(), "is watched until") {
		t.Errorf("%v: %s", err, &wide)
	}
	if err := c.rolloutStatus(t.Context(), &data, "gpu", output{format: "yaml"}, noon); err != nil || !strings.Contains(data.String(), "candidate: v20261112\n") || !strings.Contains(data.String(), "updated: 8\n") {
		t.Errorf("%v: %s", err, &data)
	}
	if err := rolloutsOf(t).rolloutList(t.Context(), &none, output{}, noon); err != nil || none.String() != "There are no GPUImageRollouts.\n" {
		t.Errorf("%v: %s", err, &none)
	}
}

func TestARolloutIsEditedOnlyIfThatMakesSense(t *testing.T) {
	t.Parallel()
	c := rolloutsOf(t, soaking())
	var out bytes.Buffer
	if err := c.editRollout(t.Context(), &out, "gpu", rollout.Promote); err != nil || out.String() != "gpuimagerollout/gpu v20261112 is promoted now, without the rest of the soak and outside windows\n" {
		t.Errorf("%v: %s", err, &out)
	}
	out.Reset()
	if err := c.editRollout(t.Context(), &out, "gpu", rollout.Resume); err == nil || err.Error() != "GPUImageRollout gpu is not paused" || out.Len() > 0 {
		t.Errorf("%v: %s", err, &out)
	}
	if err := c.editRollout(t.Context(), &out, "other", rollout.Pause); err == nil || !strings.HasPrefix(err.Error(), `no GPUImageRollout is named "other": kubectl karve rollout status lists`) {
		t.Error(err)
	}
	r, err := c.rollout(t.Context(), "gpu")
	if err != nil {
		t.Fatal(err)
	}
	want := soaking().Spec
	if want.PromoteNow = "v20261112"; !cmp.Equal(want, r.Spec) || r.Status.Step != v1alpha1.StepSoaking {
		t.Errorf("the spec is %+v", r.Spec)
	}
}

func TestARolloutThatSomebodyElseEditsIsNotOverwritten(t *testing.T) {
	t.Parallel()
	c := rolloutsOf(t, soaking())
	out := bytes.Buffer{}
	err := c.editRollout(t.Context(), &out, "gpu", func(r *v1alpha1.GPUImageRollout) (string, error) {
		other := r.DeepCopy()
		other.Spec.Soak = "5h"
		if err := c.Update(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		return rollout.Pause(r)
	})
	if err == nil || err.Error() != "GPUImageRollout gpu was changed at the same time: run the command again" || out.Len() > 0 {
		t.Errorf("%v: %s", err, &out)
	}
}

func TestOneRolloutIsNamed(t *testing.T) {
	for _, args := range [][]string{{"rollout", "pause"}, {"rollout", "undo", "a", "b"}} {
		var out, errOut bytes.Buffer
		if status := run(t.Context(), args, streams{strings.NewReader(""), &out, &errOut}); status != 1 || !strings.Contains(errOut.String(), "error: name one GPUImageRollout, not ") {
			t.Errorf("%v: status %d, %s", args, status, &errOut)
		}
	}
}
