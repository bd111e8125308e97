package solve_test

import (
	"cmp"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/internal/properties"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// jobs returns a snapshot with pods of one replica that fill a g4dn.xlarge with four, at most so many machines, and a group for each number of pods except the first, which are of no group.
func jobs(machines int64, pods ...int) planner.Snapshot {
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("gpu-shared")}, Offerings: plantest.Offerings(plantest.G4dn()[:1], 4)}
	s.Pools[0].Remaining.Nodes = machines
	for i, n := range pods {
		name := "single"
		if i > 0 {
			name = fmt.Sprint("job-", i)
			s.Groups = append(s.Groups, planner.Group{Name: "PodGroup ml/" + name, Classes: []int{i}, Min: int64(n)})
		}
		s.Classes = append(s.Classes, plantest.Class(s, name, n, plantest.Request(500, 1024, 1)))
	}
	return s
}

// placedOf returns how many pods of each class a plan places.
func placedOf(s planner.Snapshot, p planner.Plan) []int {
	n := make([]int, len(s.Classes))
	left := map[string]bool{}
	for _, u := range p.Unplaced {
		left[u.Pod] = true
	}
	for c := range s.Classes {
		for _, pod := range s.Classes[c].Pods {
			if !left[pod] {
				n[c]++
			}
		}
	}
	return n
}

// anewAndResumed returns a plan for a snapshot, and those that continue it and a plan that was made without the groups.
func anewAndResumed(s planner.Snapshot) map[string]planner.Plan {
	plan, ungrouped := solve.Plan(s), s
	ungrouped.Groups = nil
	return map[string]planner.Plan{
		"anew": plan, "resumed": solve.Solver{}.Resume(s, plan), "resumed from parts of groups": solve.Solver{}.Resume(s, solve.Plan(ungrouped)),
	}
}

func TestGroupsArePlacedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		s    planner.Snapshot
		edit func(*planner.Snapshot)
		want []int
	}{
		"all fit":                             {s: jobs(10, 5, 12, 8), want: []int{5, 12, 8}},
		"a job is larger than the limit":      {s: jobs(5, 0, 30), want: []int{0, 0}},
		"others use the room of a large job":  {s: jobs(5, 10, 30), want: []int{10, 0}},
		"the first of two":                    {s: jobs(5, 0, 12, 12), want: []int{0, 12, 0}},
		"the first fits no more":              {s: jobs(2, 0, 12, 8), want: []int{0, 0, 8}},
		"never half of two":                   {s: jobs(4, 0, 12, 12), want: []int{0, 12, 0}},
		"a job before other pods":             {s: jobs(4, 20, 12), want: []int{4, 12}},
		"the third fits beside the first":     {s: jobs(5, 0, 12, 12, 8), want: []int{0, 12, 0, 8}},
		"higher priority first":               {jobs(4, 0, 12, 12), func(s *planner.Snapshot) { s.Classes[2].Priority = 1 }, []int{0, 0, 12}},
		"other pods of higher priority first": {jobs(4, 10, 12), func(s *planner.Snapshot) { s.Classes[0].Priority = 1 }, []int{10, 0}},
		"more than the minimum where it fits": {jobs(4, 0, 20), func(s *planner.Snapshot) { s.Groups[0].Min = 8 }, []int{0, 16}},
		"a pod of which nothing may be planned": {jobs(5, 3, 4, 4), func(s *planner.Snapshot) {
			s.Classes[2].Blocked = &planner.Refusal{Reason: planner.ReasonVolumes, Message: "there is no volume"}
			s.Groups = []planner.Group{{Name: "PodGroup ml/job", Classes: []int{1, 2}, Min: 6}}
		}, []int{3, 0, 0}},
		"leader and workers": {jobs(4, 1, 1, 16), func(s *planner.Snapshot) {
			s.Groups = []planner.Group{{Name: "PodGroup ml/job", Classes: []int{1, 2}, Min: 17}}
		}, []int{1, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.edit != nil {
				tc.edit(&tc.s)
			}
			for how, p := range anewAndResumed(tc.s) {
				if err := check.Plan(tc.s, p); err != nil {
					t.Error(how, err)
				}
				if got := placedOf(tc.s, p); !slices.Equal(got, tc.want) {
					t.Errorf("%s: places %v, want %v", how, got, tc.want)
				}
			}
		})
	}
}

func TestMinimumOfAllGroupsComesBeforeOtherMembers(t *testing.T) {
	t.Parallel()
	s := jobs(4, 0, 20, 20)
	s.Groups[0].Min, s.Groups[1].Min = 8, 8
	for how, p := range anewAndResumed(s) {
		if err := check.Plan(s, p); err != nil {
			t.Error(how, err)
		}
		if got := placedOf(s, p); got[1] < 8 || got[2] < 8 || got[1]+got[2] != 16 {
			t.Errorf("%s: places %v", how, got)
		}
	}
}

