package solve_test

import (
	"fmt"
	"math/rand"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// judged is how many of some thousand cases a test judges. The figures of docs/benchmarks.md are those of all cases.
func judged(few, all int) int {
	if n, err := strconv.Atoi(os.Getenv("KARVE_JUDGED")); err == nil {
		return min(n, all)
	}
	return few
}

// verdict is what brute force finds about a plan.
type verdict struct {
	leftOut int     // how many pods fewer it places than possible
	over    float64 // how much more it costs than necessary, as a fraction
	gap     float64 // how far its bound is below its price, as a fraction of the price
}

// judge compares plans for cases with the best that brute force finds, logs the figures, and fails below the share of optimal plans or above the excess price
// that are wanted.
func judge(t *testing.T, cases int, share, most float64, one func(t *testing.T, seed int64) verdict) {
	t.Helper()
	verdicts := make([]verdict, cases)
	var next atomic.Int64
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(cases) && !t.Failed(); i = next.Add(1) - 1 {
				verdicts[i] = one(t, i)
			}
		})
	}
	all.Wait()
	optimal, worst, fewer, gap := 0, 0.0, 0, 0.0
	for i, v := range verdicts {
		if v.leftOut == 0 && v.over == 0 {
			optimal++
		} else {
			t.Logf("case %d: %d pods left out without need, %.1f %% more expensive than necessary", i, v.leftOut, 100*v.over)
		}
		if v.leftOut > 0 {
			fewer++
		}
		worst = max(worst, v.over)
		gap += v.gap
	}
	t.Logf("%d of %d optimal, the worst %.1f %% too expensive, %d place fewer pods than possible, mean gap %.2f %%", optimal, cases, 100*worst, fewer, 100*gap/float64(cases))
	if float64(optimal) < share*float64(cases) || worst > most || fewer > 0 {
		t.Errorf("want %.0f %% optimal, none more than %.0f %% too expensive, and none that places fewer pods", 100*share, 100*most)
	}
}

// beyondExact is the number of pairs of a load and a part of it that makes a case interesting.
const beyondExact = 2_000_000

// fewPods draws pods in a few shapes beside a few nodes, too many for an exact search of the solver and few enough for brute force.
func fewPods(seed int64) planner.Snapshot {
	r := rand.New(rand.NewSource(seed))
	for {
		// Brute force takes long for machines with more than two GPUs.
		types := slices.Concat(plantest.G4dn()[:4], []plantest.Machine{{Type: "half a g4dn.12xlarge", VCPU: 24, MilliCPU: 23900, MiB: 89466, Pods: 117, GPUs: 2, GPUMiB: 15_360, Price: 1_956_000}})
		replicas := []int64{4, 10}[r.Intn(2)]
		s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("gpu-shared")}, Offerings: plantest.Offerings(types, replicas)}
		for v := range 1 + r.Intn(4) {
			if v > 0 && r.Intn(4) == 0 {
				n := s.Nodes[v-1]
				n.Name = fmt.Sprint("node-", v)
				s.Nodes = append(s.Nodes, n)
				continue
			}
			s.Nodes = append(s.Nodes, partlyUsed(r, fmt.Sprint("node-", v), s.Offerings[[]int{0, 0, 1, 1, 2, 4}[r.Intn(6)]]))
		}
		stated, pairs := r.Intn(2) == 0, len(s.Nodes)+1
		for k := range 5 + r.Intn(2) {
			n := 2 + r.Intn(4)
			pairs *= (n + 1) * (n + 2) / 2
			cpu := []int64{250, 500, 1000, 1500, 2000, 3000, 4000, 6000}[r.Intn(8)]
			c := plantest.Class(s, fmt.Sprint("shape-", k), n, plantest.Request(cpu, cpu*int64(1+r.Intn(4)), int64(1+r.Intn(8)/7)))
			if stated {
				c.GPUMemoryBytes = []int64{1024, 2048, 3072, 4096, 5120, 8192}[r.Intn(6)] * plantest.Mi
			}
			if r.Intn(4) == 0 {
				out := r.Intn(len(s.Nodes))
				c.Nodes = slices.DeleteFunc(c.Nodes, func(v int) bool { return v == out })
			}
			s.Classes = append(s.Classes, c)
		}
		if pairs > beyondExact && plantest.WaitingNumbers(s) <= 6000 {
			return s
		}
	}
}

