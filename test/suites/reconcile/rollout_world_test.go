package reconcile

import (
	"context"
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
	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/cloud/aws/images"
	"karve.sh/karve/pkg/controllers/rollout"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	localaws "karve.sh/karve/test/harness/aws"
)

// checks is the namespace where GPUs are checked. It admits only restricted pods.
const checks = "karve-checks"

// rollouts is a world with a local AWS and a rollout of the images of the EC2NodeClass gpu, which two nodes use.
type rollouts struct {
	*world
	aws        *localaws.Server
	controller *rollout.Controller
	rollout    *v1alpha1.GPUImageRollout
	pool       *karpv1.NodePool
}

func newRollouts(t *testing.T, edits ...func(*v1alpha1.GPUImageRollout)) *rollouts {
	t.Helper()
	w := &rollouts{world: newWorld(t)}
	var err error
	if w.aws, err = localaws.Start(t.Context(), localaws.Config{}); err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: checks, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if err := w.Create(t.Context(), ns); err != nil && !strings.Contains(err.Error(), "already exists") {
		t.Fatal(err)
	}
	for _, o := range []client.Object{&v1alpha1.GPUImageRollout{}, &corev1.Pod{}} {
		if err := w.DeleteAllOf(t.Context(), o, client.InNamespace(checks), client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	w.pool = w.shared("gpu")
	w.resolveImages()
	for _, name := range []string{"one", "two"} {
		w.running(name)
	}
	w.rollout = &v1alpha1.GPUImageRollout{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec:       v1alpha1.GPUImageRolloutSpec{NodeClassRef: innerClass, Windows: []v1alpha1.PromotionWindow{}, Soak: "30m"},
	}
	for _, edit := range edits {
		edit(w.rollout)
	}
	w.create(w.rollout)
	w.forget()
	return w
}

// newRelease returns newRollouts one hour after the class was pinned, with a newly published image.
func newRelease(t *testing.T, edits ...func(*v1alpha1.GPUImageRollout)) *rollouts {
	t.Helper()
	w := newRollouts(t, edits...)
	w.reconcilesTimes(2)
	w.clock.Step(time.Hour)
	w.aws.PublishRelease(localaws.AL2023, "v20261112")
	return w
}

// forget restarts the controller. Only the state in the API remains.
func (w *rollouts) forget() {
	w.controller = rollout.New(rollout.Config{
		Enabled: true,
		Client:  w.WithWatch, Live: w.WithWatch, Mapper: w.RESTMapper(), Gatherer: w.gatherer, Metrics: w.metrics, Recorder: w.recorder, Clock: w.clock,
		Images: &images.Source{
			Load: func(context.Context) (*api.Clients, error) { return api.New(localaws.ClientConfig(w.aws.URL)), nil }, Now: w.clock.Now,
		},
		KubernetesVersion: func() (string, error) { return "1.37", nil },
		Namespace:         checks, CheckImage: "check", Refresh: time.Minute,
	})
}

// image returns the ID of the amd64 GPU image of a release.
func (w *rollouts) image(version string) string {
	w.t.Helper()
	for _, i := range w.aws.Images() {
		if i.Family == localaws.AL2023 && i.Variant == localaws.NVIDIA && i.Arch == "x86_64" && i.Version == version {
			return i.ID
		}
	}
	w.t.Fatalf("there is no release %s", version)
	return ""
}

func (w *rollouts) nodeClass(name string) *unstructured.Unstructured {
	class := w.inner(name, nil)
	w.read(class)
	return class
}

// terms returns spec.amiSelectorTerms.
func (w *rollouts) terms() []any {
	w.t.Helper()
	terms, _, err := unstructured.NestedSlice(w.nodeClass("gpu").Object, "spec", "amiSelectorTerms")
	if err != nil {
		w.t.Fatal(err)
	}
	return terms
}

func (w *rollouts) wantPinned(version string) {
	w.t.Helper()
	terms := w.terms()
	if len(terms) != 1 || terms[0].(map[string]any)["id"] != w.image(version) {
		w.t.Fatalf("the class has the terms %v, want the id of %s, %s", terms, version, w.image(version))
	}
}

// resolveImages resolves the images of every EC2NodeClass as Karpenter does, and sets it ready.
func (w *rollouts) resolveImages() {
	w.t.Helper()
	var classes unstructured.UnstructuredList
	classes.SetAPIVersion("karpenter.k8s.aws/v1")
	classes.SetKind("EC2NodeClassList")
	if err := w.List(w.t.Context(), &classes); err != nil {
		w.t.Fatal(err)
	}
	published := w.aws.Images()
	slices.Reverse(published)
	for i := range classes.Items {
		class := &classes.Items[i]
		terms, _, _ := unstructured.NestedSlice(class.Object, "spec", "amiSelectorTerms")
		var images []any
		seen := map[string]bool{}
		for _, image := range published {
			kind := string(image.Variant) + image.Arch
			requirements := []any{map[string]any{"key": corev1.LabelArchStable, "operator": "In", "values": []any{map[string]string{"x86_64": "amd64"}[image.Arch] + map[string]string{"arm64": "arm64"}[image.Arch]}}}
			if id := terms[0].(map[string]any)["id"]; id != nil {
				if id != image.ID {
					continue
				}
			} else {
				if image.Family != localaws.AL2023 || seen[kind] {
					continue
				}
				operator := map[localaws.Variant]string{localaws.NVIDIA: "Exists"}[image.Variant]
				if operator == "" {
					operator = "DoesNotExist"
				}
				requirements = append(requirements, map[string]any{"key": "karpenter.k8s.aws/instance-gpu-count", "operator": operator})
			}
			seen[kind] = true
			images = append(images, map[string]any{"id": image.ID, "name": image.Name(), "requirements": requirements})
		}
		ready := "True"
		if len(images) == 0 {
			ready = "False"
		}
		class.Object["status"] = map[string]any{"conditions": []any{condition(ready, class.GetGeneration())}, "amis": images}
		w.updateStatus(class)
	}
}

// running creates a started machine with the image that the class resolves to.
func (w *rollouts) running(name string) {
	w.t.Helper()
	claim := w.claim(name, w.pool, snapshottest.Initialized(w.clock.Now()), func(c *karpv1.NodeClaim) { c.Status.ImageID = w.resolved() })
	w.node(claim, 10)
}

func (w *rollouts) resolved() string {
	images, _, _ := unstructured.NestedSlice(w.nodeClass("gpu").Object, "status", "amis")
	for _, image := range images {
		if r := image.(map[string]any)["requirements"].([]any); r[0].(map[string]any)["values"].([]any)[0] == "amd64" &&
			(len(r) == 1 || r[1].(map[string]any)["operator"] == "Exists") {
			return image.(map[string]any)["id"].(string)
		}
	}
	return ""
}

// reconcilesTimes runs the controller and then Karpenter a number of times, five seconds apart.
func (w *rollouts) reconcilesTimes(times int) {
	w.t.Helper()
	for range times {
		w.reconciles(w.controller, w.rollout.Name)
		w.resolveImages()
		w.clock.Step(5 * time.Second)
	}
	w.read(w.rollout)
}

func (w *rollouts) wantStep(step v1alpha1.RolloutStep) {
	w.t.Helper()
	if w.read(w.rollout); w.rollout.Status.Step != step {
		w.t.Fatalf("it is %s, want %s: %+v", w.rollout.Status.Step, step, w.rollout.Status)
	}
}

func (w *rollouts) wantCondition(conditionType string, s metav1.ConditionStatus, reason string) {
	w.t.Helper()
	w.read(w.rollout)
	c := meta.FindStatusCondition(w.rollout.Status.Conditions, conditionType)
	if c == nil || c.Status != s || c.Reason != reason {
		w.t.Errorf("%s is %+v, want %s %s", conditionType, c, s, reason)
	}
}

// canary returns the claim of the canary once it has been created.
func (w *rollouts) canary() *karpv1.NodeClaim {
	w.t.Helper()
	w.reconcilesTimes(4)
	if w.rollout.Status.Canary == nil {
		w.t.Fatalf("there is no canary: %+v", w.rollout.Status)
	}
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: w.rollout.Status.Canary.Name}}
	if !w.read(claim) {
		w.t.Fatalf("there is no claim %s: %+v", claim.Name, w.rollout.Status)
	}
	return claim
}

