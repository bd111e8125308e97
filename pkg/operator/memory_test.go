package operator

import (
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"

	"karve.sh/karve/pkg/sizing"
)

func TestShortMemoryIsReportedOnceWithWhatTheControllerHolds(t *testing.T) {
	t.Parallel()
	const limit = 512 << 20
	clk, recorder := testingclock.NewFakePassiveClock(time.Unix(0, 0)), events.NewFakeRecorder(10)
	m, err := newMemoryWatch(limit, "karve-system", func() sizing.Objects { return sizing.Objects{Pods: 90_000, Nodes: 9_000, NodeClaims: 2_000} }, recorder, clk)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		m.look(logr.Discard(), 480<<20)
		clk.SetTime(clk.Now().Add(time.Minute))
	}
	if n := len(recorder.Events); n != 1 {
		t.Fatalf("%d events, want 1", n)
	}
	event := <-recorder.Events
	for _, want := range []string{"Warning MemoryShort", "480 MiB", "512 MiB", "90000 pods", "9000 nodes", "2000 NodeClaims", "controller.resources.limits.memory", "docs/sizing.md"} {
		if !strings.Contains(event, want) {
			t.Errorf("the event %q does not say %q", event, want)
		}
	}
}

func TestTheProcessKnowsItsMemory(t *testing.T) {
	t.Parallel()
	if used := usedMemory(); used < 1<<20 || used > 100<<30 {
		t.Errorf("it uses %d bytes", used)
	}
}