func TestRefusalOfAGroupSaysHowManyPodsFit(t *testing.T) {
	t.Parallel()
	s := jobs(5, 0, 30)
	p := solve.Plan(s)
	if len(p.Unplaced) != 30 || len(p.Launches) > 0 {
		t.Fatalf("%d pods left out, %d launches", len(p.Unplaced), len(p.Launches))
	}
	for _, u := range p.Unplaced {
		if u.Reason != planner.ReasonGroup || !strings.HasPrefix(u.Message, "PodGroup ml/job-1 needs a place for 30 pods at once, and there is room for 20; beside these: ") || !strings.Contains(u.Message, "gpu-shared") {
			t.Fatalf("%s: %s", u.Reason, u.Message)
		}
	}
}

// A machine of a job is refused after the other one was launched, and single pods wait.
func TestRoomOfAGroupWithoutAPlaceIsHeld(t *testing.T) {
	t.Parallel()
	s := jobs(0, 8, 8)
	o := s.Offerings[0]
	s.Nodes = []planner.Node{{Name: "launched", Free: o.Free, GPUs: o.GPUs}}
	s.Classes[0].Nodes, s.Classes[1].Nodes = []int{0}, []int{0}
	earlier := planner.Plan{Placements: []planner.Placement{{Node: 0, Pods: s.Classes[1].Pods[:3]}}}
	below := plantest.Clone(s) // Pods below the priority cut-off take no held room either.
	below.Classes[0].Offerings, below.Classes[0].NoOffering = nil, &planner.Refusal{Reason: planner.ReasonPriority, Message: "too low"}
	for _, s := range []planner.Snapshot{s, below} {
		roomIsHeld(t, s, earlier)
	}
}

func roomIsHeld(t *testing.T, s planner.Snapshot, earlier planner.Plan) {
	t.Helper()
	for holds, want := range map[bool][]int{true: {1, 0}, false: {4, 0}} {
		s.Groups[0].Holds = holds
		p := solve.Solver{}.Resume(s, earlier)
		if err := check.Plan(s, p); err != nil {
			t.Error(err)
		}
		if got := placedOf(s, p); !slices.Equal(got, want) {
			t.Errorf("holds %v: places %v, want %v", holds, got, want)
		}
		if held := len(p.Held) == 1 && len(p.Held[0].Pods) == 3; held != holds {
			t.Errorf("holds %v: %v is held", holds, p.Held)
		}
	}
}

func TestPodsBelowTheCutoffStayWhole(t *testing.T) {
	t.Parallel()
	s := jobs(10, 3, 8)
	o := s.Offerings[0]
	s.Nodes = []planner.Node{{Name: "free", Free: o.Free, GPUs: o.GPUs}}
	s.Classes[0].Nodes, s.Classes[1].Nodes = []int{0}, []int{0}
	s.Classes[1].Offerings, s.Classes[1].NoOffering = nil, &planner.Refusal{Reason: planner.ReasonPriority, Message: "too low"}
	p := solve.Plan(s)
	if err := check.Plan(s, p); err != nil {
		t.Error(err)
	}
	if got := placedOf(s, p); !slices.Equal(got, []int{3, 0}) {
		t.Errorf("places %v", got)
	}
}