// partlyUsed returns a node of an offering, some of which is used.
func partlyUsed(r *rand.Rand, name string, o planner.Offering) planner.Node {
	n := planner.Node{Name: name, Free: o.Free, GPUs: slices.Clone(o.GPUs), Domains: o.Domains}
	left := int64(2 + r.Intn(9))
	n.Free.MilliCPU, n.Free.MemoryBytes = o.Free.MilliCPU*left/10, o.Free.MemoryBytes*min(10, left+int64(r.Intn(3)))/10
	for g := range n.GPUs {
		used := int64(r.Intn(int(n.GPUs[g].Replicas)/2 + 1))
		n.GPUs[g].MemoryBytes -= n.GPUs[g].MemoryBytes * used / n.GPUs[g].Replicas
		n.GPUs[g].Replicas -= used
		n.Free.Replicas -= used
	}
	return n
}

func TestPlansBesideNodesAreAsGoodAsBruteForceFinds(t *testing.T) {
	t.Parallel()
	judge(t, judged(60, 1000), 0.98, 0.25, func(t *testing.T, seed int64) verdict {
		return judgePlain(t, seed, fewPods(seed))
	})
}

// withStocks adds reserved slots and a savings plan to a snapshot, whose first offerings are those of a pool on demand.
func withStocks(seed int64, s planner.Snapshot) planner.Snapshot {
	r := rand.New(rand.NewSource(^seed))
	listed := slices.Clone(s.Offerings)
	add := func(of int, price planner.MicroUSD, stock int, amount int64) {
		o := listed[of]
		o.Price, o.Draws = price, []planner.Draw{{Stock: stock, Amount: amount}}
		s.Offerings = append(s.Offerings, o)
	}
	for range r.Intn(3) {
		of := r.Intn(len(listed))
		s.Stocks = append(s.Stocks, planner.Stock{Name: fmt.Sprintf("reservation-%d", len(s.Stocks)), Left: int64(1 + r.Intn(2))})
		add(of, max(1, listed[of].Price/10_000_000), len(s.Stocks)-1, 1)
	}
	if len(s.Stocks) == 0 || r.Intn(2) == 0 {
		s.Stocks = append(s.Stocks, planner.Stock{Name: "savings plan", Left: int64(200_000 + r.Intn(2_000_000))})
		for of, o := range listed {
			price := o.Price * planner.MicroUSD(40+r.Intn(3)*15) / 100
			add(of, price, len(s.Stocks)-1, int64(price))
		}
	}
	for k := range s.Classes {
		for i := len(listed); i < len(s.Offerings); i++ {
			s.Classes[k].Offerings = append(s.Classes[k].Offerings, i)
		}
	}
	return s
}

// fewShapes draws pods in three or four shapes, beside at most one node.
func fewShapes(seed int64) planner.Snapshot {
	r := rand.New(rand.NewSource(seed))
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("gpu-shared")}, Offerings: plantest.Offerings(plantest.G4dn()[:4], []int64{4, 10}[r.Intn(2)])}
	for v := range r.Intn(2) {
		s.Nodes = append(s.Nodes, partlyUsed(r, fmt.Sprint("node-", v), s.Offerings[r.Intn(3)]))
	}
	for k := range 3 + r.Intn(2) {
		cpu := []int64{500, 1000, 1500, 2000, 3000, 4000, 6000}[r.Intn(7)]
		s.Classes = append(s.Classes, plantest.Class(s, fmt.Sprint("shape-", k), 2+r.Intn(4), plantest.Request(cpu, cpu*int64(1+r.Intn(4)), int64(1+r.Intn(8)/7))))
	}
	return s
}

func TestPlansWithStocksAreAsGoodAsBruteForceFinds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		few  int
		draw func(seed int64) planner.Snapshot
	}{"few shapes": {200, fewShapes}, "few pods beside nodes": {10, fewPods}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			judge(t, judged(tc.few, 1000), 0.99, 0.25, func(t *testing.T, seed int64) verdict {
				return judgePlain(t, seed, withStocks(seed, tc.draw(seed)))
			})
		})
	}
}

