package solve_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// many returns a snapshot with the given number of classes of two pods each. Each pod fits on a machine.
func many(classes int) planner.Snapshot {
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("shared")}, Offerings: plantest.Offerings(plantest.G4dn(), 10)}
	for i := range classes {
		class := planner.Class{Requests: planner.Resources{MilliCPU: int64(100 + i), MemoryBytes: plantest.Gi, Pods: 1, Replicas: 1}}
		for o := range s.Offerings {
			class.Offerings = append(class.Offerings, o)
		}
		for k := range 2 {
			class.Pods = append(class.Pods, fmt.Sprintf("default/app-%04d-%d", i, k))
		}
		s.Classes = append(s.Classes, class)
	}
	return s
}

// faults break a plan as a bug that affects one class could. Where a fault names a pod, it is of that class.
var faults = map[string]func(p *planner.Plan, pod string){
	"the pod is lost": func(p *planner.Plan, pod string) {
		for i := range p.Launches {
			p.Launches[i].Pods = slices.DeleteFunc(slices.Clone(p.Launches[i].Pods), func(x string) bool { return x == pod })
		}
	},
	"the pod is placed twice": func(p *planner.Plan, pod string) {
		p.Launches = append(p.Launches, planner.Launch{Offering: 0, Pods: []string{pod}})
		p.Price += plantest.Offerings(plantest.G4dn(), 10)[0].Price
	},
	"its launch has the wrong GPUs": func(p *planner.Plan, pod string) { // This affects all pods of the machine.
		for i := range p.Launches {
			if slices.Contains(p.Launches[i].Pods, pod) {
				p.Launches[i].GPUs = make([]int, len(p.Launches[i].Pods))
			}
		}
	},
	"the price is wrong":     func(p *planner.Plan, _ string) { p.Price++ },
	"the bound is too high":  func(p *planner.Plan, _ string) { p.Bound = p.Price + 1 },
	"planning for it panics": func(*planner.Plan, string) { panic("index out of range") },
}

// buggy returns a planner that introduces the fault for these classes as long as they are not blocked. Otherwise its plans are valid.
func buggy(bad []int, fault func(*planner.Plan, string)) func(planner.Snapshot) planner.Plan {
	return func(s planner.Snapshot) planner.Plan {
		plan := solve.Solver{Effort: 1}.Plan(s)
		for _, i := range bad {
			if s.Classes[i].Blocked == nil {
				fault(&plan, s.Classes[i].Pods[0])
			}
		}
		return plan
	}
}

func never() bool  { return false }
func always() bool { return true }

func TestContainSetsAsideClassThatBreaksPlan(t *testing.T) {
	t.Parallel()
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				s := many(rapid.IntRange(1, 12).Draw(t, "classes"))
				bad := rapid.IntRange(0, len(s.Classes)-1).Draw(t, "bad")
				kept, plan, aside, err := solve.Contain(s, nil, buggy([]int{bad}, fault), never, nil)
				if err != nil {
					t.Fatal(err)
				}
				if len(aside) != 1 || aside[0].Class != bad || aside[0].Invalid || aside[0].Refusal.Reason != planner.ReasonSetAside {
					t.Fatalf("set aside: %+v, want class %d", aside, bad)
				}
				if err := check.Plan(kept, plan); err != nil {
					t.Fatal(err)
				}
				left := without(s, bad)
				if diff := cmp.Diff(plantest.PlacedPods(solve.Solver{Effort: 1}.Plan(left)), plantest.PlacedPods(plan)); diff != "" {
					t.Fatalf("the others have other places (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func without(s planner.Snapshot, class int) planner.Snapshot {
	s.Classes = slices.Clone(s.Classes)
	s.Classes[class].Blocked = &planner.Refusal{Reason: "Left", Message: "out"}
	return s
}

func TestContainFindsBadClassAmongThousandInFewAttempts(t *testing.T) {
	t.Parallel()
	s := many(1000)
	attempts := 0
	build := func(s planner.Snapshot) planner.Plan { // This planner leaves all pods unplaced, so that even a thousand classes take no time.
		attempts++
		var plan planner.Plan
		for _, c := range s.Classes {
			for _, pod := range c.Pods {
				plan.Unplaced = append(plan.Unplaced, planner.Unplaced{Pod: pod, Refusal: planner.Refusal{Reason: "Full", Message: "full"}})
			}
		}
		if s.Classes[617].Blocked == nil {
			plan.Price++
		}
		return plan
	}
	_, _, aside, err := solve.Contain(s, nil, build, never, nil)
	if err != nil || len(aside) != 1 || aside[0].Class != 617 {
		t.Errorf("set aside: %+v, %v", aside, err)
	}
	if attempts > 24 {
		t.Errorf("%d plans were made", attempts)
	}
}

func TestContainSetsAsideSeveralClasses(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := many(20)
		bad := slices.Compact(slices.Sorted(slices.Values(rapid.SliceOfN(rapid.IntRange(0, 19), 2, 4).Draw(t, "bad"))))
		_, _, aside, err := solve.Contain(s, nil, buggy(bad, faults["the pod is lost"]), always, nil)
		var got []int
		for _, a := range aside {
			got = append(got, a.Class)
		}
		if err != nil || !slices.Equal(got, bad) {
			t.Fatalf("set aside: %v, want %v: %v", got, bad, err)
		}
	})
}

