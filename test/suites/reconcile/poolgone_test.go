package reconcile

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/controllers/provisioning"
)

// removals are the ways in which the NodePool of a claim can cease to exist.
var removals = map[string]func(*world, *karpv1.NodePool){
	"deleted": func(w *world, np *karpv1.NodePool) { w.delete(np) },
	"being deleted": func(w *world, np *karpv1.NodePool) {
		w.delete(np, client.PropagationPolicy(metav1.DeletePropagationForeground))
	},
	"recreated": func(w *world, np *karpv1.NodePool) {
		w.delete(np)
		w.create(np)
	},
}

// releasePool completes a foreground deletion, as Kubernetes does once the claims are gone.
func (w *world) releasePool(np *karpv1.NodePool) {
	w.t.Helper()
	err := w.Patch(w.t.Context(), np, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
}

// forEachRemoval runs a test with each way to remove the NodePool, with one pod that waits for a machine of it.
func forEachRemoval(t *testing.T, test func(w *world, remove func())) {
	t.Parallel()
	for name, remove := range removals {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			pool := w.shared("short")
			defer w.releasePool(pool)
			w.pods("web", 1)
			test(w, func() { remove(w, pool.DeepCopy()) })
		})
	}
}

func TestPoolDeletedDuringPlanningGetsNoClaims(t *testing.T) {
	forEachRemoval(t, func(w *world, remove func()) {
		planned := 0
		stale := w.gathering(w.WithWatch, w.ledger)
		stale.Cached = interceptor.NewClient(w.WithWatch, interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				if err := c.List(ctx, list, options...); err != nil {
					return err
				}
				if _, ok := list.(*karpv1.NodePoolList); ok && planned == 0 {
					planned++
					remove()
				}
				return nil
			},
		})
		w.reconciles(w.provisioning(func(c *provisioning.Config) { c.Gatherer = stale }), "")
		if planned == 0 {
			w.t.Fatal("no NodePool was read")
		}
		w.wantClaims(0)
	})
}

// Kubernetes deletes the claims of a NodePool with it. This says nothing about the cloud, and other pools may use the class.
func TestClaimDeletedWithItsPoolDoesNotPauseLaunches(t *testing.T) {
	forEachRemoval(t, func(w *world, remove func()) {
		w.reconciles(w.provisioning(), "")
		claim := w.wantClaims(1)[0]
		controller := w.launch()
		w.reconciles(controller, claim.Name)
		w.events()
		remove()
		w.delete(&claim)
		for range 2 {
			w.reconciles(controller, claim.Name)
			w.clock.Step(3 * time.Minute)
		}
		if all := w.refusals("short"); len(all) != 0 {
			w.t.Errorf("the status holds %+v", all)
		}
		w.wantEvents(0, "")
		if n := w.counted("karve_launch_refused_total"); n != 0 {
			w.t.Errorf("%v refusals are counted", n)
		}
	})
}
