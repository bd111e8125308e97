package lp_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"karve.sh/karve/pkg/planner/internal/lp"
)

// program is a linear program with its coefficients, so that a test can check solutions.
type program struct {
	simplex lp.Simplex
	price   []float64
	most    []float64
	demand  []float64
	in      [][]float64 // the coefficients, by row and column
}

func (p *program) column(price, most float64, in []float64) int {
	var rows []int32
	var coefficients []float64
	for r := range p.demand {
		if in[r] != 0 {
			rows, coefficients = append(rows, int32(r)), append(coefficients, in[r])
		}
		p.in[r] = append(p.in[r], in[r])
	}
	p.price, p.most = append(p.price, price), append(p.most, most)
	return p.simplex.AddColumn(price, most, rows, coefficients)
}

// row adds a row, and an expensive column that covers only this row.
func (p *program) row(demand float64, in func(column int) float64) {
	cover := p.column(1000, math.Inf(1), make([]float64, len(p.demand)))
	with := func(column int) float64 {
		if column == cover {
			return 1
		}
		return in(column)
	}
	var all []float64
	for j := range p.price {
		all = append(all, with(j))
	}
	p.demand, p.in = append(p.demand, demand), append(p.in, all)
	p.simplex.AddRow(demand, with, cover)
}

// check fails unless the solution satisfies all rows and the optimality conditions.
func (p *program) check(t *testing.T) {
	t.Helper()
	const near = 1e-6
	duals := p.simplex.Duals()
	cost := 0.0
	for j := range p.price {
		x, reduced := p.simplex.Amount(j), p.price[j]
		cost += p.price[j] * x
		for r, y := range duals {
			reduced -= y * p.in[r][j]
		}
		scale := near * max(1, math.Abs(p.price[j]))
		switch {
		case x < -near || x > p.most[j]+near:
			t.Fatalf("column %d: amount %g, at most %g", j, x, p.most[j])
		case x < p.most[j]-near && reduced < -scale, x > near && reduced > scale:
			t.Fatalf("column %d: amount %g of %g at a reduced cost of %g", j, x, p.most[j], reduced)
		}
	}
	for r, demand := range p.demand {
		over := -demand
		for j, f := range p.in[r] {
			over += f * p.simplex.Amount(j)
		}
		if over < -near || duals[r] < -near || over > near && duals[r] > near {
			t.Fatalf("row %d: %g over the demand of %g, dual %g", r, over, demand, duals[r])
		}
	}
	basic := 0.0
	for j, x := range p.simplex.Basic() {
		basic += p.price[j] * x
	}
	if math.Abs(basic-p.simplex.Cost()) > near*max(1, math.Abs(cost)) {
		t.Fatalf("the basis costs %g, not %g", basic, p.simplex.Cost())
	}
}

func (p *program) solve(t *testing.T) {
	t.Helper()
	p.simplex.Solve(1000, nil)
	p.check(t)
}

func TestSolutionStaysOptimalWhenProgramChanges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			p := &program{}
			some := func() float64 { return float64(1 + r.IntN(9)) }
			column := func() {
				in := make([]float64, len(p.demand))
				for i := range in {
					if r.IntN(2) == 0 {
						in[i] = some()
					}
				}
				most := math.Inf(1)
				if r.IntN(3) == 0 {
					most = some()
				}
				p.column(10*some(), most, in)
			}
			for range 1 + r.IntN(5) {
				p.row(some(), func(int) float64 { return 0 })
			}
			for range 40 {
				switch r.IntN(6) {
				case 0, 1, 2:
					column()
				case 3:
					j := r.IntN(len(p.price))
					p.price[j] = 10 * some()
					p.simplex.SetPrice(j, p.price[j])
				case 4:
					in := make([]float64, len(p.price))
					sign := float64(1 - 2*r.IntN(2))
					for j := range in {
						if r.IntN(3) == 0 {
							in[j] = sign * some()
						}
					}
					p.row(sign*10*some(), func(j int) float64 {
						if j < len(in) {
							return in[j]
						}
						return 0
					})
				case 5:
					p.simplex = p.simplex.Clone()
				}
				p.solve(t)
			}
		})
	}
}