// boots registers the canary's machine with the given number of replicas.
func (w *rollouts) boots(claim *karpv1.NodeClaim, replicas int64) *corev1.Node {
	w.t.Helper()
	class := w.nodeClass(claim.Name)
	terms, _, _ := unstructured.NestedSlice(class.Object, "spec", "amiSelectorTerms")
	snapshottest.Registered(w.clock.Now())(claim)
	claim.Status.ImageID = terms[0].(map[string]any)["id"].(string)
	w.updateStatus(claim)
	return w.node(claim, replicas)
}

func (w *rollouts) check(name string) *corev1.Pod {
	w.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: checks, Name: name}}
	if !w.read(pod) {
		w.t.Fatalf("there is no pod %s: %+v", name, w.rollout.Status)
	}
	return pod
}

// wantNoCanary checks that nothing of a canary is left.
func (w *rollouts) wantNoCanary() {
	w.t.Helper()
	w.reconcilesTimes(1)
	var classes unstructured.UnstructuredList
	classes.SetAPIVersion("karpenter.k8s.aws/v1")
	classes.SetKind("EC2NodeClassList")
	labeled := client.HasLabels{v1alpha1.CanaryLabel}
	for _, list := range []client.ObjectList{&classes, &karpv1.NodeClaimList{}, &corev1.PodList{}} {
		if err := w.List(w.t.Context(), list, labeled); err != nil {
			w.t.Fatal(err)
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, item := range items {
			if o := item.(client.Object); o.GetDeletionTimestamp() == nil {
				w.t.Errorf("%T %s is still there", o, o.GetName())
			}
		}
	}
}

func shape(claim *karpv1.NodeClaim) (instanceType, zone, capacityType string) {
	for _, r := range claim.Spec.Requirements {
		switch r.Key {
		case corev1.LabelInstanceTypeStable:
			instanceType = r.Values[0]
		case corev1.LabelTopologyZone:
			zone = r.Values[0]
		case karpv1.CapacityTypeLabelKey:
			capacityType = r.Values[0]
		}
	}
	return instanceType, zone, capacityType
}

// happened returns all events since the start of the test.
func (w *rollouts) happened() []string {
	all := w.events()
	for _, e := range all {
		w.recorder.Events <- e
	}
	return all
}

// passes boots a canary and makes its check succeed.
func (w *rollouts) passes(canary *karpv1.NodeClaim) {
	w.t.Helper()
	w.boots(canary, 10)
	w.reconcilesTimes(2)
	pod := w.check(canary.Name)
	pod.Status.Phase = corev1.PodSucceeded
	w.updateStatus(pod)
}

// promoted returns newRelease after the release was promoted to both nodes, so that two releases are known to be good.
func promoted(t *testing.T) *rollouts {
	t.Helper()
	w := newRelease(t)
	w.passes(w.canary())
	w.reconcilesTimes(1)
	w.clock.Step(time.Hour)
	w.reconcilesTimes(3)
	for _, name := range []string{"one", "two"} {
		claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.read(claim)
		claim.Status.ImageID = w.image("v20261112")
		w.updateStatus(claim)
	}
	w.reconcilesTimes(2)
	w.wantPinned("v20261112")
	w.wantStep(v1alpha1.StepSettled)
	return w
}
