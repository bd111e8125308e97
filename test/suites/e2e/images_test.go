package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// canaryTimeout is the shortest timeout that the API allows.
const canaryTimeout = time.Minute

// images creates the rollout of the scene's EC2NodeClass. It promotes at any time, after a soak of five seconds.
func (s *scene) images() {
	s.t.Helper()
	s.create(&v1alpha1.GPUImageRollout{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Spec: v1alpha1.GPUImageRolloutSpec{
		NodeClassRef: v1alpha1.NodeClassReference{Group: cloud, Kind: cloudKind, Name: s.name},
		Soak:         "5s", CanaryTimeout: canaryTimeout.String(), Windows: []v1alpha1.PromotionWindow{},
		Check: v1alpha1.GPUCheck{Image: "example.com/check"},
	}})
}

func (s *scene) rollout() *v1alpha1.GPUImageRollout {
	s.t.Helper()
	r := &v1alpha1.GPUImageRollout{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	if err := s.api.Get(s.t.Context(), client.ObjectKeyFromObject(r), r); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// untilRollout waits until the rollout satisfies the predicate. Meanwhile it makes the container of each running check succeed.
func (s *scene) untilRollout(within time.Duration, what string, is func(*v1alpha1.GPUImageRollout) bool) *v1alpha1.GPUImageRollout {
	s.t.Helper()
	var r *v1alpha1.GPUImageRollout
	s.until(within, what, func() (bool, string) {
		s.endChecks()
		r = s.rollout()
		var says []string
		for _, c := range r.Status.Conditions {
			says = append(says, fmt.Sprintf("%s=%s %s %s", c.Type, c.Status, c.Reason, c.Message))
		}
		return is(r), fmt.Sprintf("%s, %d of %d nodes, canary %+v\n%s", r.Status.Step, r.Status.NodesUpdated, r.Status.Nodes, r.Status.Canary, strings.Join(says, "\n"))
	})
	return r
}

func (s *scene) endChecks() {
	s.t.Helper()
	var pods corev1.PodList
	s.list(&pods, client.InNamespace(karve.Checks), client.MatchingLabels{v1alpha1.CanaryLabel: s.name})
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Spec.NodeName == "" || pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
			continue
		}
		stored := pod.DeepCopy()
		pod.Status.Phase = corev1.PodSucceeded
		if err := s.api.Status().Patch(s.t.Context(), pod, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
			s.t.Fatal(err)
		}
	}
}

// pin returns the image IDs in the terms of the scene's EC2NodeClass; nil if not all terms are IDs.
func (s *scene) pin() []string {
	s.t.Helper()
	class := manifest(cloud+"/v1", cloudKind, s.name, nil)
	if err := s.api.Get(s.t.Context(), client.ObjectKeyFromObject(class), class); err != nil {
		s.t.Fatal(err)
	}
	terms, _, _ := unstructured.NestedSlice(class.Object, "spec", "amiSelectorTerms")
	var ids []string
	for _, t := range terms {
		id, ok := t.(map[string]any)["id"].(string)
		if !ok {
			return nil
		}
		ids = append(ids, id)
	}
	return ids
}

// machines returns the NodeClaims of the scene's pool except for canaries.
func (s *scene) machines() []karpv1.NodeClaim {
	s.t.Helper()
	var all karpv1.NodeClaimList
	s.list(&all, client.MatchingLabels{karpv1.NodePoolLabelKey: s.name})
	slices.SortFunc(all.Items, func(a, b karpv1.NodeClaim) int { return strings.Compare(a.Name, b.Name) })
	return slices.DeleteFunc(all.Items, func(c karpv1.NodeClaim) bool { return c.Labels[v1alpha1.CanaryLabel] != "" })
}

// untilNoCanary waits until nothing of a canary is left.
func (s *scene) untilNoCanary() {
	s.t.Helper()
	labeled := client.MatchingLabels{v1alpha1.CanaryLabel: s.name}
	s.until(enough, "nothing of the canary is left", func() (bool, string) {
		classes := &unstructured.UnstructuredList{}
		classes.SetAPIVersion(cloud + "/v1")
		classes.SetKind(cloudKind + "List")
		claims, pods := &karpv1.NodeClaimList{}, &corev1.PodList{}
		for _, l := range []client.ObjectList{classes, claims, pods} {
			s.list(l, labeled)
		}
		left := len(classes.Items) + len(claims.Items) + len(pods.Items)
		return left == 0, fmt.Sprintf("%d classes, %d claims, %d pods", len(classes.Items), len(claims.Items), len(pods.Items))
	})
}

// gpuImage returns the ID of the GPU image of a Bottlerocket release.
func (s *scene) gpuImage(release string) string {
	s.t.Helper()
	for _, i := range s.AWS().Images() {
		if i.Family == aws.Bottlerocket && i.Variant == aws.NVIDIA && i.Arch == "x86_64" && i.Version == release {
			return i.ID
		}
	}
	s.t.Fatalf("there is no release %s", release)
	return ""
}