func TestContainPlansOnceWithoutFault(t *testing.T) {
	t.Parallel()
	s := many(5)
	attempts := 0
	kept, plan, aside, err := solve.Contain(s, nil, func(s planner.Snapshot) planner.Plan { attempts++; return solve.Plan(s) }, always, nil)
	if err != nil || attempts != 1 || len(aside) > 0 {
		t.Fatalf("%d plans, set aside %v: %v", attempts, aside, err)
	}
	if diff := cmp.Diff(solve.Plan(s), plan); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(s, kept); diff != "" {
		t.Error(diff)
	}
}

func TestContainTriesGivenPlanFirst(t *testing.T) {
	t.Parallel()
	s := many(5)
	for name, x := range map[string]struct {
		first planner.Plan
		made  int
	}{"a sound one": {solve.Plan(s), 0}, "one that breaks a rule": {planner.Plan{Price: 1}, 1}} {
		made := 0
		_, plan, _, err := solve.Contain(s, &x.first, func(s planner.Snapshot) planner.Plan { made++; return solve.Plan(s) }, always, nil)
		if err != nil || made < x.made || x.made == 0 && made > 0 {
			t.Errorf("%s: %d plans were made besides: %v", name, made, err)
		}
		if x.made == 0 {
			if diff := cmp.Diff(x.first, plan); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}

func TestContainFailsSoonIfEveryPlanIsInvalid(t *testing.T) {
	t.Parallel()
	attempts := 0
	_, _, _, err := solve.Contain(many(50), nil, func(planner.Snapshot) planner.Plan { attempts++; return planner.Plan{Price: 1} }, always, nil)
	if err == nil || attempts > 10 {
		t.Errorf("%d plans, error %v", attempts, err)
	}
}

func TestInvalidValueSetsAsideOnlyItsClasses(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		spoil func(*planner.Snapshot)
		aside []int
	}{
		"a class with negative requests":      {func(s *planner.Snapshot) { s.Classes[2].Requests.MilliCPU = -1 }, []int{2}},
		"a class that requests no pod slot":   {func(s *planner.Snapshot) { s.Classes[2].Requests.Pods = 0 }, []int{2}},
		"a class with negative device memory": {func(s *planner.Snapshot) { s.Classes[2].GPUMemoryBytes = -1 }, []int{2}},
		"a pod in two classes":                {func(s *planner.Snapshot) { s.Classes[3].Pods[0] = s.Classes[1].Pods[0] }, []int{3}},
		"an unknown offering":                 {func(s *planner.Snapshot) { s.Classes[2].Offerings = []int{99} }, []int{2}},
		"an unknown quota":                    {func(s *planner.Snapshot) { s.Classes[2].Quotas = []planner.Amount{{Quota: 7, Count: 1}} }, []int{2}},
		"a preference for an unknown rule":    {func(s *planner.Snapshot) { s.Classes[2].Preferences = []planner.Preference{{Rule: 5}} }, []int{2}},
		"an empty rule": {func(s *planner.Snapshot) {
			s.Rules = []planner.Rule{{Kind: "Sideways", Topology: planner.PerNode, Classes: []int{1, 4}}}
		}, []int{1, 4}},
		"an offering with price zero": {func(s *planner.Snapshot) { s.Offerings[1].Price = 0 }, nil},
		"duplicate node names": {func(s *planner.Snapshot) {
			s.Nodes = []planner.Node{{Name: "n"}, {Name: "n"}}
			s.Classes[0].Nodes = []int{0, 1}
		}, nil},
		"a node with negative capacity": {func(s *planner.Snapshot) {
			s.Nodes = []planner.Node{{Name: "n", Free: planner.Resources{MilliCPU: -1}}}
			s.Classes[0].Nodes = []int{0}
		}, nil},
		"duplicate pool names": {func(s *planner.Snapshot) { s.Pools = append(s.Pools, s.Pools[0]) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := many(5)
			x.spoil(&s)
			if planner.Validate(s) == nil {
				t.Fatal("the snapshot is valid")
			}
			kept, plan, aside, err := solve.Contain(s, nil, solve.Plan, never, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			for _, a := range aside {
				got = append(got, a.Class)
				if !a.Invalid {
					t.Errorf("class %d is not reported as invalid", a.Class)
				}
			}
			if !slices.Equal(got, x.aside) {
				t.Errorf("set aside: %v, want %v", got, x.aside)
			}
			if err := check.Plan(kept, plan); err != nil {
				t.Error(err)
			}
			if placed := len(plantest.PlacedPods(plan)); placed < 10-2*len(x.aside) {
				t.Errorf("%d pods have a place: %+v", placed, plan.Unplaced)
			}
			for _, u := range plan.Unplaced {
				if !strings.Contains(u.Message, "report") {
					t.Errorf("pod %s is told %q", u.Pod, u.Message)
				}
			}
		})
	}
}
