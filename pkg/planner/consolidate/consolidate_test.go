package consolidate_test

import (
	"fmt"
	"slices"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// running returns a fleet of g4dn machines with ten replicas per GPU. Each runs the given number of pods with 1 CPU and 2 GiB, and move is the cost of moving a
// pod.
func running(move planner.MicroUSD, machines ...launched) consolidate.Layout {
	s := plantest.Identical(plantest.Offerings(plantest.G4dn(), 10), 0, plantest.Request(1000, 2048, 1))
	l := consolidate.Layout{}
	var names []string
	for i := range 1000 {
		names = append(names, plantest.Class(s, "pod", i+1, planner.Resources{}).Pods[i])
	}
	for _, m := range machines {
		i := slices.IndexFunc(s.Offerings, func(o planner.Offering) bool { return o.InstanceType == m.name })
		x := plantest.Launched(&s, i)
		for range m.pods {
			pod := consolidate.Running{Name: names[0], GPU: -1, Move: move}
			names = names[1:]
			plantest.Run(&s, x.Node, pod)
			x.Pods = append(x.Pods, pod)
		}
		l.Machines = append(l.Machines, x)
	}
	l.Snapshot = s
	return l
}

// launched is a machine type and the number of pods on it.
type launched struct {
	name string
	pods int
}

func TestPlanFindsCheaperLayoutsWorkedOutByHand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		from  consolidate.Layout
		most  []int
		price planner.MicroUSD
	}{
		{"an empty machine goes", running(20_000, launched{"g4dn.xlarge", 0}, launched{"g4dn.xlarge", 3}), nil, 526_000},
		{"eleven pods on a 12xlarge go to two 2xlarge", running(20_000, launched{"g4dn.12xlarge", 11}), nil, 2 * 752_000},
		{"41 on metal are split", running(20_000, launched{"g4dn.metal", 41}), nil, 4_438_000},
		{"two half-empty xlarge become one", running(20_000, launched{"g4dn.xlarge", 1}, launched{"g4dn.xlarge", 2}), nil, 526_000},
		{"two half-empty 2xlarge become one", running(20_000, launched{"g4dn.2xlarge", 4}, launched{"g4dn.2xlarge", 3}), nil, 752_000},
		{"no pod moves for less than the cost of the move", running(300_000, launched{"g4dn.xlarge", 2}, launched{"g4dn.xlarge", 2}), nil, 2 * 526_000},
		{"three become one if two may leave at a time", running(20_000, launched{"g4dn.2xlarge", 2}, launched{"g4dn.2xlarge", 2}, launched{"g4dn.2xlarge", 2}), []int{2}, 752_000},
		{"no machine leaves if none may", running(20_000, launched{"g4dn.xlarge", 0}), []int{0}, 526_000},
	} {
		l := c.from
		for {
			l.Most = c.most
			o := consolidate.Plan(solve.Solver{}, l)
			takeSteps(t, l, o)
			if len(o.Steps) == 0 {
				break
			}
			step := o.Steps[0]
			before := plantest.Price(l)
			if l = plantest.After(l, step); plantest.Price(l) != before-step.Saving {
				t.Fatalf("%s: it costs %d after a step that saves %d of %d", c.name, plantest.Price(l), step.Saving, before)
			}
		}
		if plantest.Price(l) != c.price {
			t.Errorf("%s: it costs %d in the end, want %d", c.name, plantest.Price(l), c.price)
		}
	}
}

// limited returns the layout with a pool that may launch the given number of machines.
func limited(l consolidate.Layout, nodes int64) consolidate.Layout {
	l.Snapshot.Pools[0].Remaining.Nodes = nodes
	return l
}

func TestPlanSplitsMachineOnlyWithinPoolLimits(t *testing.T) {
	t.Parallel()
	for nodes, steps := range map[int64]int{0: 0, 1: 1} {
		// The step frees one machine of the limit but needs two.
		l := limited(running(20_000, launched{"g4dn.12xlarge", 11}), nodes)
		o := consolidate.Plan(solve.Solver{}, l)
		takeSteps(t, l, o)
		if len(o.Steps) != steps {
			t.Errorf("with %d machines left, there are %d steps, want %d", nodes, len(o.Steps), steps)
		}
	}
}

