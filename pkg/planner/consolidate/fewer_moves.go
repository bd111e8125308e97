package consolidate

import (
	"math"
	"slices"
	"sort"

	"karve.sh/karve/pkg/planner/internal/effort"
)

// weights are factors by which moves count more in the search for fewer moves. Savings above the largest factor times what their moves count are always made.
var weights = [...]float64{1.41, 2, 2.83}

// spare returns, of the housings found whose machines cost at most enough, the one that moves least. It tries the housing without moves, and searches in which
// moves count more. If the cheapest housing costs more than enough, it returns that one.
func (v *settler) spare(enough int64) *settler {
	if v.price() > enough || !slices.Contains(v.best.stays, false) {
		return v
	}
	all := v.ctx.Effort
	if v.held() <= enough {
		return v.weighing(math.Inf(1), all.Part(2))
	}
	least := v
	sort.Search(len(weights), func(i int) bool {
		x := v.weighing(weights[i], all.Part(2))
		near := x.price() <= enough
		if near && v.moves(x.best) < v.moves(least.best) {
			least = x
		}
		return !near
	})
	return least
}

// weighing repeats the search with moves that count weight times as much.
func (v *settler) weighing(weight float64, e *effort.Budget) *settler {
	v.ctx.Effort = e
	x := &settler{ctx: v.ctx, homes: slices.Clone(v.homes)}
	for i := range x.homes {
		if h := &x.homes[i]; h.moves > 0 {
			moves := min(float64(h.moves)*weight, float64(h.price))
			h.moves, h.fixed = int64(moves), h.fixed || moves == float64(h.price)
		}
	}
	x.look(maxSettledAgain)
	return x
}

// held returns the price of the machines that remain if no pod moves.
func (v *settler) held() (price int64) {
	for i := range v.homes {
		if x := &v.homes[i]; x.fixed || x.moves > 0 {
			price += x.price
		}
	}
	return price
}

// moves returns what moving the pods of the leaving machines counts.
func (v *settler) moves(s *housing) (moves int64) {
	for i, stays := range s.stays {
		if !stays {
			moves += v.homes[i].moves
		}
	}
	return moves
}

// price returns the price of the machines that stay or are launched in the best housing.
func (v *settler) price() (price int64) {
	for i, stays := range v.best.stays {
		if stays {
			price += v.homes[i].price
		}
	}
	for _, m := range v.best.machines {
		price += v.ctx.Problem.Offers[m.Offer].Price
	}
	return price
}
