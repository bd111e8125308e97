package readiness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
		c.nominated[s.Pod.UID] = nominated{"a", clk.Now().Add(time.Minute)}
	}
	c.nominatedUntil(seats, []bool{true, false})
	if _, there := c.nominated[seats[1].Pod.UID]; there || !c.nominated[seats[0].Pod.UID].until.Equal(clk.Now().Add(cacheLag)) {
		t.Errorf("remembered are %v", c.nominated)
	}
}
