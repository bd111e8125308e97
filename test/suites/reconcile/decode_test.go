package reconcile

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/snapshot/facts"
)

// The API server accepts values of NodePools that the Go type cannot decode, because they match the pattern of their field.
func TestInformersSurviveObjectsThatCannotBeDecoded(t *testing.T) {
	w := newWorld(t)
	sound := w.shared("sound")
	odd := &unstructured.Unstructured{}
	odd.SetGroupVersionKind(schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: "NodePool"})
	if err := w.Get(t.Context(), client.ObjectKeyFromObject(sound), odd); err != nil {
		t.Fatal(err)
	}
	spec := odd.Object["spec"]
	odd.Object = map[string]any{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": map[string]any{"name": "odd"}, "spec": spec}
	odd.Object["spec"].(map[string]any)["limits"] = map[string]any{"cpu": "1e2.5"}
	w.create(odd)
	t.Cleanup(func() {
		if err := w.Delete(cleanup(t), odd); err != nil {
			t.Error(err)
		}
	})
	if err := w.List(t.Context(), &karpv1.NodePoolList{}); err == nil {
		t.Fatal("the NodePools can be decoded")
	}
	informers, err := cache.New(w.server.RESTConfig(), cache.Options{
		Scheme: w.Scheme(), Mapper: w.RESTMapper(), DefaultTransform: gather.Trim(), NewInformer: gather.NewInformer(w.server.RESTConfig()),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- informers.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if !informers.WaitForCacheSync(ctx) {
		t.Fatal("the informers do not start")
	}
	seen := func(what string, is func(sound, odd *karpv1.NodePool) bool) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			var s, o karpv1.NodePool
			if err := informers.Get(ctx, client.ObjectKeyFromObject(sound), &s); err != nil {
				return false, client.IgnoreNotFound(err)
			}
			if err := informers.Get(ctx, client.ObjectKeyFromObject(odd), &o); err != nil {
				return false, client.IgnoreNotFound(err)
			}
			return is(&s, &o), nil
		}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	seen("both are listed", func(_, odd *karpv1.NodePool) bool {
		return strings.Contains(fmt.Sprint(odd.Annotations), "cannot be read: spec.limits.cpu")
	})
	change := func(o client.Object, patch string) {
		t.Helper()
		if err := w.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	change(sound, `{"metadata":{"labels":{"changed":"once"}}}`)
	seen("a change is seen", func(sound, _ *karpv1.NodePool) bool { return sound.Labels["changed"] == "once" })
	change(odd, `{"spec":{"disruption":{"consolidateAfter":"99999999999999999999h"}}}`)
	change(sound, `{"metadata":{"labels":{"changed":"twice"}}}`)
	seen("a change after one that cannot be decoded is seen", func(sound, odd *karpv1.NodePool) bool {
		return sound.Labels["changed"] == "twice" && strings.Contains(fmt.Sprint(odd.Annotations), "consolidateAfter")
	})
	change(odd, `{"spec":{"limits":null,"disruption":{"consolidateAfter":"1h"}}}`)
	seen("a correction is seen", func(_, odd *karpv1.NodePool) bool { return !facts.IsSetAside(odd) })
}
