package snapshot

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// quota is a countable thing that pods use and that machines have in limited number: a resource, a host port, the volume attachments of a driver, or
// the weight of what pods take of several GPUs. The fields of the other kinds are empty.
type quota struct {
	resource corev1.ResourceName
	port     facts.HostPort
	driver   string
	gpus     gpuKind
}

func (q quota) String() string {
	switch {
	case q.resource != "":
		return string(q.resource)
	case q.driver != "":
		return "volumes of " + q.driver
	case q.gpus.count > 0:
		return q.gpus.String()
	}
	return fmt.Sprintf("host port %d/%s", q.port.Number, q.port.Protocol)
}

// defaultAmount returns the amount for machines that do not report one: 0 for a resource, 1 for a port, and no limit for volumes and for GPUs of other kinds.
func (q quota) defaultAmount() int64 {
	switch {
	case q.resource != "":
		return 0
	case q.driver != "", q.gpus.count > 0:
		return planner.Unlimited
	}
	return 1
}

// quotasTaken returns what each pod of the class uses. mixed reports whether machines have MIG instances of several resources.
func (w *waitingClass) quotasTaken(mixed bool) map[quota]int64 {
	taken := map[quota]int64{}
	for name := range w.demand.Requests {
		if n := facts.ValueOf(w.demand.Requests, name); (facts.IsExtended(name, w.gpu) || mixed && facts.IsInstance(name)) && n > 0 {
			taken[quota{resource: name}] = n
		}
	}
	for _, port := range w.ports {
		taken[quota{port: port}] = 1
	}
	if w.volumes != nil {
		for driver, n := range w.volumes.Drivers {
			taken[quota{driver: driver}] = n
		}
	}
	return taken
}

// addQuotas sets the quotas of the view: what pods use, and how much of it offerings and nodes have.
func (v *View) addQuotas(c *facts.Cluster, rooms []room, waiting []*waitingClass, storage *records.Storage) {
	mixed, orders := v.hasMixedInstances(rooms), v.gpuOrders(rooms, waiting)
	asked := v.quotasAsked(waiting, mixed)
	for kind := range orders {
		asked[kind.String()] = quota{gpus: kind}
	}
	if len(asked) == 0 {
		return
	}
	var quotas []quota
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		quotas = append(quotas, asked[name])
		v.Quotas = append(v.Quotas, planner.Quota{Name: name, Each: asked[name].defaultAmount()})
	}
	takes := func(w *waitingClass, class *planner.Class, taken map[quota]int64) {
		share := shareOf(nil, class.Requests.Replicas)
		if w != nil {
			taken, share = w.quotasTaken(mixed), shareOf(w.claim, class.Requests.Replicas)
		}
		class.Quotas = quotaAmounts(quotas, func(q quota) (int64, bool) {
			if order := orders[q.gpus]; order != nil {
				return order.weightOf(share), true
			}
			n, ok := taken[q]
			return n, ok
		})
	}
	for i, w := range waiting {
		takes(w, &v.Classes[i], nil)
	}
	for i := range v.Reserves {
		r := &v.Reserves[i]
		takes(r.waiting, &r.Class, map[quota]int64{{resource: v.Pools[r.Pool].Resource()}: r.Class.Requests.Replicas}) // Only instances are quotas.
	}
	limits := records.AttachableOf(c)
	for i, o := range v.Offerings {
		kind, _ := o.gpuKind(&v.Pools[v.Snapshot.Offerings[i].Pool])
		v.Snapshot.Offerings[i].Quotas = quotaAmounts(quotas, func(q quota) (int64, bool) {
			if order := orders[q.gpus]; order != nil {
				return order.quotaOf(kind.count) - order.weightOf(shareOf(nil, o.Daemons.Replicas)), q.gpus == kind
			}
			return o.quotaAmount(q, limits)
		})
	}
	for i := range rooms {
		kind, _ := rooms[i].gpuKind()
		v.Nodes[i].Quotas = quotaAmounts(quotas, func(q quota) (int64, bool) {
			if order := orders[q.gpus]; order != nil {
				if q.gpus != kind {
					return 0, false
				}
				return order.quotaLeft(&rooms[i]), true
			}
			return rooms[i].quotaAmount(q, limits, storage)
		})
	}
}

