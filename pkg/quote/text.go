package quote

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/table"
	"karve.sh/karve/pkg/words"
)

// Text returns the quote as text. Machines of the same kind share a line. If wide is true, each pod has its own line.
func (q *Quote) Text(wide bool) string {
	var out strings.Builder
	switch {
	case q.waiting == 0 && len(q.Refused)+len(q.Unplanned)+len(q.Unserved) > 0:
		out.WriteString("No pods are part of the plan.\n")
	case q.waiting == 0:
		out.WriteString("No pods are waiting for GPUs.\n")
	}
	sections := []table.Table{q.claims(), q.placements()}
	if wide {
		sections = []table.Table{q.claimsWide(), q.placementsWide()}
	}
	unplaced, left := q.split()
	if q.Headroom != nil {
		unplaced = slices.Concat(unplaced, q.Headroom.Unplaced)
	}
	for _, t := range append(sections, q.summary(), q.refusals("NO PLACE FOR", unplaced), q.refusals("KARPENTER SERVES", left), q.steps(wide)) {
		if len(t.Rows) == 0 {
			continue
		}
		if out.Len() > 0 {
			out.WriteString("\n")
		}
		out.WriteString(t.String())
	}
	return out.String()
}

// claims returns the machines to launch, with one row for each kind.
func (q *Quote) claims() table.Table {
	t := table.Table{Columns: []table.Column{{Title: "NODEPOOL"}, {Title: "LAUNCH"}, {Title: "CAPACITY"}, {Title: "ZONE"}, {Title: "PODS", Right: true}, {Title: "$/H", Right: true}, {Title: "FOR"}}}
	for _, claims := range q.launches() {
		for len(claims) > 0 {
			first, n := claims[0], 0
			var pods []string
			for ; n < len(claims) && sameKind(first, claims[n]); n++ {
				pods = append(pods, claims[n].Pods...)
			}
			claims = claims[n:]
			t.Add(first.NodePool, fmt.Sprintf("%d × %s", n, first.machine()), first.capacity(), strings.Join(first.Zones, ","),
				strconv.Itoa(len(pods)), words.USD(first.Price*planner.MicroUSD(n)), q.workloads(pods))
		}
	}
	return t
}

// launches returns the machines for pending pods and those for headroom.
func (q *Quote) launches() [][]Claim {
	if q.Headroom == nil {
		return [][]Claim{q.Claims}
	}
	return [][]Claim{q.Claims, q.Headroom.Claims}
}

// machine returns the instance types that the claim allows, the MIG instances of their GPUs, and the replicas per GPU if they are more than the minimum of the
// class.
func (c *Claim) machine() string {
	switch {
	case c.MIGLayout != "":
		return fmt.Sprintf("%s (%s)", strings.Join(c.InstanceTypes, ","), c.MIGLayout)
	case c.more:
		return fmt.Sprintf("%s (%d per GPU)", strings.Join(c.InstanceTypes, ","), c.ReplicasPerGPU)
	}
	return strings.Join(c.InstanceTypes, ",")
}

func (c *Claim) capacity() string { return catalog.Capacity(c.CapacityType, c.Reservation) }

// sameKind reports whether two claims differ only in their pods.
func sameKind(a, b Claim) bool {
	a.Pods, b.Pods = nil, nil
	return compareClaims(a, b) == 0
}

// claimsWide returns the machines to launch, with a row for each pod.
func (q *Quote) claimsWide() table.Table {
	t := table.Table{Columns: []table.Column{{Title: "NODEPOOL"}, {Title: "LAUNCH"}, {Title: "CAPACITY"}, {Title: "ZONE"}, {Title: "$/H", Right: true}, {Title: "POD"}, {Title: "GPU", Right: true}}}
	for _, c := range slices.Concat(q.launches()...) {
		head := []string{c.NodePool, c.machine(), c.capacity(), strings.Join(c.Zones, ","), words.USD(c.Price)}
		q.addPods(&t, head, c.Pods)
	}
	return t
}

// addPods adds a row for each pod. Only the first one starts with the cells of head.
func (q *Quote) addPods(t *table.Table, head, pods []string) {
	for _, pod := range pods {
		gpu := "any"
		if n := q.pods[pod].gpu; n >= 0 {
			gpu = strconv.Itoa(n)
		}
		t.Add(append(slices.Clone(head), pod, gpu)...)
		head = make([]string, len(head))
	}
}

func (q *Quote) placements() table.Table {
	t := table.Table{Columns: []table.Column{{Title: "NODE WITH ROOM"}, {Title: "PODS", Right: true}, {Title: "FOR"}}}
	for _, p := range q.Placements {
		t.Add(p.Node, strconv.Itoa(len(p.Pods)), q.workloads(p.Pods))
	}
	return t
}

