package reconcile

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/hostile"
)

// hostileObjects is how many objects the test creates on the API server.
const hostileObjects = 250

// tolerant adds the toleration of the sane pods, which hardly any hostile pod has.
var tolerant = snapshottest.Tolerating("nvidia.com/gpu.shared", "sane")

func TestHostileObjectsDoNotBlockPodsOnRealAPIServer(t *testing.T) {
	cluster.Long(t)
	w := newWorld(t)
	all, err := client.New(w.server.RESTConfig(), client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	create := func(o client.Object) {
		if err := all.Create(t.Context(), o); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hostile.Namespace}})
	for name, value := range hostile.PriorityClasses {
		create(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value})
	}
	t.Cleanup(func() { w.removeHostile(all) })

	g := hostile.New("hostile", 1)
	accepted, claims := 0, []string{}
	for range hostileObjects {
		o := g.Object()
		if err := w.take(all, o); err != nil {
			t.Logf("refused %T %s: %.300v", o, o.GetName(), err)
			continue
		}
		accepted++
		if claim, ok := o.(*karpv1.NodeClaim); ok {
			claims = append(claims, claim.Name)
		}
	}
	t.Logf("the API server accepts %d of %d objects", accepted, hostileObjects)
	if accepted*100 < hostileObjects*95 {
		t.Errorf("the API server accepts %d of %d objects, want 95 %%: the generator makes what nobody can create", accepted, hostileObjects)
	}

	w.shared("sane", snapshottest.Tainted("sane"))
	w.pods("web", 11, tolerant)
	provisioning := w.provisioning()
	for range 3 {
		w.clock.Step(11 * time.Second)
		w.reconciles(provisioning, "")
	}
	sane := 0
	for _, claim := range w.claims() {
		if claim.Labels[karpv1.NodePoolLabelKey] == "sane" {
			sane++
		}
	}
	if sane != 2 {
		t.Errorf("there are %d NodeClaims for the sane pods, want 2", sane)
	}
	if n := w.counted("karve_planner_rejected_plans_total"); n != 0 {
		t.Errorf("%v plans were rejected", n)
	}
	for _, r := range []reconcile.Reconciler{w.poolController(), w.usage(), w.disruption()} {
		w.mayFail(r, "")
	}
	for _, claim := range claims {
		w.mayFail(w.launch(), claim)
		w.mayFail(w.readiness(), claim)
	}
	np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "sane"}}
	w.wantCondition(np, karpv1.ConditionTypeValidationSucceeded, "True", "")
}

// take creates an object and its status if the API server accepts it.
func (w *world) take(all client.Client, o client.Object) error {
	o.SetUID("")
	o.SetGeneration(0)
	if pod, ok := o.(*corev1.Pod); ok {
		pod.Spec.Priority = nil // The API server sets it from the PriorityClass.
	}
	c := all
	if _, err := all.GroupVersionKindFor(o); err != nil {
		c = w.WithWatch // Kinds of Karpenter and Karve.
	}
	said, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return nil
	}
	if err := c.Create(w.t.Context(), o); err != nil {
		return err //nolint:wrapcheck // It is the API server's word.
	}
	switch o.(type) {
	case *corev1.Pod, *corev1.Node, *karpv1.NodeClaim:
		said.SetResourceVersion(o.GetResourceVersion())
		said.SetUID(o.GetUID())
		return c.Status().Update(w.t.Context(), said) //nolint:wrapcheck // As above.
	}
	return nil
}

// mayFail runs a reconciler, which may return an error about hostile objects but must not panic.
func (w *world) mayFail(r reconcile.Reconciler, name string) {
	w.t.Helper()
	if _, err := r.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}); err != nil {
		w.t.Logf("%T of %q: %.300v", r, name, err)
	}
}

// removeHostile removes the objects that empty does not remove.
func (w *world) removeHostile(all client.Client) {
	ctx := cleanup(w.t)
	free := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	var volumes corev1.PersistentVolumeList
	var claims corev1.PersistentVolumeClaimList
	if err := all.List(ctx, &volumes); err != nil {
		w.t.Error(err)
	}
	if err := all.List(ctx, &claims, client.InNamespace(hostile.Namespace)); err != nil {
		w.t.Error(err)
	}
	for i := range volumes.Items {
		_ = all.Patch(ctx, &volumes.Items[i], free)
	}
	for i := range claims.Items {
		_ = all.Patch(ctx, &claims.Items[i], free)
	}
	for _, o := range []client.Object{&corev1.PersistentVolume{}, &storagev1.StorageClass{}, &storagev1.CSINode{}} {
		err := all.DeleteAllOf(ctx, o)
		if err != nil {
			w.t.Error(err)
		}
	}
	for _, kind := range hostile.Namespaced() {
		if err := all.DeleteAllOf(ctx, kind, client.InNamespace(hostile.Namespace), client.GracePeriodSeconds(0)); err != nil {
			w.t.Error(err)
		}
	}
}