// quotasAsked returns the quotas that pending pods and reserves use, by name.
func (v *View) quotasAsked(waiting []*waitingClass, mixed bool) map[string]quota {
	asked := map[string]quota{}
	all := slices.Clone(waiting)
	for i := range v.Reserves {
		if w := v.Reserves[i].waiting; w != nil {
			all = append(all, w)
		} else if pool := &v.Pools[v.Reserves[i].Pool]; mixed && facts.IsInstance(pool.Resource()) {
			asked[string(pool.Resource())] = quota{resource: pool.Resource()}
		}
	}
	for _, w := range all {
		for q := range w.quotasTaken(mixed) {
			asked[q.String()] = q
		}
	}
	return asked
}

// quotaAmounts returns the amounts for which has returns true, at least 0 each.
func quotaAmounts(all []quota, has func(quota) (int64, bool)) []planner.Amount {
	var amounts []planner.Amount
	for i, q := range all {
		if n, ok := has(q); ok {
			amounts = append(amounts, planner.Amount{Quota: i, Count: max(0, n)})
		}
	}
	return amounts
}

// quotaAmount returns the amount that a machine of the offering has of a quota. It returns false if that is the quota's defaultAmount.
func (o *Offering) quotaAmount(q quota, limits *records.Attachable) (int64, bool) {
	switch {
	case facts.IsInstance(q.resource):
		return o.instancesLeft(q.resource), true
	case q.resource != "":
		n, ok := o.Type.Extended[string(q.resource)]
		return amount.Sub(n, records.ResourceOf(o.daemons, q.resource)), ok
	case q.driver != "":
		return limits.OfType(o.Type.Name, q.driver)
	}
	return 0, slices.ContainsFunc(o.daemons, func(d *records.Demand) bool { return slices.Contains(facts.HostPorts(d.Pod), q.port) })
}

// quotaAmount returns the amount of a quota that is left on the node. It returns false if that is the quota's defaultAmount.
func (r *room) quotaAmount(q quota, limits *records.Attachable, storage *records.Storage) (int64, bool) {
	switch {
	case facts.IsInstance(q.resource):
		return r.instancesLeft(q.resource), true
	case q.resource != "":
		n, toCome := r.extended(q.resource), max(0, amount.Sub(records.ResourceOf(r.daemons, q.resource), r.use.Daemons.Amounts[q.resource]))
		return amount.Sub(n, amount.Add(r.use.All.Amounts[q.resource], toCome)), n > 0
	case q.driver != "":
		limit, ok := limits.Of(r.nodeName, q.driver)
		if !ok && r.starting {
			limit, ok = limits.OfType(r.labels[corev1.LabelInstanceTypeStable], q.driver)
		}
		return limit - storage.Attached(r.pods, q.driver), ok
	}
	return 0, r.use.Ports[q.port] || slices.ContainsFunc(r.daemons, func(d *records.Demand) bool { return slices.Contains(facts.HostPorts(d.Pod), q.port) })
}

// hasMixedInstances reports whether an offering or a room has instances of several resources.
func (v *View) hasMixedInstances(rooms []room) bool {
	return slices.ContainsFunc(v.Offerings, func(o *Offering) bool { return o.instances != nil }) ||
		slices.ContainsFunc(rooms, func(r room) bool { return r.instances != nil })
}

// instancesLeft returns what is left of a resource of instances on a machine of the offering.
func (o *Offering) instancesLeft(name corev1.ResourceName) int64 {
	if o.instances == nil {
		if name == o.Resource() {
			return planner.Unlimited
		}
		return 0
	}
	has, _ := records.OfferOf(o.instances, name)
	return has.Replicas - records.ResourceOf(o.daemons, name)
}

// instancesLeft returns what is left of a resource of instances on the node.
func (r *room) instancesLeft(name corev1.ResourceName) int64 {
	if r.instances == nil {
		if name == r.gpu {
			return planner.Unlimited
		}
		return 0
	}
	has := r.extended(name)
	if o, ok := records.OfferOf(r.instances, name); ok && r.starting && r.machine.AwaitsInstances() {
		has = max(has, o.Replicas)
	}
	toCome := max(0, records.ResourceOf(r.daemons, name)-r.use.Daemons.Amounts[name])
	return has - r.use.All.Amounts[name] - toCome
}
