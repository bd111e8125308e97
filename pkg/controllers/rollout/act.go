package rollout

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/rollout"
)

// act executes a decision. It is idempotent.
func (c *Controller) act(ctx context.Context, r *v1alpha1.GPUImageRollout, w *world, result *rollout.Result) error {
	if err := c.clean(ctx, r, w); err != nil {
		return err
	}
	if result.Pin {
		return c.pin(ctx, r, w)
	}
	canary := r.Status.Canary
	switch {
	case canary == nil:
		return nil
	case canary.Requested == nil:
		class, err := w.class.canaryClass(r, canary)
		if err != nil {
			return err
		}
		return c.create(ctx, class)
	case result.Launch:
		claim, err := c.claim(r, w)
		if err != nil {
			return err
		}
		return c.create(ctx, claim)
	case result.Check && w.seen.Canary.Check == rollout.CheckNone:
		return c.create(ctx, c.checkPod(r, w))
	}
	return nil
}

// clean deletes the objects of all canaries except the current one, including those that the status no longer names. Karpenter keeps a node class until its
// machines are gone.
func (c *Controller) clean(ctx context.Context, r *v1alpha1.GPUImageRollout, w *world) error {
	for _, name := range w.canaries.pods {
		if err := c.remove(ctx, r, &corev1.Pod{}, client.ObjectKey{Namespace: c.Namespace, Name: name}); err != nil {
			return err
		}
	}
	for _, name := range w.canaries.claims {
		if err := c.remove(ctx, r, &karpv1.NodeClaim{}, client.ObjectKey{Name: name}); err != nil {
			return err
		}
	}
	for _, name := range w.canaries.classes {
		class := &unstructured.Unstructured{}
		class.SetGroupVersionKind(w.classes)
		if err := c.remove(ctx, r, class, client.ObjectKey{Name: name}); err != nil {
			return err
		}
	}
	return nil
}

func (c *Controller) remove(ctx context.Context, r *v1alpha1.GPUImageRollout, o client.Object, key client.ObjectKey) error {
	if r.Status.Canary != nil && r.Status.Canary.Name == key.Name {
		return nil
	}
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	if err := c.Client.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %T %s of a canary node: %w", o, key.Name, err)
	}
	return nil
}

func (c *Controller) create(ctx context.Context, o client.Object) error {
	if err := c.Client.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating %s %s: %w", o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), err)
	}
	return nil
}

// pin pins the node class to the current image. It fails with a conflict if the node class has changed since it was read.
func (c *Controller) pin(ctx context.Context, r *v1alpha1.GPUImageRollout, w *world) error {
	stored := w.class.object.DeepCopy()
	if err := w.class.pinTo(r, r.Status.Current); err != nil {
		return err
	}
	err := c.Client.Patch(ctx, w.class.object, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("pinning %s to %s: %w", w.class, r.Status.Current.Release, err)
	}
	return nil
}
