package provisioning

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// withdrawn is a view in which so many pods are nominated for a node that the plan has no use for.
func withdrawn(pods int) (snapshot.View, []client.Object) {
	view := snapshot.View{Pods: map[string]*corev1.Pod{}}
	var objects []client.Object
	for _, pod := range snapshottest.Pods("web", pods) {
		pod.Status.NominatedNodeName = "gone"
		view.Pods[pod.Namespace+"/"+pod.Name] = &pod
		objects = append(objects, &pod)
	}
	return view, objects
}

// nominator is a controller whose status writes go through write.
func nominator(objects []client.Object, write func() error) (*Controller, *clocktesting.FakeClock) {
	clk := clocktesting.NewFakeClock(now)
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).WithStatusSubresource(&corev1.Pod{}).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := write(); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	}).Build()
	return New(Config{Client: c, Clock: clk, Nominations: true, Metrics: metrics.New(prometheus.NewRegistry())}), clk
}

func TestNominationsThatARoundHasNoRoomForAreMadeInTheNextOnes(t *testing.T) {
	t.Parallel()
	view, objects := withdrawn(nominateMost + 50)
	var written atomic.Int32
	c, _ := nominator(objects, func() error { written.Add(1); return nil })
	for rounds := 1; ; rounds++ {
		wait := c.nominate(t.Context(), &view, planner.Plan{})
		if most := int32(min(rounds*nominateMost, nominateMost+50)); written.Load() > most {
			t.Fatalf("%d were written in %d rounds, want %d at most", written.Load(), rounds, most)
		}
		if wait == 0 {
			break
		}
		if wait != soon || rounds > 100 {
			t.Fatalf("the rest is due after %s in round %d, want %s", wait, rounds, soon)
		}
	}
	if written.Load() != nominateMost+50 {
		t.Errorf("%d were written, want each once", written.Load())
	}
}

func TestANominationThatNobodyAnswersIsTriedAgainAndFailsNothing(t *testing.T) {
	t.Parallel()
	view, objects := withdrawn(3)
	failing := errors.New("client rate limiter Wait returned an error: rate: Wait(n=1) would exceed context deadline")
	c, _ := nominator(objects, func() error { return failing })
	if wait := c.nominate(t.Context(), &view, planner.Plan{}); wait != time.Second {
		t.Errorf("tried again after %s, want a second", wait)
	}
	failing = nil
	if wait := c.nominate(t.Context(), &view, planner.Plan{}); wait != 0 {
		t.Errorf("something is left, due after %s", wait)
	}
}

func TestWithoutTheFeatureNothingIsNominated(t *testing.T) {
	t.Parallel()
	view, objects := withdrawn(3)
	c, _ := nominator(objects, func() error { t.Error("a nomination was written"); return nil })
	c.Nominations = false
	if wait := c.nominate(t.Context(), &view, planner.Plan{}); wait != 0 {
		t.Errorf("something is left, due after %s", wait)
	}
}

func TestANominationThatSomebodyRepeatsIsTakenBackEverMoreRarely(t *testing.T) {
	t.Parallel()
	view, objects := withdrawn(1)
	writes := 0
	c, clk := nominator(objects, func() error { writes++; return nil })
	for range 3600 { // The scheduler nominates the node again each second of an hour.
		c.nominate(t.Context(), &view, planner.Plan{})
		clk.Step(time.Second)
	}
	if writes < 3 || writes > 20 {
		t.Errorf("%d were taken back in an hour, want few", writes)
	}
}

// The default scheduler clears a nomination each time that it finds no place for the pod. It has to be there again when the machine has started.
func TestALostNominationIsWrittenAgainAfterASecond(t *testing.T) {
	t.Parallel()
	c, clk := nominator(nil, nil)
	before := snapshottest.Pod("web")
	before.UID, before.Status.NominatedNodeName = "web", "node"
	after := *before.DeepCopy()
	after.Status.NominatedNodeName = ""
	queue := &delays{}
	update := func() {
		c.podHandler().Update(t.Context(), event.UpdateEvent{ObjectOld: &before, ObjectNew: &after}, queue)
	}
	for range 5 { // However often it was cleared before.
		c.nominated.note("web", "node", clk.Now())
	}
	clk.Step(firstPause / 4)
	update()
	if diff := cmp.Diff([]time.Duration{firstPause * 3 / 4}, queue.after); diff != "" || c.nominated.due("web", "node", clk.Now()) {
		t.Errorf("planned at another time than after the pause (-want +got):\n%s", diff)
	}
	clk.Step(firstPause * 3 / 4)
	if !c.nominated.due("web", "node", clk.Now()) {
		t.Error("not written again after the pause")
	}
	update()
	if len(queue.after) != 1 {
		t.Errorf("after the pause it waits once more: %v", queue.after)
	}
}

// delays is a queue that notes what is added with a delay.
type delays struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	after []time.Duration
}

func (d *delays) Add(reconcile.Request) {}

func (d *delays) AddAfter(_ reconcile.Request, after time.Duration) { d.after = append(d.after, after) }

func TestAnotherNodeIsNominatedAtOnce(t *testing.T) {
	t.Parallel()
	n := nominations{own: map[types.UID]nomination{}}
	for i := range 10 {
		node := fmt.Sprint("node-", i)
		if !n.due("pod", node, now) {
			t.Fatalf("%s has to wait", node)
		}
		n.note("pod", node, now)
		if n.due("pod", node, now) {
			t.Fatalf("%s is nominated twice", node)
		}
	}
	n.forget(now.Add(time.Hour))
	if len(n.own) > 0 {
		t.Error("nominations are remembered for ever")
	}
}
