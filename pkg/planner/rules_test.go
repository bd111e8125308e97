package planner_test

import (
	"testing"

	"karve.sh/karve/pkg/planner"
)

func TestAPlanUnderRulesIsWholeHoweverSoonItsSearchEnds(t *testing.T) {
	t.Parallel()
	s := spreadOut(300, 10)
	for name, search := range map[string]planner.Search{
		"stopped at once":    {Stop: func() bool { return true }},
		"with no effort":     {Effort: -1},
		"with little effort": {Effort: 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := 0
			search.First = func(p planner.Plan) {
				told++
				if err := planner.Check(s, p); err != nil {
					t.Error(err)
				}
			}
			p := search.Build(s)
			if err := planner.Check(s, p); err != nil {
				t.Error(err)
			}
			if len(p.Unplaced) > 0 {
				t.Errorf("%d pods have no place, the first: %v", len(p.Unplaced), p.Unplaced[0])
			}
			if told != 1 {
				t.Errorf("told of a first plan %d times", told)
			}
		})
	}
}

func TestAPlanUnderRulesIsCloseToItsBound(t *testing.T) {
	t.Parallel()
	s := spreadOut(300, 10)
	p := planner.Build(s)
	if err := planner.Check(s, p); err != nil {
		t.Fatal(err)
	}
	// The bound knows nothing of zones, and machines that are whole in each of three zones cost 10 % more here when the test was written.
	t.Logf("price %d, bound %d", p.Price, p.Bound)
	if len(p.Unplaced) > 0 || (p.Price-p.Bound)*100 > 20*p.Bound {
		t.Errorf("%d pods have no place, price %d, bound %d: more than 20 %% apart", len(p.Unplaced), p.Price, p.Bound)
	}
}
