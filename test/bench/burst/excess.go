package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// excess says where the price above one plan comes from, in dollars per hour.
type excess struct {
	// Early is what the plans before the last pod came cost above one plan together with the later ones, which launch for pods that no plan had included
	// (Late). SeatsLost is the price of machines for pods that had one already.
	Split     float64 `json:"splitUSDPerHour"`
	SeatsLost float64 `json:"seatsLostUSDPerHour"`
	// Rest is what plans cost above the best plan for their pods.
	Rest float64 `json:"restUSDPerHour"`

	plans []planSeen
}

// planSeen is what one plan launched.
type planSeen struct {
	at            time.Time
	claims        []*claimSeen
	price         float64
	first, again  int
	ofAgain, best float64
}

// explain returns the causes of the excess. keys has the numbers of shapes by the keys in NodeClaims, pods the number of pods of each shape, and best the price
// of a plan for some pods of each shape.
func explain(t *timeline, keys map[string]int, pods []int, prices map[string]float64, best func(pods []int) (float64, error)) (excess, error) {
	var e excess
	claims := slices.SortedFunc(maps.Values(t.claims), func(a, b *claimSeen) int { return a.Seen.Compare(b.Seen) })
	index := map[string]int{}
	planned := make([]int, len(pods))
	firsts := [][]int{}
	for _, c := range claims {
		i, known := index[c.Plan]
		if !known {
			i = len(e.plans)
			index[c.Plan] = i
			p := planSeen{at: c.Seen}
			if ms, err := strconv.ParseInt(c.Plan, 36, 64); err == nil && ms > 0 {
				p.at = time.UnixMilli(ms)
			}
			e.plans, firsts = append(e.plans, p), append(firsts, make([]int, len(pods)))
		}
		p := &e.plans[i]
		first, again := 0, 0
		for key, n := range c.Planned {
			k := keys[key]
			fresh := min(n, max(0, pods[k]-planned[k]))
			planned[k] += n
			firsts[i][k] += fresh
			first, again = first+fresh, again+n-fresh
		}
		p.claims = append(p.claims, c)
		p.price += prices[c.Type]
		p.first, p.again = p.first+first, p.again+again
		if again > 0 {
			p.ofAgain += prices[c.Type] * float64(again) / float64(first+again)
		}
	}
	one, err := best(pods)
	if err != nil {
		return e, err
	}
	sum := 0.0
	for i := range e.plans {
		p := &e.plans[i]
		if p.first > 0 {
			if p.best, err = best(firsts[i]); err != nil {
				return e, err
			}
		}
		sum += p.best
		e.SeatsLost += p.ofAgain
		e.Rest += p.price - p.ofAgain - p.best
	}
	e.Split = sum - one
	return e, nil
}

