package snapshot

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// PlannedLaunch is a group of Count equal launches.
type PlannedLaunch struct {
	// Offering is the pool, instance type, zone, capacity type and chosen labels. Alternatives are those that the pool's minValues require.
	Offering     string   `json:"offering"`
	Alternatives []string `json:"alternatives,omitempty"`
	// Pods are the pods of each machine, formatted like the annotation of a launched NodeClaim.
	Pods  string `json:"pods"`
	Count int    `json:"count"`
}

// Key returns a key that is the same for equal launches.
func (l PlannedLaunch) Key() string {
	return strings.Join(append([]string{l.Offering, l.Pods}, l.Alternatives...), "\x00")
}

// offeringKey returns a key that identifies an offering in later snapshots.
func (v *View) offeringKey(i int) string {
	o := &v.Snapshot.Offerings[i]
	key := []string{v.Snapshot.Pools[o.Pool].Name, o.InstanceType, o.Zone, o.CapacityType, o.Choice}
	for _, d := range o.Draws {
		key = append(key, v.Stocks[d.Stock].Name)
	}
	if f := v.slow[i]; f > 0 {
		key = append(key, "work "+strconv.FormatInt(int64(f), 10))
	}
	return strings.Join(key, "/")
}

// PlannedLaunches groups equal launches of a plan, in the order of the plan. at has the index of the group of each launch.
func (v *View) PlannedLaunches(plan planner.Plan) (launches []PlannedLaunch, at []int) {
	classes, known := v.ClassByPod(), map[string]int{}
	for _, l := range plan.Launches {
		p := PlannedLaunch{Offering: v.offeringKey(l.Offering), Pods: v.shapeCounts(l.Pods, classes).String(), Count: 1}
		if len(v.Snapshot.Pools[v.Snapshot.Offerings[l.Offering].Pool].MinValues) > 0 {
			for _, i := range l.Alternatives {
				p.Alternatives = append(p.Alternatives, v.offeringKey(i))
			}
		}
		i, ok := known[p.Key()]
		if !ok {
			i = len(launches)
			known[p.Key()] = i
			p.Count = 0
			launches = append(launches, p)
		}
		launches[i].Count++
		at = append(at, i)
	}
	return launches, at
}

// shapeCounts returns the number of pods of each shape in a launch or placement, without headroom.
func (v *View) shapeCounts(pods []string, classes map[string]int) counts {
	c := counts{}
	for _, pod := range pods {
		if v.Pods[pod] != nil {
			c[v.keys[classes[pod]]]++
		}
	}
	return c
}

// PlannedPods returns the annotation value with the pods for which a machine is launched.
func (v *View) PlannedPods(launch planner.Launch) string {
	if len(v.Pods) == 0 {
		return ""
	}
	return v.shapeCounts(launch.Pods, v.ClassByPod()).String()
}

// Earlier returns the plan in progress in terms of the view: for each machine that is starting, the pending pods for which it was launched, and the
// remaining launches.
func (v *View) Earlier(still []PlannedLaunch) planner.Plan {
	var earlier planner.Plan
	waiting := v.waitingByKey()
	for i := range v.rooms {
		r := &v.rooms[i]
		if !v.expectsPods(r) {
			continue
		}
		planned, there := countsOf(r.machine.Claim.Annotations[v1alpha1.PlannedPodsAnnotation]), v.shapeCountsOn(r)
		for key, n := range there {
			planned[key] -= n
		}
		if pods := waiting.take(planned, func(c *planner.Class) bool { _, ok := slices.BinarySearch(c.Nodes, i); return ok }); len(pods) > 0 {
			earlier.Placements = append(earlier.Placements, planner.Placement{Node: i, Pods: pods})
		}
	}
	if len(still) == 0 {
		return earlier
	}
	offerings := map[string]int{}
	for i := range v.Snapshot.Offerings {
		offerings[v.offeringKey(i)] = i
	}
	for _, p := range still {
		l, ok := launchOf(p, offerings)
		if !ok {
			continue
		}
		planned := countsOf(p.Pods)
		for range p.Count {
			pods := waiting.take(planned, func(c *planner.Class) bool { _, ok := slices.BinarySearch(c.Offerings, l.Offering); return ok })
			if len(pods) == 0 {
				break
			}
			l.Pods = pods
			earlier.Launches = append(earlier.Launches, l)
		}
	}
	return earlier
}

