package quote

import (
	"slices"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/table"
	"karve.sh/karve/pkg/words"
)

// Prices are what the machines of a plan cost per hour.
type Prices struct {
	// Price is the sum of the prices, and ListPrice that of the prices in the cloud's list. Bound is a lower bound on Price, for plans on equally fast machines if there is a price of work.
	Price     planner.MicroUSD `json:"microUSDPerHour"`
	ListPrice planner.MicroUSD `json:"listMicroUSDPerHour"`
	Bound     planner.MicroUSD `json:"boundMicroUSDPerHour"`
	// Work is the price of the work of the pods, which plans minimize if pods state their throughput: a machine on which a pod takes longer than alone on its fastest GPU counts more.
	// WorkBound is a lower bound on it. They are nil if no pod states any.
	Work      *planner.MicroUSD `json:"workMicroUSDPerHour,omitempty"`
	WorkBound *planner.MicroUSD `json:"workBoundMicroUSDPerHour,omitempty"`
}

func pricesOf(view *snapshot.View, s planner.Snapshot, plan planner.Plan) Prices {
	paid := planner.Paid(s, plan)
	p := Prices{Price: paid.Price, Bound: paid.Bound}
	for _, launch := range plan.Launches {
		p.ListPrice += s.Offerings[launch.Offering].ListPrice
	}
	if view.PricesWork() {
		work, bound := view.Work(plan)
		p.Work, p.WorkBound = &work, &bound
	}
	return p
}

func (p *Prices) minimized() planner.MicroUSD {
	if p.Work != nil {
		return *p.Work
	}
	return p.Price
}

// priceColumns are the columns with prices of a table: list prices if any differ, and the price of work if pods state their throughput.
type priceColumns struct{ list, work bool }

func columnsOf(all []*Prices) priceColumns {
	return priceColumns{
		list: slices.ContainsFunc(all, func(p *Prices) bool { return p.ListPrice != p.Price }),
		work: slices.ContainsFunc(all, func(p *Prices) bool { return p.Work != nil }),
	}
}

func (c priceColumns) columns() []table.Column {
	titles := []string{"$/H"}
	if c.list {
		titles = append(titles, "LIST $/H")
	}
	if c.work {
		titles = append(titles, "WORK $/H")
	}
	var all []table.Column
	for _, title := range append(titles, "AT LEAST") {
		all = append(all, table.Column{Title: title, Right: true})
	}
	return all
}

// cells returns the cells of a row. The lower bound is that of what plans minimize.
func (c priceColumns) cells(p *Prices) []string {
	all, bound := []string{words.USD(p.Price)}, p.Bound
	if c.list {
		all = append(all, words.USD(p.ListPrice))
	}
	if c.work {
		all = append(all, words.USD(p.minimized()))
		if p.WorkBound != nil {
			bound = *p.WorkBound
		}
	}
	return append(all, words.FloorUSD(bound))
}

// note says what the columns mean. It is "" if that is clear.
func (c priceColumns) note() string {
	if !c.work {
		return ""
	}
	return "Pods state their throughput, so plans minimize WORK $/H: a machine on which their work takes longer counts more. AT LEAST is its lower bound."
}

// Unpriced returns the pools that allow spot machines if the catalog has no spot offerings. Their plans cost more than they could.
func Unpriced(c *facts.Cluster) []string {
	if slices.ContainsFunc(c.InstanceTypes(), func(t catalog.InstanceType) bool {
		return slices.ContainsFunc(t.Offerings, func(o catalog.Offering) bool { return o.CapacityType == karpv1.CapacityTypeSpot })
	}) {
		return nil
	}
	var pools []string
	for i := range c.NodePools {
		np := &c.NodePools[i]
		requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(np.Spec.Template.Spec.Requirements...)
		// A pool without a requirement for the capacity type gets only on-demand machines.
		if facts.IsOurs(np) && requirements.Has(karpv1.CapacityTypeLabelKey) && requirements.Get(karpv1.CapacityTypeLabelKey).Has(karpv1.CapacityTypeSpot) {
			pools = append(pools, np.Name)
		}
	}
	return pools
}
