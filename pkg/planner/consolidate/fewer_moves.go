package consolidate

import (
	"math"
	"slices"
	"sort"

	"karve.sh/karve/pkg/planner/internal/effort"
)

// weights are factors by which moves count more in the search for fewer moves. Savings above the largest factor times what their moves count are always made.
var weights = [...]float64{1.41, 2, 2.83}

// withFewerMoves returns, of the solutions found whose machines cost at most enough, the one that moves least. It tries the solution without moves, and
// searches in which moves count more. If the cheapest solution costs more than enough, it returns that one.
func (v *improver) withFewerMoves(enough int64) *improver {
	if v.price() > enough || !slices.Contains(v.best.stays, false) {
		return v
	}
	all := v.ctx.Effort
	if v.priceWithoutMoves() <= enough {
		return v.withMovesAt(math.Inf(1), all.Part(2))
	}
	least := v
	sort.Search(len(weights), func(i int) bool {
		x := v.withMovesAt(weights[i], all.Part(2))
		near := x.price() <= enough
		if near && v.moves(x.best) < v.moves(least.best) {
			least = x
		}
		return !near
	})
	return least
}

// withMovesAt repeats the search with moves that count weight times as much.
func (v *improver) withMovesAt(weight float64, e *effort.Budget) *improver {
	v.ctx.Effort = e
	x := &improver{ctx: v.ctx, existing: slices.Clone(v.existing)}
	for i := range x.existing {
		if h := &x.existing[i]; h.moves > 0 {
			moves := min(float64(h.moves)*weight, float64(h.price))
			h.moves, h.fixed = int64(moves), h.fixed || moves == float64(h.price)
		}
	}
	x.search(maxIdleAgain)
	return x
}

// priceWithoutMoves returns the price of the machines that remain if no pod moves.
func (v *improver) priceWithoutMoves() (price int64) {
	for i := range v.existing {
		if x := &v.existing[i]; x.fixed || x.moves > 0 {
			price += x.price
		}
	}
	return price
}

// moves returns what moving the pods of the leaving machines counts.
func (v *improver) moves(s *solution) (moves int64) {
	for i, stays := range s.stays {
		if !stays {
			moves += v.existing[i].moves
		}
	}
	return moves
}

// price returns the price of the machines that stay or are launched in the best solution.
func (v *improver) price() (price int64) {
	for i, stays := range v.best.stays {
		if stays {
			price += v.existing[i].price
		}
	}
	for _, m := range v.best.machines {
		price += v.ctx.Problem.Offers[m.Offer].Price
	}
	return price
}
