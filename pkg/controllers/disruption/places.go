package disruption

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

// places answers where the pods of machines would go that leave. It plans, and asks the planner the same thing once.
type places struct {
	view *snapshot.View
	// moving are the names of the pods that a claim's machine would give away.
	moving map[string][]string
	// unhealthy are the names of Nodes that are no place to move to, though their pods may stay.
	unhealthy []string
	// others are where pods without a replica could go.
	others *retention.OtherNodes
	known  map[string]outcome
}

// outcome is what a plan comes to.
type outcome struct {
	// homeless are the pods without a place, and why.
	homeless map[string]string
	// price is what has to be launched at most, also for headroom, and what stays only for this, since nobody has used it before.
	price planner.MicroUSD
	// taken is what the plan takes of nodes, by their names, homes where it puts pods, by theirs.
	taken map[string]planner.Resources
	homes map[string]home
}

func newPlaces(view *snapshot.View, others *retention.OtherNodes) *places {
	p := &places{view: view, moving: map[string][]string{}, known: map[string]outcome{}, others: others}
	for i := range view.Machines {
		for _, pod := range view.Machines[i].Moving() {
			name := view.Machines[i].Claim.Name
			p.moving[name] = append(p.moving[name], podName(pod))
		}
	}
	return p
}

func podName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// planned says why the last of the claims, after the others, should not leave: whoever would have no place then, on machines to come either. "" when all have one.
func (p *places) planned(claims []string) string {
	return p.judge(claims, "planned", func(claims []string) snapshot.View {
		return p.view.WhatIf(snapshot.WhatIf{Leaving: claims})
	})
}

// now says it of the machines that have started and are well.
func (p *places) now(claims []string) string { return p.judge(claims, "now", p.asIs) }

// homes are where the pods of machines that leave would go now.
func (p *places) homes(claims []string) map[string]home {
	return p.ask("now", claims, p.asIs).homes
}

func (p *places) asIs(claims []string) snapshot.View {
	return p.view.AsIs(snapshot.WhatIf{Cordoned: p.unhealthy}, claims)
}

func (p *places) judge(claims []string, question string, view func([]string) snapshot.View) string {
	last := len(claims) - 1
	if len(p.moving[claims[last]]) == 0 {
		return ""
	}
	return p.worse(p.ask(question, claims[:last], view), p.ask(question, claims, view), claims[last:])
}

func (p *places) ask(question string, claims []string, view func([]string) snapshot.View) outcome {
	return p.plan(question+" "+strings.Join(claims, " "), little, func() snapshot.View { return view(claims) })
}

// worse says who has no place after the claims have left and had one before; "" when everybody has.
func (p *places) worse(before, after outcome, claims []string) string {
	var homeless []string
	for _, claim := range claims {
		for _, pod := range p.moving[claim] {
			if _, ok := after.homeless[pod]; ok {
				homeless = append(homeless, pod)
			}
		}
	}
	if len(homeless) > 0 {
		return fmt.Sprintf("%s would have no place: %s", homeless[0], after.homeless[homeless[0]])
	}
	if more := len(after.homeless) - len(before.homeless); more > 0 {
		return fmt.Sprintf("its pods would take the places of %d others", more)
	}
	return ""
}

const (
	// little effort finds places where there are some; which they are does not matter.
	little = 1
	// some effort finds cheap ones.
	some = planner.DefaultEffort / 10
)

// saving is by how much the machines cost less an hour when those of claims leave besides those that are marked because the rest costs less without them, and why
// they should not; "" when everybody has a place then.
func (p *places) saving(marked, claims []string) (planner.MicroUSD, string) {
	before, after := p.cost(marked), p.cost(append(slices.Clone(marked), claims...))
	if why := p.worse(before, after, claims); why != "" {
		return 0, why
	}
	saving := before.price - after.price
	var going []*snapshot.Machine
	for i := range p.view.Machines {
		if m := &p.view.Machines[i]; slices.Contains(claims, m.Claim.Name) {
			saving += planner.MicroUSD(m.MicroUSDPerHour())
			going = append(going, m)
		}
	}
	return saving, p.others.Hold(going, after.taken)
}

