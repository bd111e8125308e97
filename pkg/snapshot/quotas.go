package snapshot

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/planner"
)

// quota is a countable thing that pods use and that machines have in limited number: a resource, a host port, the volume attachments of a driver, or
// the weight of what pods take of several GPUs. The fields of the other kinds are empty.
type quota struct {
	resource corev1.ResourceName
	port     hostPort
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

// each returns the amount for machines that do not report one: 0 for a resource, 1 for a port, and no limit for volumes and for GPUs of other kinds.
func (q quota) each() int64 {
	switch {
	case q.resource != "":
		return 0
	case q.driver != "", q.gpus.count > 0:
		return planner.Unlimited
	}
	return 1
}

// hostPort is a port of the node that a pod uses. It ignores the host IP: two pods with the same port on different addresses could share a node, but get
// two.
type hostPort struct {
	Number   int32
	Protocol corev1.Protocol
}

func compareHostPorts(a, b hostPort) int {
	return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Protocol, b.Protocol))
}

// hostPorts returns the host ports that the pod uses while it runs, without duplicates.
func hostPorts(pod *corev1.Pod) []hostPort {
	var ports []hostPort
	note := func(ctr *corev1.Container) {
		for _, p := range ctr.Ports {
			if p.HostPort > 0 {
				ports = append(ports, hostPort{p.HostPort, cmp.Or(p.Protocol, corev1.ProtocolTCP)})
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		if policy := pod.Spec.InitContainers[i].RestartPolicy; policy != nil && *policy == corev1.ContainerRestartPolicyAlways {
			note(&pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		note(&pod.Spec.Containers[i])
	}
	slices.SortFunc(ports, compareHostPorts)
	return slices.Compact(ports)
}

// taken returns what each pod of the class uses. mixed reports whether machines have MIG instances of several resources.
func (w *waitingClass) taken(mixed bool) map[quota]int64 {
	taken := map[quota]int64{}
	for name := range w.demand.requests {
		if n := valueOf(w.demand.requests, name); (isExtended(name, w.gpu) || mixed && isInstance(name)) && n > 0 {
			taken[quota{resource: name}] = n
		}
	}
	for _, port := range w.ports {
		taken[quota{port: port}] = 1
	}
	if w.volumes != nil {
		for driver, n := range w.volumes.drivers {
			taken[quota{driver: driver}] = n
		}
	}
	return taken
}

// isExtended reports whether planner.Resources has no field for the resource.
func isExtended(name, gpu corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods, gpu:
		return false
	}
	return !isSlot(gpu) || !isSlot(name) // The slots of all sizes count as replicas of a machine.
}

// quotas sets the quotas of the view: what pods use, and how much of it offerings and nodes have.
func (v *View) quotas(c *Cluster, rooms []room, waiting []*waitingClass, storage *storage) {
	mixed, orders := v.mixes(rooms), v.gpuOrders(rooms, waiting)
	asked := v.asked(waiting, mixed)
	for kind := range orders {
		asked[kind.String()] = quota{gpus: kind}
	}
	if len(asked) == 0 {
		return
	}
	var quotas []quota
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		quotas = append(quotas, asked[name])
		v.Quotas = append(v.Quotas, planner.Quota{Name: name, Each: asked[name].each()})
	}
	takes := func(w *waitingClass, class *planner.Class, taken map[quota]int64) {
		share := shareOf(nil, class.Requests.Replicas)
		if w != nil {
			taken, share = w.taken(mixed), shareOf(w.claim, class.Requests.Replicas)
		}
		class.Quotas = amountsOf(quotas, func(q quota) (int64, bool) {
			if order := orders[q.gpus]; order != nil {
				return order.takes(share), true
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
	limits := c.attachable()
	for i, o := range v.Offerings {
		kind, _ := o.gpuKind(&v.Pools[v.Snapshot.Offerings[i].Pool])
		v.Snapshot.Offerings[i].Quotas = amountsOf(quotas, func(q quota) (int64, bool) {
			if order := orders[q.gpus]; order != nil {
				return order.has(kind.count) - order.takes(shareOf(nil, o.Daemons.Replicas)), q.gpus == kind
			}
			return o.has(q, limits)
		})
	}
	for i := range rooms {
		kind, _ := rooms[i].gpuKind()
		v.Nodes[i].Quotas = amountsOf(quotas, func(q quota) (int64, bool) {
			if order := orders[q.gpus]; order != nil {
				if q.gpus != kind {
					return 0, false
				}
				return order.left(&rooms[i]), true
			}
			return rooms[i].has(q, limits, storage)
		})
	}
}

// asked returns the quotas that pending pods and reserves use, by name.
func (v *View) asked(waiting []*waitingClass, mixed bool) map[string]quota {
	asked := map[string]quota{}
	all := slices.Clone(waiting)
	for i := range v.Reserves {
		if w := v.Reserves[i].waiting; w != nil {
			all = append(all, w)
		} else if pool := &v.Pools[v.Reserves[i].Pool]; mixed && isInstance(pool.Resource()) {
			asked[string(pool.Resource())] = quota{resource: pool.Resource()}
		}
	}
	for _, w := range all {
		for q := range w.taken(mixed) {
			asked[q.String()] = q
		}
	}
	return asked
}

// amountsOf returns the amounts for which has returns true, at least 0 each.
func amountsOf(all []quota, has func(quota) (int64, bool)) []planner.Amount {
	var amounts []planner.Amount
	for i, q := range all {
		if n, ok := has(q); ok {
			amounts = append(amounts, planner.Amount{Quota: i, Count: max(0, n)})
		}
	}
	return amounts
}

// has returns the amount that a machine of the offering has of a quota. It returns false if it is the amount of each.
func (o *Offering) has(q quota, limits *attachable) (int64, bool) {
	switch {
	case isInstance(q.resource):
		return o.instancesLeft(q.resource), true
	case q.resource != "":
		n, ok := o.Type.Extended[string(q.resource)]
		return amount.Sub(n, resourceOf(o.daemons, q.resource)), ok
	case q.driver != "":
		return limits.ofType(o.Type.Name, q.driver)
	}
	return 0, slices.ContainsFunc(o.daemons, func(d *demand) bool { return slices.Contains(hostPorts(d.pod), q.port) })
}

func resourceOf(demands []*demand, name corev1.ResourceName) int64 {
	var n int64
	for _, d := range demands {
		n = amount.Add(n, valueOf(d.requests, name))
	}
	return n
}

// has returns the amount of a quota that is left on the node. It returns false if it is the amount of each.
func (r *room) has(q quota, limits *attachable, storage *storage) (int64, bool) {
	switch {
	case isInstance(q.resource):
		return r.instancesLeft(q.resource), true
	case q.resource != "":
		n, toCome := r.extended(q.resource), max(0, amount.Sub(resourceOf(r.daemons, q.resource), r.use.daemons.amounts[q.resource]))
		return amount.Sub(n, amount.Add(r.use.all.amounts[q.resource], toCome)), n > 0
	case q.driver != "":
		limit, ok := limits.of(r.nodeName, q.driver)
		if !ok && r.starting {
			limit, ok = limits.ofType(r.labels[corev1.LabelInstanceTypeStable], q.driver)
		}
		return limit - storage.attached(r.pods, q.driver), ok
	}
	return 0, r.use.ports[q.port] || slices.ContainsFunc(r.daemons, func(d *demand) bool { return slices.Contains(hostPorts(d.pod), q.port) })
}

// attachable finds the number of volumes of a driver that a machine can attach.
type attachable struct {
	index *Index
	// types has the number for an instance type, if it is known. It is the smallest that nodes of the type report, because some drivers count disks and network
	// interfaces that are already attached.
	types func() map[string]map[string]int64
}

func (c *Cluster) attachable() *attachable {
	x := c.Indexed()
	return &attachable{x, sync.OnceValue(func() map[string]map[string]int64 {
		types := map[string]map[string]int64{}
		for name, node := range x.CSINodes() {
			if s := x.site(name); s != nil && s.node.Labels[corev1.LabelInstanceTypeStable] != "" {
				for driver, limit := range attachments(node) {
					note(types, s.node.Labels[corev1.LabelInstanceTypeStable], driver, limit)
				}
			}
		}
		return types
	})}
}

// of returns the number for a node. It returns false if it is unknown.
func (a *attachable) of(node, driver string) (int64, bool) {
	if csi := a.index.CSINode(node); csi != nil {
		for name, limit := range attachments(csi) {
			if name == driver {
				return limit, true
			}
		}
	}
	return 0, false
}

func (a *attachable) ofType(name, driver string) (int64, bool) {
	limit, ok := a.types()[name][driver]
	return limit, ok
}

// attachments returns the drivers of a node that limit the number of volumes, with the limits.
func attachments(node *storagev1.CSINode) iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		for i := range node.Spec.Drivers {
			if d := &node.Spec.Drivers[i]; d.Allocatable != nil && d.Allocatable.Count != nil && !yield(d.Name, int64(*d.Allocatable.Count)) {
				return
			}
		}
	}
}

// note records a limit if it is the lowest so far.
func note(limits map[string]map[string]int64, of, driver string, limit int64) {
	if limits[of] == nil {
		limits[of] = map[string]int64{}
	}
	if known, ok := limits[of][driver]; !ok || limit < known {
		limits[of][driver] = limit
	}
}

// attached returns the number of the driver's volumes that the pods use. It counts shared volumes once.
func (s *storage) attached(pods []*corev1.Pod, driver string) int64 {
	seen := map[string]bool{}
	var n int64
	for _, pod := range pods {
		for i := range pod.Spec.Volumes {
			name, ok := claimName(pod, &pod.Spec.Volumes[i])
			claim := s.index.VolumeClaim(pod.Namespace + "/" + name)
			if !ok || claim == nil || seen[pod.Namespace+"/"+name] {
				continue
			}
			seen[pod.Namespace+"/"+name] = true
			if pv := s.index.Volume(claim.Spec.VolumeName); pv != nil && DriverOf(pv) == driver {
				n++
			}
		}
	}
	return n
}