// Frozen reports for each node of the snapshot whether it has a Node, so that pods are about to be nominated for it or bound to it. A plan that continues
// an earlier one does not exchange its pods for others: two plans would promise the same place.
func (v *View) Frozen() []bool {
	frozen := make([]bool, len(v.rooms))
	for i := range v.rooms {
		frozen[i] = v.rooms[i].nodeName != ""
	}
	return frozen
}

// launchOf returns a launch without pods. It returns false if the offering no longer exists.
func launchOf(p PlannedLaunch, offerings map[string]int) (planner.Launch, bool) {
	var l planner.Launch
	var ok bool
	if l.Offering, ok = offerings[p.Offering]; !ok {
		return l, false
	}
	for _, key := range p.Alternatives {
		i, ok := offerings[key]
		if !ok {
			return l, false
		}
		l.Alternatives = append(l.Alternatives, i)
	}
	return l, true
}

// expectsPods reports whether a node still waits for pods that it was planned for.
func (v *View) expectsPods(r *room) bool {
	if r.machine == nil {
		return false
	}
	initialized := facts.Condition(r.machine.Claim.Status.Conditions, karpv1.ConditionTypeInitialized)
	return r.starting || initialized.IsTrue() && v.Now().Before(initialized.LastTransitionTime.Add(records.SettleTime))
}

// shapeCountsOn returns the number of pods of each shape on a node, without those of DaemonSets.
func (v *View) shapeCountsOn(r *room) counts {
	c := counts{}
	for _, pod := range r.pods {
		if facts.IsWorkload(pod) && claims.RequestsGPU(&pod.Spec) {
			c[v.keyOf(pod)]++
		}
	}
	return c
}

// Replanned returns the NodeClaims of starting machines whose planned pods differ from their annotation, with the new annotation.
func (v *View) Replanned(plan planner.Plan) map[*karpv1.NodeClaim]string {
	changed := map[*karpv1.NodeClaim]string{}
	classes := v.ClassByPod()
	held := map[int][]string{}
	for _, p := range plan.Held {
		held[p.Node] = append(held[p.Node], p.Pods...)
	}
	for _, p := range plan.Placements {
		r := &v.rooms[p.Node]
		if !v.expectsPods(r) {
			continue
		}
		planned := v.shapeCounts(slices.Concat(p.Pods, held[p.Node]), classes)
		for key, n := range v.shapeCountsOn(r) {
			planned[key] += n
		}
		if text := planned.String(); text != r.machine.Claim.Annotations[v1alpha1.PlannedPodsAnnotation] {
			changed[r.machine.Claim] = text
		}
	}
	return changed
}

// waitingPods has the pending pods by class, and the classes by the key of their shape.
type waitingPods struct {
	view *View
	of   map[string][]int
	pods [][]string
}

func (v *View) waitingByKey() waitingPods {
	w := waitingPods{v, map[string][]int{}, make([][]string, len(v.Classes))}
	for i := range v.Classes {
		w.of[v.keys[i]] = append(w.of[v.keys[i]], i)
		w.pods[i] = v.Classes[i].Pods
	}
	return w
}

// take removes and returns as many pods as available for the planned counts, from classes that are admitted.
func (w waitingPods) take(planned counts, admitted func(*planner.Class) bool) []string {
	var taken []string
	for _, key := range slices.Sorted(maps.Keys(planned)) {
		n := planned[key]
		for _, i := range w.of[key] {
			if n <= 0 {
				break
			}
			if len(w.pods[i]) > 0 && admitted(&w.view.Classes[i]) {
				some := min(n, len(w.pods[i]))
				taken = append(taken, w.pods[i][:some]...)
				w.pods[i], n = w.pods[i][some:], n-some
			}
		}
	}
	slices.Sort(taken)
	return taken
}