func TestSimplexMaximizesWithinLimits(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 2))
			p := &program{}
			for range 3 {
				p.demand, p.in = append(p.demand, -10), append(p.in, nil)
				p.simplex.AddRow(-10, nil, -1)
			}
			for range 8 {
				in := make([]float64, len(p.demand))
				for i := range in {
					in[i] = -float64(1 + r.IntN(5))
				}
				p.column(0, 0, in)
			}
			for range 10 {
				for j := range p.price {
					p.price[j], p.most[j] = -float64(1+r.IntN(1000)), float64(r.IntN(4))
					p.simplex.SetPrice(j, p.price[j])
					p.simplex.SetMax(j, p.most[j])
				}
				p.solve(t)
			}
		})
	}
}

func TestStoppedSolveKeepsPreviousSolution(t *testing.T) {
	t.Parallel()
	p := &program{}
	p.row(4, func(int) float64 { return 0 })
	j := p.column(1, math.Inf(1), []float64{1})
	if n := p.simplex.Solve(10, func() bool { return true }); n != 0 || p.simplex.Amount(j) != 0 {
		t.Errorf("%d pivots, amount %g", n, p.simplex.Amount(j))
	}
	if n := p.simplex.Solve(10, nil); n != 1 || p.simplex.Amount(j) != 4 {
		t.Errorf("%d pivots, amount %g", n, p.simplex.Amount(j))
	}
}

// TestWholeFindsCheapestIntegerSolution compares integer solutions with the best one, found by enumeration.
func TestWholeFindsCheapestIntegerSolution(t *testing.T) {
	t.Parallel()
	best, found := 0, 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 3))
		p := &program{}
		for range 3 {
			p.row(float64(3+r.IntN(6)), func(int) float64 { return 0 })
		}
		covers := len(p.price)
		for range 4 {
			in := make([]float64, len(p.demand))
			for i := range in {
				in[i] = float64(r.IntN(4))
			}
			in[r.IntN(len(in))]++
			p.column(float64(10+r.IntN(30)), math.Inf(1), in)
		}
		p.solve(t)
		least := p.least(covers, make([]float64, len(p.price)))
		got := math.Inf(1)
		search := lp.Whole{
			IsWhole: func(j int) bool { return j >= covers },
			Most:    func() float64 { return min(got-1, 1e6) },
			Spend:   func(int) {},
			Stopped: func() bool { return false },
			Found: func(taken []lp.Taken) {
				amounts := make([]float64, len(p.price))
				for _, x := range taken {
					if x.Amount != math.Round(x.Amount) {
						t.Fatalf("seed %d: %g of column %d", seed, x.Amount, x.Column)
					}
					amounts[x.Column] += x.Amount
				}
				if cost, ok := p.cost(amounts); ok {
					got = min(got, cost)
				}
			},
		}
		relaxed := p.simplex.Cost()
		search.Search(&p.simplex)
		if got < least || relaxed > least+1e-6 {
			t.Fatalf("seed %d: found %g and relaxed %g, the least is %g", seed, got, relaxed, least)
		}
		if !math.IsInf(got, 1) {
			found++
		}
		if got == least {
			best++
		}
	}
	// The search is a heuristic: it may abandon a branch.
	if found < 100 || best < 95 {
		t.Errorf("found %d solutions, %d of them the cheapest, of 100", found, best)
	}
}

// cost returns the cost of a solution, and whether it satisfies all rows.
func (p *program) cost(amounts []float64) (cost float64, ok bool) {
	for j, x := range amounts {
		cost += p.price[j] * x
	}
	for r, in := range p.in {
		over := -p.demand[r]
		for j, f := range in {
			over += f * amounts[j]
		}
		if over < 0 {
			return cost, false
		}
	}
	return cost, true
}

// least returns the lowest cost of integer amounts for the columns from the given one on.
func (p *program) least(from int, amounts []float64) float64 {
	cost, ok := p.cost(amounts)
	if ok || from == len(amounts) {
		if !ok {
			return math.Inf(1)
		}
		return cost
	}
	least := math.Inf(1)
	for n := range 10 {
		amounts[from] = float64(n)
		least = min(least, p.least(from+1, amounts))
	}
	amounts[from] = 0
	return least
}