// rationed draws pods in a few shapes for one or two pools with limits, which share reserved slots and savings plans. Their first offerings are at list prices.
func rationed(seed int64) planner.Snapshot {
	r := rand.New(rand.NewSource(seed))
	s := planner.Snapshot{}
	for i := range 1 + r.Intn(2) {
		p := plantest.Pool(fmt.Sprint("pool-", i))
		for range r.Intn(3) {
			switch left := &p.Remaining; r.Intn(4) {
			case 0:
				left.Nodes = int64(1 + r.Intn(4))
			case 1:
				left.GPUs = int64(1 + r.Intn(6))
			case 2:
				left.MilliCPU = int64(1+r.Intn(8)) * 4000
			case 3:
				left.MemoryBytes = int64(1+r.Intn(8)) * 16 << 30
			}
		}
		s.Pools = append(s.Pools, p)
		replicas := []int64{4, 10}[r.Intn(2)]
		for _, m := range slices.Concat(plantest.G4dn()[:3], plantest.G4dn()[5:6]) {
			if r.Intn(4) > 0 {
				s.Offerings = append(s.Offerings, m.Offering(i, "", "on-demand", m.Price, replicas))
			}
		}
	}
	for v := range r.Intn(2) {
		s.Nodes = append(s.Nodes, partlyUsed(r, fmt.Sprint("node-", v), plantest.Offerings(plantest.G4dn()[:3], 4)[r.Intn(3)]))
	}
	addRations(r, &s)
	for k := range 2 + r.Intn(3) {
		cpu := []int64{500, 1000, 1500, 2000, 3000, 4000, 6000}[r.Intn(7)]
		c := plantest.Class(s, fmt.Sprint("shape-", k), 1+r.Intn(4), plantest.Request(cpu, cpu*int64(1+r.Intn(4)), int64(1+r.Intn(8)/7)))
		switch r.Intn(6) {
		case 0: // a pod that selects a pool
			c.Offerings = slices.DeleteFunc(c.Offerings, func(i int) bool { return s.Offerings[i].Pool > 0 })
		case 1: // a pod that selects no slot
			c.Offerings = slices.DeleteFunc(c.Offerings, func(i int) bool { return s.Offerings[i].CapacityType == "reserved" })
		}
		s.Classes = append(s.Classes, c)
	}
	return s
}

// addRations adds two to four stocks to a snapshot: the slots of reservations, and savings plans for all machines or for one type, in dollars or in machines. The slots
// cost what package catalog lets them.
func addRations(r *rand.Rand, s *planner.Snapshot) {
	listed := slices.Clone(s.Offerings)
	types := plantest.G4dn()
	for n := range 2 + r.Intn(3) {
		of := types[r.Intn(3)].Type
		stock := planner.Stock{Name: fmt.Sprint("stock-", n), Left: int64(1 + r.Intn(2))}
		kind, rate := r.Intn(5), planner.MicroUSD(40+r.Intn(4)*15)
		if kind == 3 {
			stock.Left = int64(200_000 + r.Intn(2_000_000))
		}
		for _, o := range listed {
			switch {
			case kind <= 1 && o.InstanceType == of:
				o.CapacityType, o.Price = "reserved", max(1, o.Price/100_000)
				o.Draws = []planner.Draw{{Stock: n, Amount: 1}}
			case kind == 2 && o.InstanceType == of:
				o.Price = o.Price * rate / 100
				o.Draws = []planner.Draw{{Stock: n, Amount: 1}}
			case kind == 3, kind == 4 && o.InstanceType == of:
				o.Price = o.Price * rate / 100
				o.Draws = []planner.Draw{{Stock: n, Amount: int64(o.Price)}}
			default:
				continue
			}
			s.Offerings = append(s.Offerings, o)
		}
		if kind == 4 {
			stock.Left = int64(200_000 + r.Intn(2_000_000))
		}
		s.Stocks = append(s.Stocks, stock)
	}
}

func TestPlansWithStocksAndLimitsAreAsGoodAsBruteForceFinds(t *testing.T) {
	t.Parallel()
	judge(t, judged(120, 1000), 0.99, 0.25, func(t *testing.T, seed int64) verdict {
		return judgePlain(t, seed, rationed(seed))
	})
}

// manyMachines draws pods of three shapes that need more machines than those for which a search branches. Most of them fit on small machines. The others need a few
// expensive ones, whose number cuts round up. Some of those are free if a stock is drawn.
func manyMachines(seed int64) planner.Snapshot {
	r := rand.New(rand.NewSource(seed))
	n := func(low, high int) int { return low + r.Intn(high-low+1) }
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("a")}}
	add := func(name string, price, cpu int, draws ...planner.Draw) {
		s.Offerings = append(s.Offerings, planner.Offering{
			InstanceType: name, Price: planner.MicroUSD(price), Free: planner.Resources{MilliCPU: int64(cpu), Pods: 100}, Physical: planner.Physical{Nodes: 1}, Draws: draws,
		})
	}
	dear := n(20, 50)
	add("dear", n(300, 900), dear)
	add("less dear", n(200, 700), n(15, 40))
	add("small", n(8, 12), n(3, 5))
	add("middle", n(12, 20), n(4, 6))
	if n(0, 2) == 0 {
		s.Stocks = []planner.Stock{{Name: "slots", Left: int64(n(1, 2))}}
		add("dear, owned", 1, dear, planner.Draw{Stock: 0, Amount: 1})
	}
	for v := range n(0, 2) {
		s.Nodes = append(s.Nodes, planner.Node{Name: fmt.Sprint("node-", v), Free: planner.Resources{MilliCPU: int64(n(3, 15)), Pods: 100}})
	}
	on := plantest.Class(s, "on dear", n(4, 9), planner.Resources{MilliCPU: int64(n(4, 9)), Pods: 1})
	on.Offerings = slices.DeleteFunc(on.Offerings, func(i int) bool { return i == 2 || i == 3 || i == 1 && seed%2 == 0 })
	s.Classes = []planner.Class{
		on,
		plantest.Class(s, "three", n(80, 90), planner.Resources{MilliCPU: 3, Pods: 1}),
		plantest.Class(s, "two", n(70, 80), planner.Resources{MilliCPU: 2, Pods: 1}),
	}
	return s
}

