package disruption

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// questionsFor is how long a round asks what-if questions. It asks at least one question of each kind.
const questionsFor = time.Second

// later is the answer to a question for which this round has no time. The next rounds ask it again.
const later = "whether its pods have another place is not known yet"

// simulator answers what would happen to pods and to the price if machines were removed. Machines are named by their NodeClaims. Each answer requires a
// plan for the cluster, so one round has time for only some answers. It gets the answer later to the other questions.
type simulator interface {
	// expect announces the machines of the next questions, in order, so that one plan can answer for many of them.
	expect(q question, claims []string)
	// planned returns why the last of the machines, after the others, should not be marked: its pods would have no room, even on machines that are
	// launched for them. It returns "" if all pods would have room.
	planned(claims []string) string
	// place is like planned, but considers only room on machines that have started and are healthy.
	place(claims []string) string
	// refilled is like planned, but the machines leave before others are launched, which can then take the slots of their reservations.
	refilled(claims []string) string
	// placements returns where the pods of the machines would be placed now, by the names of the pods.
	placements(claims []string) map[string]placement
	// together returns the highest hourly price of the machines that are launched or stay for the pods of these machines if all of these are removed. It
	// also returns why they cannot all be removed, or "" if they can.
	together(claims []string) (planner.MicroUSD, string)
	// saving returns the hourly saving of removing claims after the marked machines. It also returns why they should not be removed, or "" if they may.
	saving(marked, claims []string) (planner.MicroUSD, string)
	// saves returns the saving of a proposal after the marked machines. It also returns why the proposal must not begin, or "" if it may.
	saves(marked []string, p Proposal) (planner.MicroUSD, string)
}

// placement is the node on which a plan places a pod, and the pod's requests.
type placement struct {
	node string
	asks planner.Resources
}

// whatIf is a simulator that answers each question with a plan for a view without some machines.
//
// A plan for several machines answers for each of them: if the pods of all have room when all of them leave, the pods of some have room when only those
// leave. So whatIf first asks about as many of the expected machines as possible, and about fewer after each plan that does not have room for all.
type whatIf struct {
	view *snapshot.View
	// machines has the machines of the view by the names of their NodeClaims.
	machines map[string]*records.Machine
	// more reports whether there is time for another plan.
	more func() bool
	// surveys has what is known about several machines at once.
	surveys map[question]*survey
	// cordoned has the names of Nodes that accept no moved pods. Their own pods may stay.
	cordoned []string
	// others finds room for foreign pods.
	others *retention.OtherNodes
	// known has the outcomes by question.
	known map[string]outcome
}

// outcome is the result of a plan. It refers to pods and nodes by name.
type outcome struct {
	// unplaced maps pods without room to the reason.
	unplaced map[string]string
	// price is the highest price of the launches, including those for headroom, plus that of the machines that stay only because the plan uses them.
	price planner.MicroUSD
	// taken has the resources that the plan uses on nodes, by the names of the nodes. placements has the placements of pods, by the names of the pods.
	taken      map[string]planner.Resources
	placements map[string]placement
}

// question is a kind of question. Plans for the same kind are comparable.
type question string

const (
	// asPlanned asks whether there is room on machines that exist or are launched.
	asPlanned question = "planned"
	// asIs asks whether there is room on machines that have started.
	asIs question = "now"
	// atCost asks what room costs.
	atCost question = "cost"
	// asRefilled asks whether there is room on machines that exist, or that are launched once the removed ones are gone.
	asRefilled question = "refilled"
)

// survey is what is known about several machines at once, for one kind of question.
type survey struct {
	// coming has the NodeClaims of the next questions, in order.
	coming []string
	// size is how many of them the next plan adds.
	size int
	// room has NodeClaims whose pods have room if all of them leave.
	room map[string]bool
	// answers is the number of answered questions.
	answers int
}

// covers reports whether the pods of the machines are known to have room.
func (g *survey) covers(claims []string) bool {
	return !slices.ContainsFunc(claims, func(claim string) bool { return !g.room[claim] })
}

// next returns the machines whose questions follow that about claim, as many as the next plan considers.
func (g *survey) next(claim string) []string {
	rest := g.coming[slices.Index(g.coming, claim)+1:]
	return rest[:min(g.size, len(rest))]
}

func newWhatIf(view *snapshot.View, others *retention.OtherNodes, cordoned []string, more func() bool) *whatIf {
	w := &whatIf{
		view: view, others: others, cordoned: cordoned, more: more, known: map[string]outcome{}, machines: map[string]*records.Machine{},
		surveys: map[question]*survey{asPlanned: {}, asIs: {}, atCost: {}, asRefilled: {}},
	}
	for i := range view.Machines {
		w.machines[view.Machines[i].Claim.Name] = &view.Machines[i]
	}
	return w
}

func (w *whatIf) expect(q question, claims []string) {
	w.surveys[q] = &survey{coming: claims, size: len(claims), answers: w.surveys[q].answers}
}

// late reports whether there is no time to answer another question. One of each kind is always answered.
func (w *whatIf) late(q question) bool { return w.surveys[q].answers > 0 && !w.more() }