func (q *Quote) placementsWide() table.Table {
	t := table.Table{Columns: []table.Column{{Title: "NODE WITH ROOM"}, {Title: "POD"}, {Title: "GPU", Right: true}}}
	for _, p := range q.Placements {
		q.addPods(&t, []string{p.Node}, p.Pods)
	}
	return t
}

// summary returns the price of the plan and the prices to compare it with.
func (q *Quote) summary() table.Table {
	t := table.Table{Columns: []table.Column{{}, {Title: "$/H", Right: true}, {}}}
	if len(q.Claims) > 0 {
		t.Add("this plan, "+words.Count(len(q.Claims), "machine"), words.USD(q.Price), q.proof())
		if q.ListPrice != q.Price {
			t.Add("the same machines at list prices", words.USD(q.ListPrice), q.beside(q.ListPrice, 0))
		}
		if q.Karpenter != nil {
			t.Add("Karpenter alone", words.USD(*q.Karpenter), q.beside(*q.Karpenter, q.KarpenterUnplaced))
		}
		t.Add("a whole GPU for each replica", words.USD(q.WholeGPUs), q.beside(q.WholeGPUs, q.WholeGPUsUnplaced))
	}
	if h := q.Headroom; h != nil {
		t.Add("plus headroom, "+words.Count(len(h.Claims), "machine"), words.USD(h.Price), h.words())
	}
	return t
}

// proof describes how close the price is to the lower bound.
func (q *Quote) proof() string {
	switch {
	case q.PricesWork && q.Bound < q.Price:
		return "" // The bound is on the price of work.
	case q.PricesWork && q.complete():
		return "optimal: nothing does the work of these pods for less"
	case q.PricesWork:
		return "nothing does the work of the pods that have a place for less"
	}
	if q.Bound >= q.Price && !q.complete() {
		return "nothing cheaper holds the pods that have a place"
	}
	return proofText(q.Price, q.Bound)
}

func proofText(price, bound planner.MicroUSD) string {
	switch {
	case bound >= price:
		return "optimal: nothing cheaper holds these pods"
	case bound <= 0:
		return ""
	}
	// Round up, so that the statement is proven.
	permille := (1000*(price-bound) + bound - 1) / bound
	return fmt.Sprintf("proven lower bound %s: within %d.%d %%", words.FloorUSD(bound), permille/10, permille%10)
}

// beside compares another price with that of the plan.
func (q *Quote) beside(price planner.MicroUSD, unplaced int) string {
	var words string
	switch change := percent(price, q.Price); {
	case price == q.Price:
		words = "the same"
	case change == 0 && price > q.Price:
		words = "slightly more"
	case change == 0:
		words = "slightly less"
	default:
		words = fmt.Sprintf("%+d %%", change)
	}
	if unplaced > 0 {
		words += fmt.Sprintf(", without a place for %d of the pods", unplaced)
	}
	return words
}

// percent returns by how many percent a price is above another one, rounded to an integer. It is 0 if the other price is 0.
func percent(price, than planner.MicroUSD) int64 {
	if than == 0 {
		return 0
	}
	return int64(math.Round(100 * float64(price-than) / float64(than)))
}

// steps returns the steps to a cheaper layout of the nodes, with all NodeClaims if wide is true.
func (q *Quote) steps(wide bool) table.Table {
	t := table.Table{Columns: []table.Column{{Title: "NODES TO DELETE"}, {Title: "$/H SAVED", Right: true}, {Title: "WHEN"}}}
	for i := range q.Steps {
		s := &q.Steps[i]
		nodes := words.Named(s.NodeClaims, 1)
		if wide {
			nodes = strings.Join(s.NodeClaims, ",")
		}
		when := s.String()
		switch {
		case s.Covered == nil:
		case s.Covered.After(q.now):
			when += "; due in about " + words.Age(s.Covered.Sub(q.now))
		default:
			when += "; due now"
		}
		t.Add(nodes, words.USD(s.Saving), when)
	}
	return t
}

// refusals returns the pods that are not in the plan, with one row for each reason.
func (q *Quote) refusals(title string, refused []Unplaced) table.Table {
	t := table.Table{Columns: []table.Column{{Title: title}, {Title: "REASON"}, {Title: "MESSAGE"}}}
	type why struct {
		reason  planner.Reason
		message string
	}
	pods := map[why][]string{}
	var order []why
	for _, u := range refused {
		w := why{u.Reason, u.Message}
		if pods[w] == nil {
			order = append(order, w)
		}
		pods[w] = append(pods[w], u.Pod)
	}
	for _, w := range order {
		t.Add(q.workloads(pods[w]), string(w.reason), w.message)
	}
	return t
}
