package solve_test

import (
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
)

func TestSearchForManyShapesIsWorthMoreTime(t *testing.T) {
	t.Parallel()
	for shapes, want := range map[int]int64{0: 1, 1: 1, 60: 1, 61: 3, 120: 6, 300: 15, 3000: 20} {
		if got := solve.Patience(distinct(shapes)); got != want {
			t.Errorf("%d shapes: %d times the usual time, want %d", shapes, got, want)
		}
	}
	blocked := distinct(100)
	for c := range blocked.Classes {
		blocked.Classes[c].Blocked = &planner.Refusal{Reason: planner.ReasonUnsupported}
	}
	if got := solve.Patience(blocked); got != 1 {
		t.Errorf("blocked pods get %d times the usual time, want 1", got)
	}
	if got := solve.Shapes(distinct(100)); got != 100 {
		t.Errorf("%d shapes, want 100", got)
	}
	if got := solve.Shapes(blocked); got != 0 {
		t.Errorf("%d shapes of blocked pods, want 0", got)
	}
	ruled := distinct(100)
	ruled.Classes[0].Priority = 1
	if got := solve.Patience(ruled); got != 1 {
		t.Errorf("pods of two priorities get %d times the usual time, want 1", got)
	}
}
