package readiness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// slowAPI is an API server that takes a while for each nomination.
type slowAPI struct {
	client.SubResourceWriter
	takes          time.Duration
	err            error
	inFlight, most atomic.Int32
	written        atomic.Int32
}

func (a *slowAPI) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	now := a.inFlight.Add(1)
	for most := a.most.Load(); now > most && !a.most.CompareAndSwap(most, now); most = a.most.Load() {
	}
	time.Sleep(a.takes)
	a.inFlight.Add(-1)
	a.written.Add(1)
	return a.err
}

// nominationAPI is a client of it.
type nominationAPI struct {
	client.Client
	slow *slowAPI
}

func (a nominationAPI) Status() client.SubResourceWriter { return a.slow }

func seatsFor(node string, n int) []snapshot.Nomination {
	var all []snapshot.Nomination
	for i := range n {
		all = append(all, snapshot.Nomination{Pod: new(snapshottest.Pod(fmt.Sprintf("%s-%d", node, i))), Node: node})
	}
	return all
}

func TestNodeWaitsLongerForMoreSeats(t *testing.T) {
	t.Parallel()
	for seats, want := range map[int]time.Duration{0: time.Second, 1: time.Second, 16: time.Second, 17: 2 * time.Second, 80: 5 * time.Second, 160: 10 * time.Second, 1000: 10 * time.Second} {
		if got := seatingTime(seats); got != want {
			t.Errorf("%d seats: %s, want %s", seats, got, want)
		}
	}
}

// A metal machine has eighty pods, and a busy API server takes most of a second for a write.
func TestNodesShareTheRequestsForTheirNominations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &slowAPI{takes: 900 * time.Millisecond}
		n := NewNominator(nominationAPI{slow: api}, metrics.New(prometheus.NewRegistry()))
		var nodes sync.WaitGroup
		for _, node := range []string{"a", "b"} {
			nodes.Go(func() {
				seats := seatsFor(node, 80)
				done, lost := n.Write(t.Context(), seats, seatingTime(len(seats)))
				for i := range done {
					if !done[i] || lost {
						t.Errorf("node %s: nomination %d is written: %t, requests are lost: %t", node, i, done[i], lost)
					}
				}
			})
		}
		nodes.Wait()
		if api.written.Load() != 160 || api.most.Load() != requestsAtOnce {
			t.Errorf("%d nominations were written, %d at once", api.written.Load(), api.most.Load())
		}
	})
}

func TestNoNominationBeginsWhenTheTimeIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &slowAPI{takes: 900 * time.Millisecond, err: errors.New("no answer")}
		began := time.Now()
		done, lost := NewNominator(nominationAPI{slow: api}, metrics.New(prometheus.NewRegistry())).Write(t.Context(), seatsFor("a", 500), time.Second)
		if took := time.Since(began); api.written.Load() != 2*requestsAtOnce || took > 2*time.Second || !lost || done[0] {
			t.Errorf("%d requests within %s, lost: %t, answered: %t", api.written.Load(), took, lost, done[0])
		}
	})
}

func TestNominationThatWasNotWrittenLeavesItsPodToOthers(t *testing.T) {
	t.Parallel()
	clk, seats := clocktesting.NewFakeClock(snapshottest.Now), seatsFor("a", 2)
	c := New(Config{Clock: clk, Metrics: metrics.New(prometheus.NewRegistry())})
	for _, s := range seats {
		c.nominated[s.Pod.UID] = nominated{client.ObjectKeyFromObject(s.Pod), "a", clk.Now().Add(time.Minute)}
	}
	c.nominatedUntil(seats, []bool{true, false})
	if _, there := c.nominated[seats[1].Pod.UID]; there || !c.nominated[seats[0].Pod.UID].until.Equal(clk.Now().Add(cacheLag)) {
		t.Errorf("remembered are %v", c.nominated)
	}
}

// In a burst, sixteen nodes become ready at about the same time, and the API server takes most of a second for a write. Every node opens with all of its
// nominations, and most of them before the last nominations are written.
func TestNodesOfABurstTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &slowAPI{takes: 700 * time.Millisecond}
		n := NewNominator(nominationAPI{slow: api}, metrics.New(prometheus.NewRegistry()))
		began, opened := time.Now(), make([]time.Duration, atOnce)
		var nodes sync.WaitGroup
		for i := range atOnce {
			nodes.Go(func() {
				seats := seatsFor(fmt.Sprint("node-", i), 10)
				done, lost := n.Write(t.Context(), seats, seatingTime(len(seats)))
				if lost || slices.Contains(done, false) {
					t.Errorf("node %d opens without nominations: %v", i, done)
				}
				opened[i] = time.Since(began)
			})
		}
		nodes.Wait()
		slices.Sort(opened)
		if all := opened[atOnce-1]; opened[atOnce/2] > all*2/3 {
			t.Errorf("nodes open after %v", opened)
		}
	})
}

func TestANodeWhoseTurnDoesNotComeOpens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &slowAPI{takes: time.Minute}
		n := NewNominator(nominationAPI{slow: api}, metrics.New(prometheus.NewRegistry()))
		var nodes sync.WaitGroup
		nodes.Go(func() { n.Write(t.Context(), seatsFor("a", requestsAtOnce), time.Second) })
		time.Sleep(time.Second)
		began := time.Now()
		done, lost := n.Write(t.Context(), seatsFor("b", 10), time.Second)
		if took := time.Since(began); took != maxSeating || lost || slices.Contains(done, true) {
			t.Errorf("after %s, written: %v, lost: %t", took, done, lost)
		}
		nodes.Wait()
	})
}

// The scheduler learns of nominations and of a node's taints through different watches.
func TestANodeOpensWhenTheCacheShowsItsNominations(t *testing.T) {
	t.Parallel()
	clk, seats := clocktesting.NewFakeClock(snapshottest.Now), seatsFor("a", 3)
	cached := fake.NewClientBuilder().WithStatusSubresource(&corev1.Pod{}).Build()
	c := New(Config{Client: cached, Clock: clk, Metrics: metrics.New(prometheus.NewRegistry())})
	for _, s := range seats {
		c.nominated[s.Pod.UID] = nominated{client.ObjectKeyFromObject(s.Pod), "a", clk.Now().Add(time.Minute)}
	}
	is := func(want bool, when string) {
		t.Helper()
		if wait := c.unseen(t.Context(), "a"); (wait > 0) != want {
			t.Errorf("%s, the node waits %s", when, wait)
		}
	}
	for i, s := range seats { // The third is gone.
		pod := s.Pod.DeepCopy()
		switch i {
		case 1:
			pod.Spec.NodeName = "other"
		case 2:
			continue
		}
		if err := cached.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	is(true, "while the cache shows no nomination of a waiting pod")
	pod := &corev1.Pod{}
	if err := cached.Get(t.Context(), client.ObjectKeyFromObject(seats[0].Pod), pod); err != nil {
		t.Fatal(err)
	}
	pod.Status.NominatedNodeName = "a"
	if err := cached.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	is(false, "when it shows the nomination")
	pod.Status.NominatedNodeName = ""
	if err := cached.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	is(true, "if the nomination has ended")
	clk.Step(shownFor)
	is(false, "after two seconds")
	if len(c.opens) > 0 {
		t.Errorf("remembered are %v", c.opens)
	}
}
