package watchdog_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"karve.sh/karve/pkg/watchdog"
)

const limit = watchdog.Limit

func pod(name, uid string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "mallory", Name: name, UID: types.UID(uid)}}
}

// testbed is a Watchdog with its metrics and its API server.
type testbed struct {
	*watchdog.Watchdog
	overruns *prometheus.CounterVec
	api      client.Client
}

func newTestbed(api client.Client) testbed {
	overruns := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "overruns_total", Help: "Overruns."}, []string{"step"})
	store := watchdog.Store{Client: api, Live: api, Namespace: "karve-system"}
	return testbed{watchdog.New(limit, store, overruns, prometheus.NewGauge(prometheus.GaugeOpts{Name: "aside", Help: "Aside."})), overruns, api}
}

func overrun(t *testing.T, err error) *watchdog.OverrunError {
	t.Helper()
	var over *watchdog.OverrunError
	if !errors.As(err, &over) {
		t.Fatalf("got %v, want an overrun", err)
	}
	return over
}

func names(entries []watchdog.Entry) []string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Name)
	}
	return all
}

func TestStepInTimeReturnsItsResult(t *testing.T) {
	t.Parallel()
	b, want := newTestbed(fake.NewFakeClient()), errors.New("wrong")
	if err := b.Run(t.Context(), watchdog.View, func(_ context.Context, visit watchdog.Visit) error { visit("Pod", pod("a", "1")); return want }); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
	if len(b.Entries()) > 0 {
		t.Errorf("set aside: %v", names(b.Entries()))
	}
}

func TestPanicOfStepReachesCaller(t *testing.T) {
	t.Parallel()
	defer func() {
		if r, _ := recover().(string); !strings.Contains(r, "index out of range") {
			t.Errorf("recovered %q", r)
		}
	}()
	_ = newTestbed(fake.NewFakeClient()).Run(t.Context(), watchdog.View, func(context.Context, watchdog.Visit) error { panic("index out of range") })
}

func TestSlowStepEndsAtNextVisitAndSetsAsideWhatTookLongest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(fake.NewFakeClient())
		ended := make(chan struct{})
		err := b.Run(t.Context(), watchdog.View, func(_ context.Context, visit watchdog.Visit) error {
			defer close(ended)
			visit("Pod", pod("good", "1"))
			visit("Pod", pod("slow", "2"))
			time.Sleep(limit * 9 / 10)
			for {
				visit("Pod", pod("good", "1"))
				time.Sleep(time.Millisecond)
			}
		})
		if over := overrun(t, err); over.Object.Name != "mallory/slow" || over.Step != watchdog.View {
			t.Errorf("got %v", over)
		}
		<-ended
		if n := testutil.ToFloat64(b.overruns.WithLabelValues("view")); n != 1 {
			t.Errorf("%v overruns are counted", n)
		}
		if err := b.Run(t.Context(), watchdog.View, func(context.Context, watchdog.Visit) error { return nil }); err != nil {
			t.Errorf("the next step: %v", err)
		}
		content := func() string { return "large" }
		if e := b.Aside.Has("Pod", pod("slow", "2"), time.Now(), content); e == nil || !strings.Contains(e.Why(), "step view took too long at Pod mallory/slow") {
			t.Errorf("its entry is %+v", e)
		}
		if b.Aside.Has("Pod", pod("good", "1"), time.Now(), func() string { return "small" }) != nil {
			t.Error("another object is set aside too")
		}
	})
}

func TestStepIsCanceledAtItsLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(fake.NewFakeClient())
		err := b.Run(t.Context(), watchdog.Gather, func(ctx context.Context, _ watchdog.Visit) error { <-ctx.Done(); return ctx.Err() })
		if over := overrun(t, err); over.Object.Name != "" {
			t.Errorf("it is blamed on %v", over.Object)
		}
		if entries := b.Entries(); len(entries) != 1 || !strings.Contains(entries[0].Why(), "at no object in particular") {
			t.Errorf("entries: %+v", entries)
		}
	})
}

