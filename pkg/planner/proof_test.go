package planner_test

import (
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest"
)

// proved is a plan whose proof is that of a mix.
func proved(t *testing.T) (planner.Snapshot, planner.Plan) {
	t.Helper()
	s := plantest.Mixed(plantest.Offerings(plantest.G4dn(), 10), 40, 6, 3)
	p := planner.Build(s)
	if p.Proof == nil || len(p.Launches) == 0 {
		t.Fatalf("launches %d machines, the proof is %v", len(p.Launches), p.Proof)
	}
	return s, p
}

func TestTheProofOfAMixIsVerified(t *testing.T) {
	t.Parallel()
	if s, p := proved(t); plantest.Verify(s, p) != nil {
		t.Error(plantest.Verify(s, p))
	}
}

func TestAProofIsNotVerifiedForMoreThanItShows(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*planner.Plan){
		"a higher bound":                 func(p *planner.Plan) { p.Bound += p.Bound / 20 },
		"pods that are worth more":       func(p *planner.Plan) { p.Proof.Covers[0].Worth[0] *= 2 },
		"machines that hold less":        func(p *planner.Plan) { p.Proof.Covers[0].Most[0] /= 2 },
		"no covers":                      func(p *planner.Plan) { p.Proof.Covers = nil },
		"no proof at all":                func(p *planner.Plan) { p.Proof, p.Bound = nil, p.Price-1 },
		"an offering that holds nothing": func(p *planner.Plan) { p.Proof.Covers[0].Most[1] = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := proved(t)
			if spoil(&p); plantest.Verify(s, p) == nil {
				t.Error("verified")
			}
		})
	}
}
