package disruption

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/controllers/disruption/reason"
	"karve.sh/karve/pkg/controllers/planning"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
)

// whatIf is a simulator that makes a plan for a view in which machines have left, once for each question.
type whatIf struct {
	view *snapshot.View
	// cordoned has the names of Nodes that take no moved pods. Their own pods may stay.
	cordoned []string
	// others finds room for foreign pods.
	others *retention.OtherNodes
	// known has the outcomes by question.
	known map[string]outcome
}

// outcome is the result of a plan. Pods and nodes are named.
type outcome struct {
	// unplaced has the pods without room, and why.
	unplaced map[string]string
	// price is the highest price of the launches, including those for headroom, plus that of the machines that stay only because the plan uses them.
	price planner.MicroUSD
	// taken has the resources that the plan uses on nodes, by the names of the nodes. placements has the placements of pods, by the names of the pods.
	taken      map[string]planner.Resources
	placements map[string]placement
}

func newWhatIf(view *snapshot.View, others *retention.OtherNodes, cordoned []string) *whatIf {
	return &whatIf{view: view, others: others, cordoned: cordoned, known: map[string]outcome{}}
}

// moving returns the names of the pods that move when a machine is removed.
func (w *whatIf) moving(claim string) []string {
	var names []string
	for i := range w.view.Machines {
		if m := &w.view.Machines[i]; m.Claim.Name == claim {
			for _, pod := range m.Moving() {
				names = append(names, podName(pod))
			}
		}
	}
	return names
}

func podName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

func (w *whatIf) planned(claims []string) string {
	return w.displacedBy(claims, "planned", func(claims []string) snapshot.View {
		return w.view.WhatIf(snapshot.WhatIf{Leaving: claims})
	})
}

func (w *whatIf) place(claims []string) string { return w.displacedBy(claims, "now", w.asIs) }

func (w *whatIf) placements(claims []string) map[string]placement {
	return w.ask("now", claims, w.asIs).placements
}

func (w *whatIf) asIs(claims []string) snapshot.View {
	return w.view.AsIs(snapshot.WhatIf{Cordoned: w.cordoned}, claims)
}

func (w *whatIf) displacedBy(claims []string, question string, view func([]string) snapshot.View) string {
	last := len(claims) - 1
	if len(w.moving(claims[last])) == 0 {
		return ""
	}
	return w.displaced(w.ask(question, claims[:last], view), w.ask(question, claims, view), claims[last:])
}

func (w *whatIf) ask(question string, claims []string, view func([]string) snapshot.View) outcome {
	return w.plan(question+" "+strings.Join(claims, " "), placeEffort, func() snapshot.View { return view(claims) })
}

// displaced returns which pod of the removed machines has no room afterwards, and why, or that other pods lose theirs. It returns "" if neither is so.
func (w *whatIf) displaced(before, after outcome, claims []string) string {
	var unplaced []string
	for _, claim := range claims {
		for _, pod := range w.moving(claim) {
			if _, ok := after.unplaced[pod]; ok {
				unplaced = append(unplaced, pod)
			}
		}
	}
	if len(unplaced) > 0 {
		return fmt.Sprintf("%s would have no place: %s", unplaced[0], after.unplaced[unplaced[0]])
	}
	if more := len(after.unplaced) - len(before.unplaced); more > 0 {
		return fmt.Sprintf("its pods would take the places of %d others", more)
	}
	return ""
}

const (
	// placeEffort is enough to find room if there is any, whatever it costs.
	placeEffort = 1
	// costEffort is enough to find cheap room.
	costEffort = solve.DefaultEffort / 10
)

// saving is for machines that are marked as underutilized. It compares the cluster without the marked machines to the cluster without the marked ones and
// claims.
func (w *whatIf) saving(marked, claims []string) (planner.MicroUSD, string) {
	before, after := w.cost(marked), w.cost(append(slices.Clone(marked), claims...))
	if why := w.displaced(before, after, claims); why != "" {
		return 0, why
	}
	saving := before.price - after.price
	var going []*snapshot.Machine
	for i := range w.view.Machines {
		if m := &w.view.Machines[i]; slices.Contains(claims, m.Claim.Name) {
			saving += planner.MicroUSD(m.MicroUSDPerHour())
			going = append(going, m)
		}
	}
	return saving, w.others.Hold(going, after.taken)
}

