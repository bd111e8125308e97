package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// report writes what happened in a burst that began at a time.
type report struct {
	*timeline
	*pricing
	w     io.Writer
	began time.Time
	shape func(pod string) int
}

func (r *report) printf(format string, values ...any) { _, _ = fmt.Fprintf(r.w, format, values...) }

// since returns the seconds from the beginning to a time, or -1 if it did not come.
func (r *report) since(at time.Time) float64 {
	if at.IsZero() {
		return -1
	}
	return at.Sub(r.began).Seconds()
}

// causes writes where the price above one plan comes from, and what each plan launched.
func (r *report) causes(e excess, plans []*planSeen) {
	r.printf("$/h above one plan: %+.2f as pods had not come yet, %+.2f as pods came late, %+.2f for pods that lost their places, %+.2f as plans were not the best\n",
		e.Unseen, e.Late, e.PlacesLost, e.Search)
	for _, p := range plans {
		first := 0
		for _, n := range p.first {
			first += n
		}
		r.printf("  plan at %5.1f s: %3d NodeClaims until %5.1f s for $%.2f: %d pods for the first time (best $%.2f), %d again ($%.2f)\n",
			r.since(p.at), len(p.claims), r.since(p.claims[len(p.claims)-1].Seen), p.price, first, p.best, p.again, p.ofAgain)
	}
}

// progress writes how far the burst was every five seconds.
func (r *report) progress() {
	const step = 5 * time.Second
	titles := []string{"created", "no node", "nominated", "bound", "running", "claims", "nodes", "open", "retries"}
	r.printf("  %6s", "s")
	for _, title := range titles {
		r.printf("%10s", title)
	}
	events := make([][]time.Time, len(titles))
	add := func(i int, at time.Time) {
		if !at.IsZero() {
			events[i] = append(events[i], at)
		}
	}
	var last time.Time
	for _, p := range r.pods() {
		for i, at := range []time.Time{p.Created, first(p.Tried), firstOf(p.Nominated), p.Bound, p.Ran} {
			add(i, at)
		}
		for _, at := range p.Tried[min(1, len(p.Tried)):] {
			add(8, at)
		}
		if p.Ran.After(last) {
			last = p.Ran
		}
	}
	for _, c := range r.claims {
		add(5, c.Seen)
	}
	for _, n := range r.nodes {
		add(6, n.Seen)
		add(7, n.Opened)
	}
	for at := r.began.Add(step); ; at = at.Add(step) {
		r.printf("\n  %6.0f", r.since(at))
		for _, times := range events {
			n := 0
			for _, event := range times {
				if !event.After(at) {
					n++
				}
			}
			r.printf("%10d", n)
		}
		if at.After(last) {
			break
		}
	}
	r.printf("\n")
}

// pods returns the pods that were seen.
func (r *report) pods() []*podSeen { return slices.Collect(maps.Values(r.timeline.pods)) }

func first(times []time.Time) time.Time {
	if len(times) == 0 {
		return time.Time{}
	}
	return times[0]
}

func firstOf(nominations []nomination) time.Time {
	if len(nominations) == 0 {
		return time.Time{}
	}
	return nominations[0].At
}

// places writes how many pods went where they were nominated.
func (r *report) places() {
	var there, elsewhere, ended, never int
	for _, p := range r.pods() {
		switch at := p.nominatedAt(p.Bound); {
		case at == p.Node:
			there++
		case at != "":
			elsewhere++
		case len(p.Nominated) > 0:
			ended++
		default:
			never++
		}
	}
	r.printf("  pods bound where they were nominated: %d; elsewhere: %d; after their nomination had ended: %d; without one: %d\n", there, elsewhere, ended, never)
}

// processors writes the CPU time of each program.
func (r *report) processors(seconds map[string]float64) {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(seconds)) {
		parts = append(parts, fmt.Sprintf("%s %.0f", name, seconds[name]))
	}
	r.printf("  seconds of CPU time: %s\n", strings.Join(parts, ", "))
}

// machines writes what became of the places of each machine.
func (r *report) machines() {
	bound, nominations := map[string][]*podSeen{}, map[string][]*podSeen{}
	for _, p := range r.pods() {
		bound[p.Node] = append(bound[p.Node], p)
		for _, n := range p.Nominated {
			if of := nominations[n.Node]; len(of) == 0 || of[len(of)-1] != p {
				nominations[n.Node] = append(of, p)
			}
		}
	}
	for _, c := range r.inOrder() {
		node := r.nodes[c.Node]
		if node == nil {
			r.printf("  %s %s of %.1f s has no Node\n", c.Type, c.Name, r.since(c.Seen))
			continue
		}
		left, all := map[int]int{}, 0
		for key, n := range c.Planned {
			left[r.keys[key]] += n
			all += n
		}
		own := 0
		for _, p := range bound[c.Node] {
			if shape := r.shape(p.Name); left[shape] > 0 {
				left[shape]--
				own++
			}
		}
		nominated := 0
		for _, p := range nominations[c.Node] {
			if p.nominatedAt(node.Opened) == c.Node {
				nominated++
			}
		}
		r.printf("  %-14s $%5.2f %s launched %5.1f s, registered %5.1f s, open %5.1f s: %2d pods planned, exchanged %d times, %2d nominated when it opened, %2d bound as planned and %d others\n",
			c.Type, r.prices[c.Type], c.Plan, r.since(c.Seen), r.since(node.Seen), r.since(node.Opened), all, c.Changed, nominated, own, len(bound[c.Node])-own)
	}
}
