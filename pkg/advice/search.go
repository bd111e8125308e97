package advice

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"karve.sh/karve/pkg/planner"
)

// search finds the changes that save, with the plans of moments.
type search struct {
	scenario *scenario
	changes  []change
	// base is the price without changes.
	base planner.MicroUSD
	// taken are the changes that a replay has confirmed.
	taken []change
	// known are prices by the indices of changes.
	known map[string]planner.MicroUSD
}

func newSearch(sc *scenario, changes []change) *search {
	s := &search{scenario: sc, changes: changes, known: map[string]planner.MicroUSD{}}
	s.base = s.prices([]int{})[0]
	return s
}

func (s *search) prices(sets ...[]int) []planner.MicroUSD {
	all := make([]planner.MicroUSD, len(sets))
	places := make(chan struct{}, runtime.GOMAXPROCS(0))
	var group sync.WaitGroup
	for i, set := range sets {
		if price, ok := s.known[fmt.Sprint(set)]; ok {
			all[i] = price
			continue
		}
		group.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			all[i] = s.scenario.changed(s.changesAt(set)).planned()
		})
	}
	group.Wait()
	for i, set := range sets {
		s.known[fmt.Sprint(set)] = all[i]
	}
	return all
}

func (s *search) changesAt(set []int) (all []change) {
	for _, i := range set {
		all = append(all, s.changes[i])
	}
	return all
}

// saves reports whether one price is lower than another by what makes a change worth it.
func (s *search) saves(from, to planner.MicroUSD) bool {
	return from > to && float64(from-to) >= minSaving*float64(s.base)
}

// steps returns the changes that save, those that save most first. Changes that save only together are one step.
func (s *search) steps() (steps [][]change) {
	left := s.needed()
	s.takeFewestReplicas(left)
	taken, price := []int{}, s.base
	for len(left) > 0 {
		sets := make([][]int, len(left))
		for i, c := range left {
			sets[i] = sorted(append(slices.Clone(taken), c))
		}
		prices := s.prices(sets...)
		best := 0
		for i := range prices {
			if prices[i] < prices[best] {
				best = i
			}
		}
		step := []int{left[best]}
		if !s.saves(price, prices[best]) {
			step = left // None saves alone, and each is needed.
		}
		steps = append(steps, s.changesAt(step))
		taken = sorted(append(taken, step...))
		price = s.prices(taken)[0]
		left = slices.DeleteFunc(slices.Clone(left), func(c int) bool { return slices.Contains(step, c) })
	}
	return steps
}

// needed returns the changes without which all together would save less. Of two that save the same, it is the one that saves more alone.
func (s *search) needed() []int {
	single := make([][]int, len(s.changes))
	for i := range s.changes {
		single[i] = []int{i}
	}
	alone := s.prices(single...)
	var order, set []int
	for i := range s.changes {
		if alone[i] < impossible {
			order, set = append(order, i), append(set, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(alone[b], alone[a]) })
	for _, c := range order {
		without := slices.DeleteFunc(slices.Clone(set), func(i int) bool { return i == c })
		if p := s.prices(set, without); p[0] == impossible || !s.saves(p[1], p[0]) {
			set = without
		}
	}
	if !s.saves(s.base, s.prices(set)[0]) {
		return nil
	}
	return set
}

// takeFewestReplicas replaces changes of numbers of replicas by the smallest with which the set still costs the same.
func (s *search) takeFewestReplicas(set []int) {
	for _, i := range set {
		c := s.changes[i]
		if c.withFewer == nil {
			continue
		}
		price := s.prices(set)[0]
		low, high := c.minReplicas, c.maxReplicas
		for low < high {
			middle := (low + high) / 2
			s.changes[i] = c.withFewer(middle)
			clear(s.known)
			if s.saves(s.prices(set)[0], price) {
				low = middle + 1
			} else {
				high = middle
			}
		}
		s.changes[i] = c.withFewer(high)
		clear(s.known)
	}
}

func sorted(set []int) []int {
	slices.Sort(set)
	return set
}