func TestStepWithoutEndRestartsProcessThatRemembersObject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(fake.NewFakeClient())
		forever := make(chan struct{})
		t.Cleanup(func() { close(forever) })
		ended := make(chan error, 1)
		go func() { ended <- b.Start(t.Context()) }()
		err := b.Run(t.Context(), watchdog.View, func(_ context.Context, visit watchdog.Visit) error {
			visit("Pod", pod("endless", "3"))
			<-forever
			return nil
		})
		overrun(t, err)
		if err := b.Run(t.Context(), watchdog.View, func(context.Context, watchdog.Visit) error { t.Error("a step began"); return nil }); err == nil {
			t.Error("want an error for steps that begin before the restart")
		}
		select {
		case err := <-ended:
			if overrun(t, err).Object.Name != "mallory/endless" {
				t.Errorf("the process ends with %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the process goes on")
		}
		next := newTestbed(b.api)
		if err := next.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if next.Aside.Has("Pod", pod("endless", "3"), time.Now(), func() string { return "large" }) == nil {
			t.Errorf("the next process sets aside %v", names(next.Entries()))
		}
	})
}

func TestAttemptWithoutEndRestartsProcessAfterRound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(fake.NewFakeClient())
		forever := make(chan struct{})
		t.Cleanup(func() { close(forever) })
		step := func() watchdog.Step { return watchdog.Check }
		if b.Attempt(t.Context(), step, true, func() { <-forever }) {
			t.Error("it is said to have ended")
		}
		if !b.Attempt(t.Context(), step, false, func() {}) {
			t.Error("one that ends is said not to")
		}
		if n := testutil.ToFloat64(b.overruns.WithLabelValues("check")); n != 1 {
			t.Errorf("%v overruns are counted", n)
		}
		began := time.Now()
		if err := b.Start(t.Context()); err == nil || time.Since(began) < limit {
			t.Errorf("it ends after %s: %v", time.Since(began), err)
		}
	})
}

func TestObjectIsSetAsideUntilItChanges(t *testing.T) {
	t.Parallel()
	var all watchdog.Aside
	now := time.Now()
	has := func(name, uid, content string) bool {
		return all.Has("Pod", pod(name, uid), now, func() string { return content }) != nil
	}
	none := func(watchdog.Object) bool { return false }
	all.Add(watchdog.ObjectOf("Pod", pod("a", "1")), watchdog.View, now)
	for range 2 {
		if !has("a", "1", "large") {
			t.Error("it is not set aside")
		}
	}
	if !has("b", "2", "large") {
		t.Error("another pod of its Deployment is not set aside")
	}
	if has("c", "3", "small") {
		t.Error("a different pod is set aside")
	}
	version := all.Version()
	if has("a", "1", "small") {
		t.Error("it is set aside although it has changed")
	}
	if all.Expire(now, none); len(all.Entries()) > 0 || all.Version() == version {
		t.Errorf("left after the change: %v", names(all.Entries()))
	}
}

func TestEntriesEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after time.Duration
		still bool
		ends  bool
	}{
		"after the object is gone, a Deployment may replace it": {9 * time.Minute, false, false},
		"some time after the object is gone":                    {11 * time.Minute, false, true},
		"while the object is there":                             {23 * time.Hour, true, false},
		"after a day, to try again":                             {25 * time.Hour, true, true},
	} {
		var all watchdog.Aside
		now := time.Now()
		all.Add(watchdog.ObjectOf("Pod", pod("a", "1")), watchdog.View, now)
		all.Has("Pod", pod("a", "1"), now, func() string { return "large" })
		all.Expire(now.Add(c.after), func(watchdog.Object) bool { return c.still })
		if ended := len(all.Entries()) == 0; ended != c.ends {
			t.Errorf("%s: ended is %t", name, ended)
		}
	}
}

func TestWriteThatHangsDoesNotDelayNextRounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(fake.NewFakeClient())
		calls := 0
		hang := func(ctx context.Context) error { calls++; <-ctx.Done(); return ctx.Err() }
		if err := b.Write(t.Context(), "NodeClaim", pod("a", ""), hang); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := b.Write(t.Context(), "NodeClaim", pod("a", ""), hang); err == nil || calls != 1 || !strings.Contains(err.Error(), "NodeClaim mallory/a is not written before") {
			t.Errorf("after %d calls: %v", calls, err)
		}
		if err := b.Write(t.Context(), "NodeClaim", pod("b", ""), func(context.Context) error { return nil }); err != nil {
			t.Errorf("another object: %v", err)
		}
		if entries := b.Entries(); len(entries) != 1 || !strings.Contains(entries[0].Why(), "writing NodeClaim mallory/a took too long") {
			t.Errorf("entries: %+v", entries)
		}
		time.Sleep(limit)
		if err := b.Write(t.Context(), "NodeClaim", pod("a", ""), func(context.Context) error { return nil }); err != nil {
			t.Errorf("after the pause: %v", err)
		}
	})
}
