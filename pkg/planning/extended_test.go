package planning

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func TestTheLongestExtendedSearchOfAnHourIsReported(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(Now)
	p := &Planner{Clock: clock}
	search := func(took time.Duration, shapes int) {
		p.extend(Extended{Took: took, Usual: 200 * time.Millisecond, Shapes: shapes, At: clock.Now()})
	}
	is := func(want string) {
		t.Helper()
		if got := p.Extended(); got == nil && want != "" || got != nil && got.String() != want {
			t.Errorf("reported is %v, want %q", got, want)
		}
	}
	is("")
	search(200*time.Millisecond, 100)
	is("")
	search(1812*time.Millisecond, 300)
	is("a plan took 1.8s instead of 200ms, because its pods have 300 different requests")
	clock.Step(30 * time.Minute)
	search(time.Second, 200)
	is("a plan took 1.8s instead of 200ms, because its pods have 300 different requests")
	clock.Step(30 * time.Minute)
	is("")
	search(time.Second, 200)
	is("a plan took 1s instead of 200ms, because its pods have 200 different requests")
	if none := (*Planner)(nil); none.Extended() != nil {
		t.Error("without a planner, a search is reported")
	}
}
