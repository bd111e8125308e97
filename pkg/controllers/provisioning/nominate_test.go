package provisioning

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// withdrawn returns a view in which the given number of pods are nominated for a node that the plan does not use.
func withdrawn(pods int) (snapshot.View, []client.Object) {
	c := snapshottest.Shared()
	c.Pods = snapshottest.Pods("web", pods)
	var objects []client.Object
	for i := range c.Pods {
		c.Pods[i].Status.NominatedNodeName = "gone"
		objects = append(objects, &c.Pods[i])
	}
	return snapshot.Build(c), objects
}

// nominator returns a controller whose status writes call write first.
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

func TestWithdrawalsBeyondLimitHappenInLaterRounds(t *testing.T) {
	t.Parallel()
	view, objects := withdrawn(maxWithdrawn + 50)
	var written atomic.Int32
	c, clk := nominator(objects, func() error { written.Add(1); return nil })
	c.withdraw(t.Context(), &view, planner.Plan{})
	clk.Step(firstPause)
	for rounds := 1; ; rounds++ {
		wait := c.withdraw(t.Context(), &view, planner.Plan{})
		if most := int32(min(rounds*maxWithdrawn, maxWithdrawn+50)); written.Load() > most {
			t.Fatalf("%d were written in %d rounds, want %d at most", written.Load(), rounds, most)
		}
		if written.Load() == maxWithdrawn+50 {
			return
		}
		if wait != soon || rounds > 100 {
			t.Fatalf("the rest is due after %s in round %d, want %s", wait, rounds, soon)
		}
	}
}

func TestFailedWithdrawalIsRetried(t *testing.T) {
	t.Parallel()
	view, objects := withdrawn(3)
	failing := errors.New("client rate limiter Wait returned an error: rate: Wait(n=1) would exceed context deadline")
	c, clk := nominator(objects, func() error { return failing })
	c.withdraw(t.Context(), &view, planner.Plan{})
	clk.Step(firstPause)
	if wait := c.withdraw(t.Context(), &view, planner.Plan{}); wait != time.Second {
		t.Errorf("tried again after %s, want a second", wait)
	}
	failing = nil
	if wait := c.withdraw(t.Context(), &view, planner.Plan{}); wait != 0 {
		t.Errorf("something is left, due after %s", wait)
	}
}

func TestNominationsStayWhenFeatureIsDisabled(t *testing.T) {
	t.Parallel()
	view, objects := withdrawn(3)
	c, _ := nominator(objects, func() error { t.Error("a nomination was written"); return nil })
	c.Nominations = false
	if wait := c.withdraw(t.Context(), &view, planner.Plan{}); wait != 0 {
		t.Errorf("something is left, due after %s", wait)
	}
}

func TestRepeatedNominationIsWithdrawnWithBackoff(t *testing.T) {
	t.Parallel()
	view, objects := withdrawn(1)
	writes := 0
	c, clk := nominator(objects, func() error { writes++; return nil })
	for range 3600 { // The scheduler repeats the nomination every second for an hour.
		c.withdraw(t.Context(), &view, planner.Plan{})
		clk.Step(time.Second)
	}
	if writes < 3 || writes > 20 {
		t.Errorf("%d were taken back in an hour, want few", writes)
	}
}

func TestNominationIsWithdrawnAfterPlansIgnoreItForAWhile(t *testing.T) {
	t.Parallel()
	view, objects := withdrawn(1)
	writes := 0
	c, clk := nominator(objects, func() error { writes++; return nil })
	for clk.Since(now) < firstPause {
		if wait := c.withdraw(t.Context(), &view, planner.Plan{}); writes > 0 || wait != firstPause-clk.Since(now) {
			t.Fatalf("after %s %d were taken back, and the next is due after %s", clk.Since(now), writes, wait)
		}
		clk.Step(firstPause / 5)
	}
	if c.withdraw(t.Context(), &view, planner.Plan{}); writes != 1 {
		t.Error("it was not taken back")
	}
	if c.withdrawn.forget(clk.Now().Add(time.Hour)); len(c.withdrawn) > 0 {
		t.Error("withdrawn nominations are remembered forever")
	}
}
