package consolidate

import (
	"math"
	"slices"
	"sort"

	"karve.sh/karve/pkg/planner/internal/effort"
)

// weights are how many times as much a move may count where fewer moves are near enough. Savings above nearly three times what moves count are no matter of
// taste.
var weights = [...]float64{1.41, 2, 2.83}

// spare is the housing found that moves least of those whose machines cost no more than enough: all pods stay, or moves count more. Where the cheapest costs
// more than that, it is the cheapest.
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

// weighing looks again where a move counts so many times as much.
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

// held is what the machines cost that stay when no pod moves.
func (v *settler) held() (price int64) {
	for i := range v.homes {
		if x := &v.homes[i]; x.fixed || x.moves > 0 {
			price += x.price
		}
	}
	return price
}

// moves is what moving the pods of whoever leaves counts.
func (v *settler) moves(s *housing) (moves int64) {
	for i, stays := range s.stays {
		if !stays {
			moves += v.homes[i].moves
		}
	}
	return moves
}

// price is what the machines of the best housing cost that stay or are launched.
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
