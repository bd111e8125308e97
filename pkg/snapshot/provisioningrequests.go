package snapshot

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

const (
	// MaxRequested is the largest number of pods of all ProvisioningRequests in one plan.
	MaxRequested = 10_000
	// Booked is how long the room of a provisioned request is kept for its pods, as in Cluster Autoscaler.
	Booked = 10 * time.Minute
)

// requestedClasses returns the classes of the pods that stand for ProvisioningRequests, and sets v.Requested.
func (v *View) requestedClasses(c *facts.Cluster, shapes *shapes, storage *records.Storage) []*waitingClass {
	v.Requested = nil
	var classes []*waitingClass
	consumers, room := c.Consumers(), int64(MaxRequested)
	for i := range c.Requests {
		r := &Requested{Request: &c.Requests[i]}
		if r.Over() {
			continue
		}
		v.Requested = append(v.Requested, r)
		classes = append(classes, r.pendingClasses(c, shapes, storage, consumers[r.Namespace+"/"+r.Name], room)...)
		room -= int64(len(r.Pods))
	}
	return classes
}

// pendingClasses returns the classes of the pods that stand for a request, and sets everything that is known of it. room is how many pods the plan may still
// have. Hundreds of requests for thousands of pods may wait, so pods are made only if there is room for all.
func (r *Requested) pendingClasses(c *facts.Cluster, shapes *shapes, storage *records.Storage, consumers []*corev1.Pod, room int64) []*waitingClass {
	asks := make([]*shape, len(r.Sets))
	for i := range r.Sets {
		r.Wants += int64(r.Sets[i].Count)
		if r.Sets[i].Missing {
			continue
		}
		pod := facts.VirtualPod(r.Request, i, 0)
		c.BeginVisit("Pod", pod)
		asks[i] = shapes.shapeOf(pod)
		if !claims.RequestsGPU(&pod.Spec) && r.NoGPU == "" {
			r.NoGPU = r.Sets[i].TemplateName
		}
	}
	taken := r.assignConsumers(asks, shapes, consumers)
	over := r.Expired(c.Now) || r.Is(provreq.Provisioned) && !c.Now.Before(r.Since(provreq.Provisioned).Add(Booked))
	if r.NoGPU != "" || slices.Contains(asks, nil) || r.Wants > MaxRequested || over {
		return nil
	}
	if r.Later = r.Wants-r.Taken > room; r.Later {
		return nil
	}
	var classes []*waitingClass
	for i := range r.Sets {
		if r.Sets[i].Count <= taken[i] {
			continue
		}
		w := &waitingClass{shape: asks[i], request: r}
		for n := taken[i]; n < r.Sets[i].Count; n++ {
			pod := facts.VirtualPod(r.Request, i, int(n))
			w.pods, r.Pods = append(w.pods, pod), append(r.Pods, facts.PodName(pod))
		}
		w.volumes, w.matched = storage.Of(w.pods[0]), shapes.selections.matching(w.pods[0])
		classes = append(classes, w)
	}
	return classes
}

// assignConsumers returns how many pods of each set exist. A pod takes the room of a pod with the same requests if there is any left, or else of any pod.
func (r *Requested) assignConsumers(asks []*shape, shapes *shapes, consumers []*corev1.Pod) []int32 {
	taken := make([]int32, len(asks))
	slices.SortFunc(consumers, facts.ComparePods)
	equal := func(pod *corev1.Pod, s *shape) bool {
		is := shapes.sketchOf(pod)
		return s != nil && is.gpu == s.gpu && is.gpuMemory == s.gpuMemory && facts.RequestsOf(pod, is.gpu) == facts.RequestsOf(s.pod(), s.gpu)
	}
	for _, same := range []bool{true, false} {
		var others []*corev1.Pod
		for _, pod := range consumers {
			i := 0
			for i < len(asks) && (taken[i] == r.Sets[i].Count || same && !equal(pod, asks[i])) {
				i++
			}
			if i == len(asks) {
				others = append(others, pod)
				continue
			}
			taken[i]++
			r.Taken++
		}
		consumers = others
	}
	return taken
}