func TestStepUsesLimitFreedByEarlierStep(t *testing.T) {
	t.Parallel()
	// The pods of the 2xlarge fit on the 4xlarge. The large machine becomes two machines, and the second takes the place of the 2xlarge in the limit. That
	// saves more per move, but must come second.
	l := limited(running(20_000, launched{"g4dn.2xlarge", 5}, launched{"g4dn.4xlarge", 5}, launched{"g4dn.12xlarge", 11}), 0)
	s := &l.Snapshot
	s.Classes = append(s.Classes, s.Classes[0])
	s.Classes[0].Nodes, s.Classes[1].Offerings = nil, nil
	for i := range 2 {
		for k := range l.Machines[i].Pods {
			l.Machines[i].Pods[k].Class = 1
			l.Machines[1].Pods[k].Move = 1_000_000
		}
	}
	o := consolidate.Plan(solve.Solver{}, l)
	now, _ := takeSteps(t, l, o)
	if plantest.Price(now) != 1_204_000+2*752_000 || len(o.Steps) != 2 {
		t.Errorf("it costs %d in the end: %+v", plantest.Price(now), o.Steps)
	}
}

func TestSplitStepsPlaceNoPodsOnRemovedMachines(t *testing.T) {
	t.Parallel()
	// Both 4xlarge together could become one 2xlarge, but only one may leave at a time.
	l := running(20_000, launched{"g4dn.2xlarge", 0}, launched{"g4dn.4xlarge", 4}, launched{"g4dn.4xlarge", 3}, launched{"g4dn.metal", 12}, launched{"g4dn.metal", 9})
	l.Most = []int{1}
	if _, net := takeSteps(t, l, consolidate.Plan(solve.Solver{}, l)); net <= 0 {
		t.Error("nothing is saved")
	}
}

func TestStepsKeepAntiAffinityToRunningPods(t *testing.T) {
	t.Parallel()
	// Each of two machines has a pod, and the pods may not share a machine. Only one of them fits on the third machine.
	l := running(20_000, launched{"g4dn.xlarge", 1}, launched{"g4dn.xlarge", 1}, launched{"g4dn.2xlarge", 3})
	s := &l.Snapshot
	s.Classes = append(s.Classes, s.Classes[0])
	s.Classes[1].Nodes = []int{2}
	s.Rules = []planner.Rule{{Kind: planner.Apart, Name: "apart", Topology: planner.PerNode, Classes: []int{1}, Counted: []int{1}}}
	l.Machines[0].Pods[0].Class, l.Machines[1].Pods[0].Class = 1, 1
	o := consolidate.Plan(solve.Solver{}, l)
	takeSteps(t, l, o)
	if len(o.Steps) != 1 || len(o.Steps[0].Leave) != 1 {
		t.Errorf("steps %+v, want one that gives one machine back", o.Steps)
	}
	s.Classes[1].Pods = []string{"default/waits"}
	for _, step := range consolidate.Plan((solve.Solver{}), l).Steps {
		if slices.ContainsFunc(step.Placements, func(p planner.Placement) bool { return p.Node == 2 }) {
			t.Errorf("step %+v goes to where one that waits has its place", step)
		}
	}
}

func TestPendingPodTakesFreeCapacityBeforeMovedPods(t *testing.T) {
	t.Parallel()
	// The 2xlarge has room for two pods. One pod is pending, so the two pods of the xlarge do not fit.
	l := running(20_000, launched{"g4dn.xlarge", 2}, launched{"g4dn.2xlarge", 5})
	if o := consolidate.Plan((solve.Solver{}), l); len(o.Steps) != 1 {
		t.Fatalf("steps %+v while nobody waits, want one", o.Steps)
	}
	l.Snapshot.Classes[0].Pods = []string{"default/waits"}
	l.Snapshot.Classes[0].Nodes = []int{1}
	if o := consolidate.Plan((solve.Solver{}), l); len(o.Steps) != 0 {
		t.Errorf("steps %+v while a pod waits, want none", o.Steps)
	}
}