func TestGroupsKeepEveryRule(t *testing.T) { //nolint:paralleltest // Check runs it in parallel.
	properties.Check(func(t *rapid.T) {
		s := plantest.Grouped(rapid.OneOf(anything, anyRules)).Draw(t, "snapshot")
		if err := planner.Validate(s); err != nil {
			t.Fatal(err)
		}
		p := solve.Plan(s)
		if err := check.Plan(s, p); err != nil {
			t.Fatal(err)
		}
		shuffled := plantest.Shuffled(s, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
		if diff := gocmp.Diff(plantest.Names(s, p), plantest.Names(shuffled, solve.Plan(shuffled))); diff != "" {
			t.Fatalf("another order, another plan: %s", diff)
		}
		// Some machines are launched, others are refused.
		after, earlier := launchedInPart(t, s, p)
		if err := check.Plan(after, solve.Solver{}.Resume(after, earlier)); err != nil {
			t.Fatal(err)
		}
	})(t)
}

// launchedInPart returns the snapshot after some launches of a plan, and the plan in its terms.
func launchedInPart(t *rapid.T, s planner.Snapshot, p planner.Plan) (planner.Snapshot, planner.Plan) {
	launched := planner.Plan{Placements: slices.Clone(p.Placements)}
	for _, l := range p.Launches {
		if rapid.Bool().Draw(t, "launched") {
			launched.Launches = append(launched.Launches, l)
		}
	}
	after := plantest.Applied(s, launched)
	for i, l := range launched.Launches {
		launched.Placements = append(launched.Placements, planner.Placement{Node: len(s.Nodes) + i, Pods: l.Pods, GPUs: l.GPUs})
	}
	launched.Launches = nil
	return after, launched
}

// fewJobs draws up to seven pods, most of them in groups, and few machines.
func fewJobs(seed int64) planner.Snapshot {
	r := rand.New(rand.NewSource(seed))
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("gpu-shared")}, Offerings: plantest.Offerings(plantest.G4dn()[:3], int64(2+r.Intn(3)))}
	s.Pools[0].Remaining.Nodes = int64(r.Intn(3))
	if r.Intn(2) == 0 {
		s.Pools[0].Remaining.MilliCPU = int64(4000 * (1 + r.Intn(4)))
	}
	for v := range r.Intn(3) {
		s.Nodes = append(s.Nodes, partlyUsed(r, fmt.Sprint("node-", v), s.Offerings[r.Intn(2)]))
	}
	pods := 0
	for k := 0; pods < 5; k++ {
		n := min(1+r.Intn(3), 7-pods)
		pods += n
		cpu := []int64{500, 1000, 2000, 3000}[r.Intn(4)]
		s.Classes = append(s.Classes, plantest.Class(s, fmt.Sprint("shape-", k), n, plantest.Request(cpu, cpu*2, int64(1+r.Intn(2)))))
		switch {
		case r.Intn(4) == 0:
		case len(s.Groups) > 0 && r.Intn(4) == 0:
			g := &s.Groups[len(s.Groups)-1]
			g.Classes, g.Min = append(g.Classes, k), g.Min+int64(n)
		default:
			s.Groups = append(s.Groups, planner.Group{Name: fmt.Sprint("group ", k), Classes: []int{k}, Min: int64(n)})
		}
	}
	return s
}

// bestOfGroups returns which groups have a place if each takes one that has a place beside those before it, how many other pods then have one, and the lowest price.
func bestOfGroups(s planner.Snapshot) (fits []bool, others int, price planner.MicroUSD) {
	var fixed []string
	grouped := map[int]bool{}
	fits = make([]bool, len(s.Groups))
	for i, g := range s.Groups {
		pods := slices.Clone(fixed)
		for _, c := range g.Classes {
			grouped[c] = true
			pods = append(pods, s.Classes[c].Pods...)
		}
		if _, ok := plantest.Optimum(s, pods); ok {
			fits[i], fixed = true, pods
		}
	}
	var rest []string
	for c := range s.Classes {
		if !grouped[c] {
			rest = append(rest, s.Classes[c].Pods...)
		}
	}
	others = -1
	for set := range 1 << len(rest) {
		pods := slices.Clone(fixed)
		for i, pod := range rest {
			if set>>i&1 == 1 {
				pods = append(pods, pod)
			}
		}
		n := len(pods) - len(fixed)
		if n < others {
			continue
		}
		if p, ok := plantest.Optimum(s, pods); ok && (n > others || p < price) {
			others, price = n, p
		}
	}
	return fits, others, price
}

func TestFewGroupsAreOptimal(t *testing.T) {
	t.Parallel()
	judge(t, judged(200, 1000), 0.98, 1, func(t *testing.T, seed int64) verdict {
		t.Helper()
		s := fewJobs(seed)
		p := solve.Plan(s)
		if err := check.Plan(s, p); err != nil {
			t.Errorf("case %d: %v", seed, err)
		}
		got := placedOf(s, p)
		fits, others, price := bestOfGroups(s)
		left := others
		grouped := map[int]bool{}
		for i, g := range s.Groups {
			for _, c := range g.Classes {
				grouped[c] = true
			}
			if fits[i] != (got[g.Classes[0]] > 0) {
				t.Errorf("case %d: %s has a place is %v, it should be %v\n%s", seed, g.Name, !fits[i], fits[i], plantest.Outline(s))
				return verdict{}
			}
		}
		for c, n := range got {
			if !grouped[c] {
				left -= n
			}
		}
		if p.Bound > price && left == 0 {
			t.Errorf("case %d: the bound %d is above the optimum %d", seed, p.Bound, price)
		}
		v := verdict{gap: float64(p.Price-p.Bound) / float64(cmp.Or(p.Price, 1)), over: float64(p.Price-price) / float64(cmp.Or(price, 1))}
		if left != 0 { // Like any pods of higher priority, groups get the cheapest machines, which may have less room for the other pods.
			v.over = float64(left) / float64(others)
		}
		return v
	})
}
