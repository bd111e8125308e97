package disruption

import (
	"slices"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
)

// Replays used to steer pods away from all machines that a layout does without. But pods cannot go elsewhere if no other machine has room, and if nothing can be
// cheaper, no machine is surplus. Both would only change where the scheduler puts pods.
func TestSurplusMachinesCanBeAvoided(t *testing.T) {
	t.Parallel()
	l := consolidate.Layout{Machines: []consolidate.Machine{{Node: 3}, {Node: 5}}}
	full, room := Resident{Claim: "full"}, Resident{Claim: "room", Room: true}
	for name, c := range map[string]struct {
		other        Resident
		price, bound planner.MicroUSD
		want         []string
	}{
		"another machine has room": {room, 2, 1, []string{"leaves"}},
		"no other machine has":     {full, 2, 1, nil},
		"nothing can be cheaper":   {room, 1, 1, nil},
	} {
		leaves := Resident{Claim: "leaves", Room: true}
		found, _ := Propose(l, []Resident{leaves, c.other}, consolidate.Outlook{Price: c.price, Bound: c.bound, Surplus: []int{3}})
		if !slices.Equal(found.Surplus, c.want) {
			t.Errorf("%s: %v is surplus, want %v", name, found.Surplus, c.want)
		}
	}
}

func TestMachinesWithoutPodsAreInNoProposal(t *testing.T) {
	t.Parallel()
	l := consolidate.Layout{Machines: []consolidate.Machine{{Node: 0, Pods: []consolidate.Running{{Name: "b"}, {Name: "a"}}}, {Node: 1}}}
	residents := []Resident{{Claim: "x", Class: "one", Restarts: []planner.MicroUSD{3, 4}}, {Claim: "y", Class: "two"}}
	found, steps := Propose(l, residents, consolidate.Outlook{Steps: []consolidate.Step{{Leave: []int{1}, Saving: 1}, {Leave: []int{0, 1}, Saving: 2}}})
	if len(found.Proposals) != 1 || len(steps) != 1 || steps[0].Saving != 2 {
		t.Fatalf("proposals %+v of steps %+v", found.Proposals, steps)
	}
	if p := found.Proposals[0]; !slices.Equal(p.Claims, []string{"x"}) || !slices.Equal(p.Pods, []string{"a", "b"}) || p.Restarts["one"] != 7 || len(p.Restarts) != 1 || p.Found != 2 {
		t.Errorf("proposal %+v", p)
	}
}
