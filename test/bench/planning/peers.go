package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/plantest/workload"
	"karve.sh/karve/test/bench/planning/autoscaler"
	"karve.sh/karve/test/harness/karpenter"
)

// peer is another planner for the same snapshots. It plans a row's snapshots until it has used its share of the time.
type peer struct {
	name string
	// plan also returns how long the peer itself took.
	plan func(context.Context, planner.Snapshot) (planner.Plan, time.Duration, error)
	// theirs and ours sum the prices over the snapshots that the peer planned.
	theirs, ours planner.MicroUSD
	took         average
	used         time.Duration
	notes        []string
	done         bool
	// limit is its time per snapshot.
	limit time.Duration
}

const (
	// peerShare is a peer's time per row, and peerLimit its time per snapshot, or roundsLimit if it needs many rounds. Snapshots with more than peerPods pods are skipped.
	peerShare   = 8 * time.Second
	peerLimit   = 60 * time.Second
	roundsLimit = 20 * time.Minute
	peerPods    = 10_000
)

func peers() (firstFit, karp, leastWaste, perPod *peer) {
	modeled := func(e autoscaler.Expander) func(context.Context, planner.Snapshot) (planner.Plan, time.Duration, error) {
		return func(_ context.Context, s planner.Snapshot) (planner.Plan, time.Duration, error) {
			start := time.Now()
			p, err := autoscaler.Plan(s, e)
			return p, time.Since(start), err
		}
	}
	firstFit = &peer{name: "FirstFit", plan: func(_ context.Context, s planner.Snapshot) (planner.Plan, time.Duration, error) {
		start := time.Now()
		p := firstfit.Plan(s)
		return p, time.Since(start), nil
	}}
	karp = &peer{name: "Karpenter", plan: func(ctx context.Context, s planner.Snapshot) (planner.Plan, time.Duration, error) {
		return karpenter.Plan(ctx, s, nil)
	}}
	leastWaste = &peer{name: "model of the Cluster Autoscaler", plan: modeled(autoscaler.LeastWaste)}
	perPod = &peer{name: "model of the Cluster Autoscaler by price", plan: modeled(autoscaler.Price)}
	for _, p := range []*peer{firstFit, karp, leastWaste, perPod} {
		p.limit = peerLimit
	}
	return firstFit, karp, leastWaste, perPod
}

// withReservations lets Karpenter fill reservations in several rounds, and notes how many it takes and how many slots it uses.
func withReservations(p *peer) func(context.Context, planner.Snapshot) (planner.Plan, time.Duration, error) {
	return func(ctx context.Context, s planner.Snapshot) (planner.Plan, time.Duration, error) {
		plan, rounds, took, err := karpenter.PlanWithReservations(ctx, s)
		if err == nil {
			p.notes = append(p.notes, fmt.Sprintf("Karpenter plans in %d rounds, fills %s, and adds $%.2f an hour to the bill", rounds, slotsOf(s, plan), float64(workload.Bill(s, plan))/1e6))
		}
		return plan, took, err
	}
}

// slotsOf says how many of the reserved slots a plan uses.
func slotsOf(s planner.Snapshot, p planner.Plan) string {
	used, of := 0, int64(0)
	for _, l := range p.Launches {
		if s.Offerings[l.Offering].CapacityType == "reserved" {
			used++
		}
	}
	for _, x := range s.Stocks[:len(s.Stocks)-1] { // The last one is the savings plan.
		of += x.Left
	}
	return fmt.Sprintf("%d of %d slots with %d machines", used, of, len(p.Launches))
}

// run lets the peer plan a snapshot for which the machines of Karve's plan cost ours.
func (p *peer) run(ctx context.Context, s planner.Snapshot, ours planner.MicroUSD, cost func(planner.Snapshot, planner.Plan) planner.MicroUSD) error {
	switch pods := podsOf(s); {
	case p.done:
		return nil
	case pods > peerPods && p.name != "FirstFit":
		p.stop("%s is not tried with %d pods", p.name, pods)
		return nil
	case len(s.Nodes) > 0 && p.name != "FirstFit":
		p.stop("%s is not told of nodes", p.name)
		return nil
	case p.used > peerShare:
		p.stop("%s planned the first %d snapshots", p.name, p.took.n)
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	plan, took, err := p.plan(limited, s)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		p.stop("%s took more than %v for a snapshot", p.name, p.limit)
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", p.name, err)
	case len(plan.Unplaced) > 0:
		p.stop("%s leaves out %d pods", p.name, len(plan.Unplaced))
		return nil
	}
	p.used += took
	p.took.add(milliseconds(took))
	p.theirs, p.ours = p.theirs+cost(s, plan), p.ours+ours
	return nil
}

func (p *peer) stop(format string, args ...any) {
	p.done = true
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// over returns how much more the peer's plans cost than Karve's, in percent.
func (p *peer) over() *float64 {
	if p.ours == 0 {
		return nil
	}
	return new(100 * (float64(p.theirs)/float64(p.ours) - 1))
}