// The images are Bottlerocket's because the node classes of the other tests use AL2023.
func TestGPUImageReachesNodesOnlyThroughCanary(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "images")
	s.patch(manifest(cloud+"/v1", cloudKind, s.name, nil), `{"spec": {"amiSelectorTerms": [{"alias": "bottlerocket@latest"}]}}`)
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{budget: "1", requirements: map[string]string{corev1.LabelArchStable: "amd64"}})
	s.deploy("inference", 20)
	s.untilRunning(20)
	before := s.machines()
	first := before[0].Status.ImageID
	if first == "" || len(before) != 2 {
		t.Fatalf("there are %d machines with the image %q", len(before), first)
	}

	// This release is bad: no agent serves replicas on it.
	s.AWS().PublishRelease(aws.Bottlerocket, "1.60.0")
	bad := s.gpuImage("1.60.0")
	w.rule(t, bad, "offer: none")
	s.images()
	s.untilRollout(enough, "a canary is launched", func(r *v1alpha1.GPUImageRollout) bool {
		return r.Status.Canary != nil && r.Status.Canary.Requested != nil
	})
	asked := s.rollout().Status.Canary.Requested.Time
	if pin := s.pin(); !slices.Equal(pin, []string{first}) {
		t.Errorf("the class is pinned to %v while a canary runs, want %s", pin, first)
	}
	r := s.untilRollout(canaryTimeout+enough, "the bad image is distrusted", func(r *v1alpha1.GPUImageRollout) bool { return len(r.Status.Distrusted) > 0 })
	verdict := r.Status.Distrusted[0]
	t.Logf("the verdict %s came %s after the canary was asked for", verdict.Reason, verdict.Since.Sub(asked))
	if took := verdict.Since.Sub(asked); took > canaryTimeout+time.Minute {
		t.Errorf("the verdict took %s, want %s and a minute at most", took, canaryTimeout)
	}
	if verdict.Reason != "ReplicasMissing" || verdict.Image.Images[0].ID != bad {
		t.Errorf("distrusted is %+v", verdict)
	}
	s.untilNoCanary()
	if pin := s.pin(); !slices.Equal(pin, []string{first}) {
		t.Errorf("the class is pinned to %v after the verdict, want %s", pin, first)
	}
	for i, m := range s.machines() {
		if m.Name != before[i].Name || !m.DeletionTimestamp.IsZero() {
			t.Errorf("machine %s of before the bad image is now %s", before[i].Name, m.Name)
		}
	}
	s.untilEvent("GPUImageRollout", s.name, "ImageDistrusted", "1.60.0", "0 of 10")

	// This release works. It is requested by name, because the controller asks AWS for releases only every quarter of an hour.
	s.AWS().PublishRelease(aws.Bottlerocket, "1.61.0")
	good := s.gpuImage("1.61.0")
	s.patch(&v1alpha1.GPUImageRollout{ObjectMeta: metav1.ObjectMeta{Name: s.name}}, `{"spec": {"image": "1.61.0"}}`)
	s.untilRollout(2*enough, "the good image is promoted", func(r *v1alpha1.GPUImageRollout) bool {
		return r.Status.Current.Release == "1.61.0" && r.Status.Replaced == nil
	})
	if pin := s.pin(); !slices.Equal(pin, []string{good}) {
		t.Errorf("the class is pinned to %v after the promotion, want %s", pin, good)
	}
	for _, event := range []string{"CanaryPassed", "CanarySoaked", "Promoted"} {
		s.untilEvent("GPUImageRollout", s.name, event)
	}
	s.untilNoCanary()
	r = s.untilRollout(4*enough, "all nodes run the good image", func(r *v1alpha1.GPUImageRollout) bool { return r.Status.Step == v1alpha1.StepSettled })
	for _, m := range s.machines() {
		if m.DeletionTimestamp.IsZero() && m.Status.ImageID != good {
			t.Errorf("%s runs %s, want %s", m.Name, m.Status.ImageID, good)
		}
	}
	s.untilRunning(20)
	if r.Status.NodesUpdated != r.Status.Nodes || r.Status.Nodes < 2 || !meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("status is %+v", r.Status)
	}

	// One field rolls the image back.
	release := r.Status.Good[len(r.Status.Good)-1].Release
	s.patch(&v1alpha1.GPUImageRollout{ObjectMeta: metav1.ObjectMeta{Name: s.name}}, fmt.Sprintf(`{"spec": {"image": %q}}`, release))
	s.untilRollout(enough, "the first image is pinned again", func(r *v1alpha1.GPUImageRollout) bool { return r.Status.Current.Release == release })
	s.until(enough, "the class has it", func() (bool, string) { return slices.Equal(s.pin(), []string{first}), fmt.Sprint(s.pin()) })
	s.delete(&v1alpha1.GPUImageRollout{ObjectMeta: metav1.ObjectMeta{Name: s.name}})
}
