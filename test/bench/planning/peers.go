package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/firstfit"
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
}

const (
	// peerShare is a peer's time per row, and peerLimit its time per snapshot. Snapshots with more than peerPods pods are skipped.
	peerShare = 8 * time.Second
	peerLimit = 60 * time.Second
	peerPods  = 10_000
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
	return firstFit, karp, &peer{name: "model of the Cluster Autoscaler", plan: modeled(autoscaler.LeastWaste)},
		&peer{name: "model of the Cluster Autoscaler by price", plan: modeled(autoscaler.Price)}
}

// run lets the peer plan a snapshot for which Karve's plan costs ours.
func (p *peer) run(ctx context.Context, s planner.Snapshot, ours planner.MicroUSD) error {
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
	limited, cancel := context.WithTimeout(ctx, peerLimit)
	defer cancel()
	plan, took, err := p.plan(limited, s)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		p.stop("%s took more than %v for a snapshot", p.name, peerLimit)
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", p.name, err)
	case len(plan.Unplaced) > 0:
		p.stop("%s leaves out %d pods", p.name, len(plan.Unplaced))
		return nil
	}
	p.used += took
	p.took.add(milliseconds(took))
	p.theirs, p.ours = p.theirs+plan.Price, p.ours+ours
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