// saves refuses a proposal that saves no more than the cost of moving its pods.
func (w *whatIf) saves(marked []string, proposed proposal) (planner.MicroUSD, string) {
	saving, why := w.saving(marked, proposed.claims)
	if why == "" && saving <= proposed.moves {
		why = fmt.Sprintf("without it the machines would cost %s an hour less at the least, and moving its pods counts %s", usd(max(0, saving)), usd(proposed.moves))
	}
	return saving, why
}

// cost returns the outcome if exactly these machines are marked as underutilized, in any order.
func (w *whatIf) cost(marked []string) outcome {
	marked = slices.Sorted(slices.Values(marked))
	return w.plan("cost "+strings.Join(marked, " "), costEffort, func() snapshot.View {
		change := snapshot.WhatIf{Leaving: marked}
		for i := range w.view.Machines {
			if m := &w.view.Machines[i]; reason.MarkedUnderutilized(m) && !slices.Contains(marked, m.Claim.Name) {
				change.Staying = append(change.Staying, m.Claim.Name)
			}
		}
		return w.view.WhatIf(change)
	})
}

// plan makes a plan for a view and returns its outcome. It reuses an earlier outcome with the same key.
func (w *whatIf) plan(key string, effort int64, build func() snapshot.View) outcome {
	if known, ok := w.known[key]; ok {
		return known
	}
	plan, headroom := planning.Suppose(build(), effort)
	view := &plan.View
	o := outcome{
		unplaced: map[string]string{}, price: highestPrice(view.Snapshot, plan.Plan) + highestPrice(headroom.Snapshot, headroom.Plan),
		taken: map[string]planner.Resources{}, placements: map[string]placement{},
	}
	for _, u := range plan.Unplaced {
		o.unplaced[u.Pod] = u.Message
	}
	asks := map[string]planner.Resources{}
	for i := range view.Classes {
		for _, pod := range view.Classes[i].Pods {
			asks[pod] = view.Classes[i].Requests
		}
	}
	used := map[string]bool{}
	for _, p := range plan.Placements {
		node := view.Nodes[p.Node].Name
		used[node] = true
		for _, pod := range p.Pods {
			t, r := o.taken[node], asks[pod]
			o.placements[pod] = placement{node, r}
			o.taken[node] = planner.Resources{
				MilliCPU: t.MilliCPU + r.MilliCPU, MemoryBytes: t.MemoryBytes + r.MemoryBytes, EphemeralBytes: t.EphemeralBytes + r.EphemeralBytes, Pods: t.Pods + r.Pods,
			}
		}
	}
	maps.Copy(used, headroom.Keeps())
	for node, price := range unused(view) {
		if used[node] {
			o.price += price
		}
	}
	w.known[key] = o
	return o
}

// highestPrice returns the highest price of a plan's launches. The cloud picks one of the alternatives of each launch, and may not have the cheapest. A step
// that saves only with the cheapest would be repeated again and again.
func highestPrice(s planner.Snapshot, plan planner.Plan) planner.MicroUSD {
	var total planner.MicroUSD
	for _, l := range plan.Launches {
		price := s.Offerings[l.Offering].Price
		for _, other := range l.Alternatives {
			price = max(price, s.Offerings[other].Price)
		}
		total += price
	}
	return total
}

// unused returns the prices of machines whose replicas nobody holds and that would be deleted, by the names of the planner's nodes.
func unused(view *snapshot.View) map[string]planner.MicroUSD {
	prices := map[string]planner.MicroUSD{}
	for i := range view.Machines {
		m := &view.Machines[i]
		pool := view.PoolNamed(m.Pool())
		if pool == nil || pool.KeepsIdle() != "" || !m.NoReplicasHeld() {
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