// fullMachines draws pods that fill one or two expensive machines, a few pods that could fill another one in part, and many for small machines. A cut must not require
// that other machine.
func fullMachines(seed int64) planner.Snapshot {
	r := rand.New(rand.NewSource(seed))
	n := func(low, high int) int { return low + r.Intn(high-low+1) }
	s := planner.Snapshot{Pools: []planner.Pool{plantest.Pool("a")}}
	cpu, each := n(4, 9), n(3, 6)
	for name, o := range [][2]int{{cpu * each * 9, cpu * each}, {n(76, 84), 7}} {
		s.Offerings = append(s.Offerings, planner.Offering{
			InstanceType: fmt.Sprint(name), Price: planner.MicroUSD(o[0]), Free: planner.Resources{MilliCPU: int64(o[1]), MemoryBytes: 100, Pods: 100}, Physical: planner.Physical{Nodes: 1},
		})
	}
	pods := each * n(1, 2)
	s.Classes = []planner.Class{
		plantest.Class(s, "full", pods/2, planner.Resources{MilliCPU: int64(cpu), Pods: 1}),
		plantest.Class(s, "full, too", pods-pods/2, planner.Resources{MilliCPU: int64(cpu), MemoryBytes: 1, Pods: 1}),
		plantest.Class(s, "either", n(2, 6), planner.Resources{MilliCPU: 4, Pods: 1}),
		plantest.Class(s, "three", n(125, 135), planner.Resources{MilliCPU: 3, Pods: 1}),
	}
	s.Classes[0].Offerings, s.Classes[1].Offerings, s.Classes[3].Offerings = []int{0}, []int{0}, []int{1}
	return s
}

func TestPlansOfManyMachinesAreNearlyAsGoodAsBruteForceFinds(t *testing.T) {
	t.Parallel()
	for name, draw := range map[string]func(seed int64) planner.Snapshot{"few expensive machines": manyMachines, "full expensive machines": fullMachines} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			judge(t, judged(20, 200), 0.95, 0.01, func(t *testing.T, seed int64) verdict {
				s := draw(seed)
				p := solve.BuildByMix(s) // Its bound may be above its price.
				if _, least := plantest.Cheapest(s); len(p.Launches) <= 60 || len(p.Unplaced) > 0 || p.Bound > least {
					t.Errorf("case %d: launches %d machines, leaves out %d pods, the bound is %d, brute force finds %d", seed, len(p.Launches), len(p.Unplaced), p.Bound, least)
				}
				return judgePlain(t, seed, s)
			})
		})
	}
}

// judgePlain judges the plan of a snapshot without rules.
func judgePlain(t *testing.T, seed int64, s planner.Snapshot) verdict {
	t.Helper()
	p := solve.Plan(s)
	if err := check.Plan(s, p); err != nil {
		t.Error(err)
	}
	left, price := plantest.Cheapest(s)
	least := price // of the pods that the plan places
	if len(p.Unplaced) > 0 {
		placed := plantest.PlacedPods(p)
		_, least = plantest.Cheapest(only(s, func(pod string) bool { return slices.Contains(placed, pod) }))
	}
	v := verdict{leftOut: len(p.Unplaced) - left}
	if v.leftOut == 0 && price > 0 {
		v.over = float64(p.Price-price) / float64(price)
	} else if v.leftOut == 0 && p.Price > 0 {
		v.over = 1
	}
	if p.Bound > least || v.leftOut == 0 && p.Price < price || v.leftOut < 0 {
		t.Errorf("case %d: bound %d, price %d with %d pods left out; brute force finds %d for the same pods, and %d with %d left out", seed, p.Bound, p.Price, len(p.Unplaced), least, price, left)
	}
	if p.Price > 0 {
		v.gap = float64(p.Price-p.Bound) / float64(p.Price)
	}
	return v
}

// only returns a snapshot with some of the pods.
func only(s planner.Snapshot, wanted func(pod string) bool) planner.Snapshot {
	s.Classes = slices.Clone(s.Classes)
	for c := range s.Classes {
		s.Classes[c].Pods = slices.DeleteFunc(slices.Clone(s.Classes[c].Pods), func(pod string) bool { return !wanted(pod) })
	}
	return s
}