// adaptToRequest adapts the class of pods that stand for a ProvisioningRequest. a is their admission.
func (v *View) adaptToRequest(class *planner.Class, w *waitingClass, a *admission) {
	r := w.request
	r.classes, r.launchable = append(r.classes, len(v.Classes)), append(r.launchable, class.Offerings)
	if !a.isOurs(w) {
		class.Blocked = &planner.Refusal{Reason: planner.ReasonLeftToKarpenter, Message: fmt.Sprintf(
			"only NodePool %s, which Karpenter serves, admits its pods: use a PodTemplate that a NodePool of Karve's admits", a.karpenterPool)}
	}
	if r.Class != provreq.CheckCapacity {
		return
	}
	class.Offerings, class.NoOffering = nil, &planner.Refusal{Reason: planner.ReasonNoPool, Message: "there is no free room for it on the nodes that have started"}
	class.Nodes = slices.DeleteFunc(class.Nodes, v.Starting)
	if !r.Is(provreq.Provisioned) {
		class.Priority = headroomPriority // It looks for room that nobody else needs.
	}
}

// groupRequests adds a group for each request that is not provisioned: its pods have room together, or not at all. Once it is booked, each place is kept as long
// as it exists.
func (v *View) groupRequests() {
	for _, r := range v.Requested {
		if len(r.classes) > 0 && !r.Is(provreq.Provisioned) {
			v.Groups = append(v.Groups, planner.Group{Name: r.String(), Classes: r.classes, Min: int64(len(r.Pods))})
		}
	}
}

// Alone returns the snapshot with the pods of a request only, as if there were no nodes and no refusals of the cloud. Limits of NodePools apply to it alone if
// limited is true, and do not apply if it is false.
func (v *View) Alone(r *Requested, limited bool) planner.Snapshot {
	s := v.Snapshot
	s.Nodes, s.Rules, s.Groups, s.Classes = nil, nil, nil, nil
	s.Pools, s.Offerings = slices.Clone(s.Pools), slices.Clone(s.Offerings)
	for i := range s.Pools {
		p := &s.Pools[i]
		p.Remaining, p.Limited, p.Closed, p.MinValues = planner.NoLimits, nil, nil, nil
		if limited {
			p.Remaining = v.Pools[i].remaining(planner.Physical{})
		}
	}
	for i := range s.Offerings {
		s.Offerings[i].Unavailable = nil
	}
	for i, at := range r.classes {
		class := v.Classes[at]
		class.Nodes, class.Preferences, class.Offerings, class.NoOffering = nil, nil, r.launchable[i], nil
		class.Priority = max(class.Priority, math.MinInt32+1)
		s.Classes = append(s.Classes, class)
	}
	return s
}

// LimitedPools returns the names of the NodePools with limits whose machines admit pods of a request.
func (v *View) LimitedPools(r *Requested) []string {
	names := map[string]bool{}
	for _, offerings := range r.launchable {
		for _, o := range offerings {
			if np := v.Pools[v.Snapshot.Offerings[o].Pool].NodePool; len(np.Spec.Limits) > 0 {
				names[np.Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// MayChange reports whether a place may appear for a request that has none, although no machine that Karve knows admits it: a NodePool is not ready, so that not
// all machines are known, or nodes of others admit its pods.
func (v *View) MayChange(r *Requested) bool {
	if slices.ContainsFunc(v.Pools, func(p Pool) bool { return len(p.Problems) > 0 }) {
		return true
	}
	return slices.ContainsFunc(r.classes, func(c int) bool {
		return slices.ContainsFunc(v.Classes[c].Nodes, func(node int) bool { return v.MachineOn(node) == nil })
	})
}
