package reconcile

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// With the manager's own caches: what a controller could have been woken by is in the next look, though most of what is looked at is kept.
func TestALookShowsWhateverTheCachesShow(t *testing.T) {
	w := newWorld(t)
	w.shared("looked-at")
	caches, err := cache.New(w.server.RESTConfig(), cache.Options{Scheme: w.Scheme(), Mapper: w.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	w.gatherer.Cached = caches
	if err := w.gatherer.CountChanges(t.Context(), caches); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- caches.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if !caches.WaitForCacheSync(ctx) {
		t.Fatal("the caches are not filled")
	}
	pods := snapshottest.Pods("web", 3)
	for i := range pods {
		w.pod(&pods[i])
	}
	for i := range 30 {
		pod := &pods[i%len(pods)]
		pod.Annotations = map[string]string{"turn": fmt.Sprint(i)}
		if err := w.Update(ctx, pod); err != nil {
			t.Fatal(err)
		}
		// As soon as the caches show it, looks do.
		if err := wait.PollUntilContextTimeout(ctx, 50*time.Microsecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
			var cached corev1.Pod
			err := caches.Get(ctx, client.ObjectKeyFromObject(pod), &cached)
			return cached.ResourceVersion == pod.ResourceVersion, client.IgnoreNotFound(err)
		}); err != nil {
			t.Fatal(err)
		}
		for how, look := range map[string]func(context.Context) (*snapshot.Cluster, error){"a look": w.gatherer.Cluster, "a recent look": w.gatherer.Recent} {
			c, err := look(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if turn := turnOf(c, pod.Name); turn != fmt.Sprint(i) {
				t.Fatalf("%s shows turn %q of %s, want %d", how, turn, pod.Name, i)
			}
		}
	}
	before := w.cluster()
	after := w.cluster()
	if diff := cmp.Diff(before.Pods, after.Pods); diff != "" || &before.Pods[0] != &after.Pods[0] {
		t.Errorf("what has not changed is read again, or has changed (-before +after):\n%s", diff)
	}
}

func turnOf(c *snapshot.Cluster, pod string) string {
	for i := range c.Pods {
		if c.Pods[i].Name == pod {
			return c.Pods[i].Annotations["turn"]
		}
	}
	return "none"
}