// moving returns the names of the pods that move when a machine is removed.
func (w *whatIf) moving(claim string) []string {
	m := w.machines[claim]
	if m == nil {
		return nil
	}
	var names []string
	for _, pod := range m.Moving() {
		names = append(names, podName(pod))
	}
	return names
}

func (w *whatIf) planned(claims []string) string { return w.displacedBy(asPlanned, claims) }

func (w *whatIf) place(claims []string) string { return w.displacedBy(asIs, claims) }

func (w *whatIf) refilled(claims []string) string { return w.displacedBy(asRefilled, claims) }

func (w *whatIf) placements(claims []string) map[string]placement {
	return w.ask(asIs, claims).placements
}

// displacedBy returns why the last of the machines cannot be removed after the others, or "" if it can.
func (w *whatIf) displacedBy(q question, claims []string) string {
	last, g := len(claims)-1, w.surveys[q]
	if len(w.moving(claims[last])) == 0 || g.covers(claims) {
		return ""
	}
	for next := g.next(claims[last]); len(next) > 0 && w.more(); next = g.next(claims[last]) {
		all := slices.Concat(claims, next)
		if w.displaced(w.ask(q, nil), w.ask(q, all), all) == "" {
			g.room, g.size, g.answers = map[string]bool{}, 2*len(next), g.answers+1
			for _, claim := range all {
				g.room[claim] = true
			}
			return ""
		}
		g.size = len(next) / 2
	}
	if w.late(q) {
		return later
	}
	g.answers++
	why := w.displaced(w.ask(q, claims[:last]), w.ask(q, claims), claims[last:])
	if why == "" {
		g.size = max(1, g.size)
	}
	return why
}

// viewOf returns the view without the machines.
func (w *whatIf) viewOf(q question, claims []string) snapshot.View {
	switch q {
	case asIs:
		return w.view.AsIs(snapshot.WhatIf{Cordoned: w.cordoned}, claims)
	case atCost:
		change := snapshot.WhatIf{Leaving: claims}
		for i := range w.view.Machines {
			if m := &w.view.Machines[i]; reason.MarkedUnderutilized(m) && !slices.Contains(claims, m.Claim.Name) {
				change.Staying = append(change.Staying, m.Claim.Name)
			}
		}
		return w.view.WhatIf(change)
	case asRefilled:
		return w.view.WhatIf(snapshot.WhatIf{Leaving: claims, Refilled: true})
	case asPlanned:
	}
	return w.view.WhatIf(snapshot.WhatIf{Leaving: claims})
}

// displaced returns which pod of the removed machines has no room afterwards, and why, or that other pods lose their room. It returns "" if neither is
// the case.
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
		return fmt.Sprintf("its pods would take the places of %s", words.Count(more, "other pod"))
	}
	return ""
}

const (
	// placeEffort is enough to find room if there is any, at any price.
	placeEffort = 1
	// costEffort is enough to find cheap room.
	costEffort = solve.DefaultEffort / 10
)

// saving is for machines that are marked as underutilized. It compares the cluster without the marked machines to the cluster without the marked
// machines and claims.
func (w *whatIf) saving(marked, claims []string) (planner.MicroUSD, string) {
	before, after := w.ask(atCost, marked), w.ask(atCost, slices.Concat(marked, claims))
	if why := w.displaced(before, after, claims); why != "" {
		return 0, why
	}
	saving := before.price - after.price
	for _, claim := range claims {
		saving += planner.MicroUSD(w.machines[claim].MicroUSDPerHour())
	}
	return saving, w.others.Hold(w.going(claims), after.taken)
}

func (w *whatIf) going(claims []string) []*records.Machine {
	var going []*records.Machine
	for _, claim := range claims {
		going = append(going, w.machines[claim])
	}
	return going
}

func (w *whatIf) together(claims []string) (planner.MicroUSD, string) {
	before, after := w.ask(atCost, nil), w.ask(atCost, claims)
	if why := w.displaced(before, after, claims); why != "" {
		return 0, why
	}
	return after.price, w.others.Hold(w.going(claims), after.taken)
}

// saves refuses a proposal that saves nothing.
func (w *whatIf) saves(marked []string, proposed Proposal) (planner.MicroUSD, string) {
	if w.late(atCost) {
		return 0, later
	}
	w.surveys[atCost].answers++
	saving, why := w.saving(marked, proposed.Claims)
	if why == "" && saving <= 0 {
		why = "without it the machines would cost no less"
	}
	return saving, why
}

// ask makes a plan for the view without the machines and returns its outcome. It reuses the outcome of an earlier plan for the same machines.
func (w *whatIf) ask(q question, claims []string) outcome {
	effort := int64(placeEffort)
	if q == atCost {
		effort = costEffort
	}
	claims = slices.Sorted(slices.Values(claims)) // The order of removal makes no difference.
	key := string(q) + " " + strings.Join(claims, " ")
	if known, ok := w.known[key]; ok {
		return known
	}
	plan, headroom := checked.Suppose(w.viewOf(q, claims), effort)
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

// highestPrice returns the highest price of a plan's launches. The cloud chooses among the alternatives of each launch, and may not have the cheapest.
// A step that saves only with the cheapest would be repeated again and again.
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

// unused returns the prices of machines whose replicas no pod holds and that would be deleted, by the names of the planner's nodes.
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