// print writes the plans and what became of the places.
func (e *excess) print(w io.Writer, t *timeline, began time.Time, shapeOf func(pod string) int, keys map[string]int, prices map[string]float64) {
	since := func(at time.Time) float64 {
		if at.IsZero() {
			return -1
		}
		return at.Sub(began).Seconds()
	}
	fmt.Fprintf(w, "above one plan: split batches %+.2f, places lost %+.2f, rest %+.2f $/h\n", e.Split, e.SeatsLost, e.Rest)
	for _, p := range e.plans {
		fmt.Fprintf(w, "  plan at %5.1f s: %3d NodeClaims $%6.2f, %4d pods for the first time (best $%.2f), %3d again ($%.2f), the last claim at %.1f s\n",
			since(p.at), len(p.claims), p.price, p.first, p.best, p.again, p.ofAgain, since(p.claims[len(p.claims)-1].Seen))
	}
	fmt.Fprintf(w, "  %6s%9s%9s%9s%9s%9s%9s%9s%9s%9s\n", "s", "created", "tried", "nominat.", "bound", "running", "claims", "nodes", "open", "retries")
	last := began
	for _, p := range t.pods {
		last = later(last, p.Ran)
	}
	for s := 5.0; ; s += 5 {
		at := began.Add(time.Duration(s * float64(time.Second)))
		var n [9]int
		had := func(i int, when time.Time) {
			if !when.IsZero() && !when.After(at) {
				n[i]++
			}
		}
		for _, p := range t.pods {
			had(0, p.Created)
			for i, tried := range p.Tried {
				if i == 0 {
					had(1, tried)
				} else {
					had(8, tried)
				}
			}
			if len(p.Nominated) > 0 {
				had(2, p.Nominated[0].At)
			}
			had(3, p.Bound)
			had(4, p.Ran)
		}
		for _, c := range t.claims {
			had(5, c.Seen)
		}
		for _, node := range t.nodes {
			had(6, node.Seen)
			had(7, node.Opened)
		}
		fmt.Fprintf(w, "  %6.0f%9d%9d%9d%9d%9d%9d%9d%9d%9d\n", s, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8])
		if at.After(last) {
			break
		}
	}
	e.places(w, t, shapeOf, keys)
	fmt.Fprintln(w, "  nodes: at, plan, type, $/h, pods planned/planned again; node seen, open; nominated when it opened, later; bound as planned, others; nominations lost before it opened, after")
	claims := slices.SortedFunc(maps.Values(t.claims), func(a, b *claimSeen) int {
		return cmp.Or(a.Seen.Compare(b.Seen), cmp.Compare(a.Name, b.Name))
	})
	byNode := map[string][]*podSeen{}
	for _, p := range t.pods {
		byNode[p.Node] = append(byNode[p.Node], p)
	}
	for _, c := range claims {
		node := t.nodes[c.Node]
		if node == nil {
			fmt.Fprintf(w, "  %5.1f %s %s: no node\n", since(c.Seen), c.Name, c.Type)
			continue
		}
		of := map[int]int{}
		total := 0
		for key, n := range c.Planned {
			of[keys[key]] += n
			total += n
		}
		own, others := 0, 0
		for _, p := range byNode[c.Node] {
			if k := shapeOf(p.Name); of[k] > 0 {
				of[k]--
				own++
			} else {
				others++
			}
		}
		atOpen, after, lostBefore, lostAfter := 0, 0, 0, 0
		latest := time.Duration(math.MinInt64)
		for _, p := range t.pods {
			for i, n := range p.Nominated {
				if n.Node != c.Node {
					continue
				}
				latest = max(latest, n.At.Sub(node.Opened))
				if n.At.After(node.Opened) {
					after++
				} else if p.nominatedAt(node.Opened) == c.Node {
					atOpen++
				}
				if i+1 < len(p.Nominated) {
					if p.Nominated[i+1].At.After(node.Opened) {
						lostAfter++
					} else {
						lostBefore++
					}
				}
			}
		}
		fmt.Fprintf(w, "  %5.1f %-12s %-14s $%5.2f %2d changed %d; seen %5.1f open %5.1f; nominated %2d+%d, the last %5.1f s after; bound %2d+%d; lost %d+%d\n", since(c.Seen), c.Plan, c.Type, prices[c.Type], total,
			c.Changed, since(node.Seen), since(node.Opened), atOpen, after, latest.Seconds(), own, others, lostBefore, lostAfter)
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// places writes how pods came to their nodes.
func (e *excess) places(w io.Writer, t *timeline, shapeOf func(pod string) int, keys map[string]int) {
	var as, elsewhere, cleared, never int
	for _, p := range t.pods {
		switch at := p.nominatedAt(p.Bound); {
		case at == p.Node:
			as++
		case at != "":
			elsewhere++
		case len(p.Nominated) > 0:
			cleared++
		default:
			never++
		}
	}
	fmt.Fprintf(w, "  pods bound where they were nominated %d, elsewhere %d, after their nomination ended %d, never nominated %d\n", as, elsewhere, cleared, never)
}
