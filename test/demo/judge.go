package main

import (
	"errors"
	"fmt"
	"time"

	"karve.sh/karve/pkg/catalog"
)

// surprises returns what is wrong once all pods of a side run, one sentence each, or nil.
func surprises(s side, wanted int, now seen) error {
	mine := now.of(s.pool, s.deployment)
	return errors.Join(podSurprises(s, wanted, mine), machineSurprises(mine), strangers(s, now))
}

func podSurprises(s side, wanted int, mine seen) error {
	var errs []error
	if len(mine.pods) != wanted {
		errs = append(errs, fmt.Errorf("%d pods of Deployment %s were created in place of %d: some were replaced", len(mine.pods), s.deployment, wanted))
	}
	nodes := set(mine.nodes, func(n node) string { return n.name })
	for _, p := range mine.pods {
		switch {
		case p.running.IsZero() || !p.gone.IsZero():
			errs = append(errs, fmt.Errorf("pod %s is not Running", p.name))
		case !nodes[p.node]:
			errs = append(errs, fmt.Errorf("pod %s runs on Node %s, which is not of NodePool %s", p.name, p.node, s.pool))
		}
	}
	return errors.Join(errs...)
}

// machineSurprises reports machines that nothing needs.
func machineSurprises(mine seen) error {
	var errs []error
	nodes := set(mine.nodes, func(n node) string { return n.name })
	for _, c := range mine.claims {
		if !c.gone.IsZero() || !nodes[c.node] {
			errs = append(errs, fmt.Errorf("NodeClaim %s was launched for nothing: it has no Node", c.name))
		}
	}
	claimed := set(mine.claims, func(c claim) string { return c.node })
	used := set(mine.pods, func(p pod) string { return p.node })
	for _, n := range mine.nodes {
		if !claimed[n.name] {
			errs = append(errs, fmt.Errorf("no NodeClaim is behind Node %s", n.name))
		}
		if !used[n.name] {
			errs = append(errs, fmt.Errorf("none of the pods is on Node %s, which was launched for nothing", n.name))
		}
	}
	return errors.Join(errs...)
}

// strangers reports machines of other pools. Both pools exist all the time, so this shows whether one side serves the other's pods.
func strangers(s side, now seen) error {
	var errs []error
	stranger := func(kind, name, pool string, from, gone time.Time) {
		if pool != s.pool && (gone.IsZero() || from.After(s.began)) {
			errs = append(errs, fmt.Errorf("%s %s of NodePool %q is there while only %s has something to do", kind, name, pool, s.name))
		}
	}
	for _, c := range now.claims {
		stranger("NodeClaim", c.name, c.pool, c.seen, c.gone)
	}
	for _, n := range now.nodes {
		stranger("Node", n.name, n.pool, n.seen, n.gone)
	}
	return errors.Join(errs...)
}

func set[T any](all []T, key func(T) string) map[string]bool {
	keys := map[string]bool{}
	for _, one := range all {
		keys[key(one)] = true
	}
	return keys
}

// compared reports what is wrong when the two sides are compared, and what is left when both are done.
func compared(karve, karpenter figures, left seen) error {
	var errs []error
	if karve.pods != karpenter.pods {
		errs = append(errs, fmt.Errorf("the comparison is of %d pods with Karve and %d with Karpenter alone", karve.pods, karpenter.pods))
	}
	if karve.microUSD > karpenter.microUSD {
		errs = append(errs, fmt.Errorf("the price with Karve, %s an hour, is above that of Karpenter alone, %s",
			dollars(karve.microUSD), dollars(karpenter.microUSD)))
	}
	if len(left.claims)+len(left.nodes) > 0 {
		errs = append(errs, fmt.Errorf("%s and %s are left", plural(len(left.claims), "NodeClaim"), plural(len(left.nodes), "Node")))
	}
	return errors.Join(errs...)
}

// offering identifies a price.
type offering struct{ instanceType, zone, capacityType string }

// prices are in micro-dollars per hour.
type prices map[offering]int64

func pricesOf(types []catalog.InstanceType) prices {
	p := prices{}
	for _, t := range types {
		for _, o := range t.Offerings {
			p[offering{t.Name, o.Zone, o.CapacityType}] = o.MicroUSDPerHour
		}
	}
	return p
}

// of returns the total price of the machines of the claims.
func (p prices) of(claims []claim) (int64, error) {
	var sum int64
	for _, c := range claims {
		price, ok := p[offering{c.instanceType, c.zone, c.capacityType}]
		if !ok {
			return 0, fmt.Errorf("NodeClaim %s is a %s %q in zone %q, which has no price", c.name, c.capacityType, c.instanceType, c.zone)
		}
		sum += price
	}
	return sum, nil
}