func TestPlanReturnsNoStepsForInvalidLayout(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*consolidate.Layout){
		"an unknown node":             func(l *consolidate.Layout) { l.Machines[0].Node = 9 },
		"an unknown pool":             func(l *consolidate.Layout) { l.Machines[0].Pool = -1 },
		"an unknown class":            func(l *consolidate.Layout) { l.Machines[0].Pods[0].Class = 3 },
		"a pod that runs twice":       func(l *consolidate.Layout) { l.Machines[0].Pods[1].Name = l.Machines[0].Pods[0].Name },
		"a machine with price zero":   func(l *consolidate.Layout) { l.Machines[0].Price = 0 },
		"a move with a negative cost": func(l *consolidate.Layout) { l.Machines[0].Pods[0].Move = -1 },
		"a blocked class":             func(l *consolidate.Layout) { l.Snapshot.Classes[0].Blocked = &planner.Refusal{} },
		"an invalid snapshot":         func(l *consolidate.Layout) { l.Snapshot.Classes[0].Requests.Pods = 7 },
	} {
		l := running(20_000, launched{"g4dn.12xlarge", 11})
		spoil(&l)
		if o := consolidate.Plan((solve.Solver{}), l); len(o.Steps) != 0 || len(o.Surplus) != 0 {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// slots returns a layout of two machines with one pod each, and a machine type with reserved slots of which so many are left. Each pod fits on any machine.
func slots(left int64, reserved ...bool) consolidate.Layout {
	s := plantest.Identical(plantest.Offerings(plantest.G4dn()[:1], 10), 0, plantest.Request(3000, 1024, 1))
	slot := s.Offerings[0]
	slot.Price, slot.CapacityType, slot.Draws = 1, "reserved", []planner.Draw{{Amount: 1}}
	s.Offerings = append(s.Offerings, slot)
	s.Stocks = []planner.Stock{{Name: "cr-0123", Left: left + int64(len(reserved))}}
	s.Classes[0].Offerings = []int{0, 1}
	l := consolidate.Layout{Snapshot: s}
	for i, free := range reserved {
		of := 0
		if free {
			of = 1
		}
		m := plantest.Launched(&l.Snapshot, of)
		pod := consolidate.Running{Name: fmt.Sprintf("default/pod-%d", i), GPU: -1, Move: 1000}
		plantest.Run(&l.Snapshot, m.Node, pod)
		m.Pods = []consolidate.Running{pod}
		l.Machines = append(l.Machines, m)
	}
	l.Snapshot.Stocks[0].Left = left
	return l
}

func TestFreedSnapshotIsValidIfMachinesDrewMuchFromStocks(t *testing.T) {
	t.Parallel()
	l := slots(planner.MaxAmount, true, true)
	l.Machines[0].Draws, l.Machines[1].Draws = []planner.Draw{{Amount: 1}}, []planner.Draw{{Amount: planner.MaxAmount}}
	if err := planner.Validate(l.Freed([]int{0, 1})); err != nil {
		t.Error(err)
	}
}

func TestPodsMoveOntoFreeSlotsAndNotOffThem(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		layout consolidate.Layout
		leave  []int
	}{
		"one slot is free":     {slots(1, false, true), []int{0}},
		"no slot is free":      {slots(0, false, true), nil},
		"all are in slots":     {slots(2, true, true), nil},
		"two slots are free":   {slots(2, false, false), []int{0, 1}},
		"one slot, two movers": {slots(1, false, false), []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var leave []int
			for _, step := range consolidate.Plan(solve.Solver{}, tc.layout).Steps {
				leave = append(leave, step.Leave...)
				for _, x := range step.Launches {
					if x.Offering != 1 {
						t.Errorf("a machine is launched at full price: %v", step)
					}
				}
			}
			slices.Sort(leave)
			if len(leave) != len(tc.leave) {
				t.Errorf("machines %v leave, want %v", leave, tc.leave)
			}
		})
	}
}
