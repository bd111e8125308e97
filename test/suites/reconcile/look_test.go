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

	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// TestClusterShowsWhatCachesShow uses the manager's real caches. Each read of the cluster must show every change that could have triggered a reconcile,
// although most of what it returns is kept from earlier reads.
func TestClusterShowsWhatCachesShow(t *testing.T) {
	w := newWorld(t)
	w.shared("looked-at")
	caches, err := cache.New(w.server.RESTConfig(), cache.Options{Scheme: w.Scheme(), Mapper: w.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	w.gatherer.Cached = caches
	if err := w.gatherer.Follow(t.Context(), caches); err != nil {
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
		// As soon as the caches show a change, the gatherer does too.
		if err := wait.PollUntilContextTimeout(ctx, 50*time.Microsecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
			var cached corev1.Pod
			err := caches.Get(ctx, client.ObjectKeyFromObject(pod), &cached)
			return cached.ResourceVersion == pod.ResourceVersion, client.IgnoreNotFound(err)
		}); err != nil {
			t.Fatal(err)
		}
		if turn := versionOf(w.cluster(), pod.Name); turn != fmt.Sprint(i) {
			t.Fatalf("a look shows turn %q of %s, want %d", turn, pod.Name, i)
		}
	}
	before, after := w.cluster().Indexed().Pending(), w.cluster().Indexed().Pending()
	if diff := cmp.Diff(before, after); diff != "" || len(before) != len(pods) || before[0] != after[0] {
		t.Errorf("what has not changed is read again, or has changed (-before +after):\n%s", diff)
	}
}

func versionOf(c *facts.Cluster, name string) string {
	for _, pod := range c.Indexed().Pending() {
		if pod.Name == name {
			return pod.Annotations["turn"]
		}
	}
	return "none"
}