// saves says whether it saves more to take a proposal than moving the pods counts, and why not.
func (p *places) saves(marked []string, proposed proposal) (planner.MicroUSD, string) {
	saving, why := p.saving(marked, proposed.claims)
	if why == "" && saving <= proposed.moves {
		why = fmt.Sprintf("without it the machines would cost %s an hour less at the least, and moving its pods counts %s", usd(max(0, saving)), usd(proposed.moves))
	}
	return saving, why
}

// cost is what all come to when exactly these claims are marked because the rest costs less without them, in whatever order.
func (p *places) cost(marked []string) outcome {
	marked = slices.Sorted(slices.Values(marked))
	return p.plan("cost "+strings.Join(marked, " "), some, func() snapshot.View {
		change := snapshot.WhatIf{Leaving: marked}
		for i := range p.view.Machines {
			if m := &p.view.Machines[i]; underutilized(m) && !slices.Contains(marked, m.Claim.Name) {
				change.Staying = append(change.Staying, m.Claim.Name)
			}
		}
		return p.view.WhatIf(change)
	})
}

// plan plans for what there is in a view.
func (p *places) plan(key string, effort int64, look func() snapshot.View) outcome {
	if known, ok := p.known[key]; ok {
		return known
	}
	view := look()
	var plan planner.Plan
	view.Snapshot, plan = soundly(view.Snapshot, planner.Search{Effort: effort})
	o := outcome{homeless: map[string]string{}, price: atMost(view.Snapshot, plan), taken: map[string]planner.Resources{}, homes: map[string]home{}}
	for _, u := range plan.Unplaced {
		o.homeless[u.Pod] = u.Message
	}
	asks := map[string]planner.Resources{}
	for i := range view.Classes {
		for _, pod := range view.Classes[i].Pods {
			asks[pod] = view.Classes[i].Requests
		}
	}
	used := map[string]bool{}
	for _, placement := range plan.Placements {
		node := view.Nodes[placement.Node].Name
		used[node] = true
		for _, pod := range placement.Pods {
			t, r := o.taken[node], asks[pod]
			o.homes[pod] = home{node, r}
			o.taken[node] = planner.Resources{
				MilliCPU: t.MilliCPU + r.MilliCPU, MemoryBytes: t.MemoryBytes + r.MemoryBytes, EphemeralBytes: t.EphemeralBytes + r.EphemeralBytes, Pods: t.Pods + r.Pods,
			}
		}
	}
	headroom := view.Headroom(plan, planner.Search{Effort: effort})
	o.price += atMost(headroom.Snapshot, headroom.Plan)
	maps.Copy(used, headroom.Keeps())
	for node, price := range unused(&view) {
		if used[node] {
			o.price += price
		}
	}
	p.known[key] = o
	return o
}

// atMost is what the launches of a plan may come to: the cloud picks among what each leaves to it, and has not always what is cheapest. What saves only if it picks
// well would be begun again and again.
func atMost(s planner.Snapshot, plan planner.Plan) planner.MicroUSD {
	var total planner.MicroUSD
	for _, l := range planner.WithAlternatives(s, plan).Launches {
		price := s.Offerings[l.Offering].Price
		for _, other := range l.Alternatives {
			price = max(price, s.Offerings[other].Price)
		}
		total += price
	}
	return total
}

// unused are the prices of machines that hold no replica for anybody and would go, by the names of the planner's nodes.
func unused(view *snapshot.View) map[string]planner.MicroUSD {
	prices := map[string]planner.MicroUSD{}
	for i := range view.Machines {
		m := &view.Machines[i]
		pool := view.PoolNamed(m.Pool())
		if pool == nil || pool.KeepsIdle() != "" || !m.Unused() {
			continue
		}
		if _, never := pool.IdleAfter(); never {
			continue
		}
		name := m.Claim.Name
		if m.Node != nil {
			name = m.Node.Name
		}
		prices[name] = planner.MicroUSD(m.MicroUSDPerHour())
	}
	return prices
}
