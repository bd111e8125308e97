// Package snapshot translates facts and records into the plain values of a planner.Snapshot: pools with their offerings, rooms on nodes, classes of pods, and
// the rules between them. It has no client, no clock and no log.
package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Build returns the view of a cluster.
func Build(c *facts.Cluster) View {
	v := newView(c)
	v.fill(nil, nil)
	return v
}

// newView returns a view without a snapshot.
func newView(c *facts.Cluster) View {
	if c.Index == nil { // All readers share one index.
		indexed := *c
		indexed.Index = c.Indexed()
		c = &indexed
	}
	v := View{
		Pools: Pools(c), Machines: records.Machines(c), canaries: records.Canaries(c), cluster: c,
		broken: func(m *records.Machine) bool { return m.Broken(c.Now, c.ReplicasTimeout) },
	}
	v.shareGPUs()
	return v
}

// fill sets the snapshot of a view. If going is not nil, the snapshot is what remains without those machines, and it includes no machines that are
// still to start. settled pods stay unless they are moved; fill returns their classes. Pods that Karve does not serve have none.
func (v *View) fill(going []string, settled moving) map[*corev1.Pod]int {
	c, asIs := v.cluster, going != nil
	v.Pods = map[string]*corev1.Pod{}
	first := v.offer(c)
	rooms := roomsOf(c, v.Machines)
	if asIs {
		rooms = slices.DeleteFunc(rooms, func(r room) bool { return r.starting })
		v.closeAll()
	}
	v.Nodes = slices.Grow(v.Nodes, len(rooms))
	for i := range rooms {
		v.Nodes = append(v.Nodes, rooms[i].node)
	}
	v.rooms = rooms
	shapes, storage := newShapes(c), records.StorageOf(c)
	others := newShapes(c) // The selections of the shapes are fixed once pods have been looked up with them.
	v.keyOf = func(pod *corev1.Pod) string { return others.shapeOf(pod).short }
	moving := movingOf(v.Machines, func(m *records.Machine) bool { return !asIs || m.Lost() || slices.Contains(going, m.Claim.Name) })
	running := newRunning(c, shapes, moving) // Before the classes, because they depend on which terms of running pods match.
	admissions := &admissions{view: v, rooms: rooms, first: first, karpenterPools: sync.OnceValue(func() []karpenterPool { return karpenterPoolsOf(c) }), known: map[string]*admission{}}
	mismatches := v.newMismatches()
	var waiting []*waitingClass
	classes := map[*corev1.Pod]int{}
	asked := maps.Clone(moving)
	maps.Copy(asked, settled)
	groups := newGrouping(c, newNominating(c, v.Machines), moving, settled)
	planned, later := waitingClasses(c, shapes, storage, groups, asked, v.isStarting())
	v.grouping = groups
	planned = append(planned, v.requestedClasses(c, shapes, storage)...)
	v.Postponed, v.shapeOf = later, shapes.sketchOf
	asking := bufferShapes(c, shapes)
	for _, w := range planned {
		asking = append(asking, w.shape)
	}
	v.addDepths(asking)
	v.setDepths(asking)
	for i := range v.Pools {
		v.Snapshot.Pools[i].MinValues = v.minValues(&v.Pools[i])
	}
	for _, w := range planned {
		c.BeginVisit("Pod", w.pod())
		a := admissions.ofClass(w)
		if w.request == nil && !a.isOurs(w) {
			v.leaveToKarpenter(w.pods, a.karpenterPool)
			continue
		}
		class := v.newClass(w, a, mismatches)
		for _, pod := range w.pods {
			if settled[pod] {
				classes[pod] = len(v.Classes)
				continue
			}
			class.Pods = append(class.Pods, facts.PodName(pod))
			v.Pods[facts.PodName(pod)] = pod
		}
		v.Classes, v.shallow = append(v.Classes, class), append(v.shallow, a.shallow)
		v.keys = append(v.keys, w.short)
		waiting = append(waiting, w)
	}
	c.EndVisit()
	v.addGroups(waiting)
	v.groupRequests()
	rules := v.newRules(rooms, running, waiting)
	for i := range waiting {
		c.BeginVisit("Pod", waiting[i].pod())
		rules.placeClass(i)
	}
	c.EndVisit()
	if !asIs {
		v.Reserves = append(v.classReserves(c, first), v.bufferReserves(c, shapes, admissions, mismatches)...)
	}
	v.addQuotas(c, rooms, waiting, storage)
	v.limitProbes()
	v.priceWork(waiting)
	return classes
}

// newClass returns the class of waiting pods, without the pods.
func (v *View) newClass(w *waitingClass, a *admission, mismatches *mismatches) planner.Class {
	class := planner.Class{
		Requests: facts.RequestsOf(w.pod(), w.gpu), Offerings: slices.Clone(a.offerings), Nodes: slices.Clone(a.nodes), Blocked: a.blockedRefusal(w),
		NoOffering: a.noOfferingRefusal(), GPUMemoryBytes: w.gpuMemory, Priority: schedulinghelper.PodPriority(w.pod()),
	}
	if w.expendable {
		class.Offerings, class.NoOffering = nil, &planner.Refusal{Reason: planner.ReasonPriority, Message: fmt.Sprintf(
			"no machine is launched for its priority %d, which is below settings.priorityCutoff %d: raise its priority, or wait for free room", class.Priority, *v.cluster.PriorityCutoff)}
	}
	v.awaitCorrection(&class, a, mismatches.forClass(w, a))
	if class.Blocked == nil && w.group != nil && !w.alone {
		class.Blocked = w.group.refusal()
	}
	if w.request != nil {
		v.adaptToRequest(&class, w, a)
	}
	return class
}

// leaveToKarpenter records pods that only a NodePool of Karpenter's serves.
func (v *View) leaveToKarpenter(pods []*corev1.Pod, pool string) {
	v.leftPods = append(v.leftPods, pods...)
	if v.leftTo == nil {
		v.leftTo = map[*corev1.Pod]string{}
	}
	for _, pod := range pods {
		v.leftTo[pod] = pool
	}
}

// closeAll makes all pools launch nothing.
func (v *View) closeAll() {
	for i := range v.Snapshot.Pools {
		v.Snapshot.Pools[i].Closed = &planner.Refusal{Reason: planner.ReasonPoolClosed, Message: "there is no room on the machines that have started"}
	}
}
