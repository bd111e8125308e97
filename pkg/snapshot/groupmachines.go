package snapshot

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Machines of a group accept pods together. If each opened by itself, the pods that come first would wait for the others, and pods of no group would take the room of those that are
// still to come.

// GroupPatience is how long a machine that has registered waits for the other machines of a group. Karve gives up a launch that the cloud refuses within two minutes, and tries the same type
// again after three; a machine starts within five.
const GroupPatience = 15 * time.Minute

// GroupPlans knows which groups have a place for enough of their pods on machines that exist. It is safe for concurrent use.
type GroupPlans struct {
	mu    sync.Mutex
	plans map[facts.GroupKey]groupPlan
}

// groupPlan is what a plan has for a group.
type groupPlan struct {
	whole bool
	// on has the names of the NodeClaims on whose machines the pods of the group have a place.
	on []string
}

// Note records a plan that is being carried out.
func (g *GroupPlans) Note(view *View, plan planner.Plan) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.plans == nil {
		g.plans = map[facts.GroupKey]groupPlan{}
	}
	maps.DeleteFunc(g.plans, func(key facts.GroupKey, _ groupPlan) bool {
		for range view.cluster.Indexed().Members(key) {
			return false
		}
		return true
	})
	for _, pod := range view.Pods { // Groups of which enough pods have a node are not in the snapshot, and neither are those that are refused.
		if m, is := view.cluster.Membership(pod); is {
			of := view.groupOf(pod)
			g.plans[m.Group] = groupPlan{whole: of == nil || of.refusal() == nil}
		}
	}
	if len(view.Groups) == 0 {
		return
	}
	placed, launching := map[string]int{}, map[string]bool{}
	for _, p := range plan.Placements {
		for _, pod := range p.Pods {
			placed[pod] = p.Node
		}
	}
	for _, l := range plan.Launches {
		for _, pod := range l.Pods {
			launching[pod] = true
		}
	}
	for _, group := range view.Groups {
		n, whole, on := int64(0), true, map[string]bool{}
		var key facts.GroupKey
		for _, c := range group.Classes {
			for _, name := range view.Classes[c].Pods {
				if m, is := view.cluster.Membership(view.Pods[name]); is {
					key = m.Group
				}
				whole = whole && !launching[name]
				node, ok := placed[name]
				if !ok {
					continue
				}
				n++
				if m := view.MachineOn(node); m != nil {
					on[m.Claim.Name] = true
				}
			}
		}
		g.plans[key] = groupPlan{whole && n >= group.Min, slices.Sorted(maps.Keys(on))}
	}
}

func (g *GroupPlans) planFor(group facts.GroupKey) groupPlan {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.plans[group]
}

// GroupMachines knows which machines start for groups of pending pods.
type GroupMachines struct {
	// groups has the groups of pending pods by the key of their shape.
	groups map[string]facts.GroupKey
	// unready has the name of a machine that starts for a group and is not ready with its replicas yet.
	unready map[facts.GroupKey]string
	// exposing has the names of the NodeClaims whose machines have their replicas, are ready and stay.
	exposing map[string]bool
	// closed has those of them that accept no pods yet.
	closed map[facts.GroupKey][]*records.Machine
}

// NewGroupMachines returns what is known about the machines of groups in a cluster.
func NewGroupMachines(c *facts.Cluster) *GroupMachines {
	g := &GroupMachines{map[string]facts.GroupKey{}, map[facts.GroupKey]string{}, map[string]bool{}, map[facts.GroupKey][]*records.Machine{}}
	shapes := newShapes(&facts.Cluster{})
	for _, pod := range c.Indexed().Pending() {
		if m, is := c.Membership(pod); is && pod.Spec.NodeName == "" && pod.DeletionTimestamp.IsZero() {
			g.groups[shapes.shapeOf(pod).short] = m.Group
		}
	}
	if len(g.groups) == 0 {
		return g
	}
	machines := records.Machines(c)
	for i := range machines {
		m := &machines[i]
		if m.Leaving() || m.Broken(c.Now, c.ReplicasTimeout) {
			continue
		}
		exposes := (m.Started() || m.State() == lifecycle.Initializing) && !records.NotReady(m.Node)
		if exposes {
			g.exposing[m.Claim.Name] = true
		}
		if m.Started() { // Its pods have come, or need other machines.
			continue
		}
		for _, group := range g.groupsOf(m) {
			switch {
			case !exposes:
				g.unready[group] = m.Claim.Name
			case m.AwaitsReplicas():
				g.closed[group] = append(g.closed[group], m)
			}
		}
	}
	return g
}

// groupsOf returns the groups with pending pods for which a machine was launched.
func (g *GroupMachines) groupsOf(m *records.Machine) []facts.GroupKey {
	found := map[facts.GroupKey]bool{}
	for key := range countsOf(m.Claim.Annotations[v1alpha1.PlannedPodsAnnotation]) {
		if group, ok := g.groups[key]; ok {
			found[group] = true
		}
	}
	return slices.SortedFunc(maps.Keys(found), facts.GroupKey.Compare)
}

// Together returns the other machines that accept pods together with a machine which waits for nothing: they have their replicas, are of the same groups, and wait for nothing either.
func (g *GroupMachines) Together(m *records.Machine, plans *GroupPlans) []*records.Machine {
	var others []*records.Machine
	for _, group := range g.groupsOf(m) {
		for _, o := range g.closed[group] {
			if why, _ := g.Awaits(o, plans); why == "" && o.Claim.UID != m.Claim.UID && !slices.Contains(others, o) {
				others = append(others, o)
			}
		}
	}
	return others
}

// Awaits returns for what a machine that has its replicas waits before it accepts pods, or "" if it waits for nothing. alone reports that it was launched for nothing else.
func (g *GroupMachines) Awaits(m *records.Machine, plans *GroupPlans) (why string, alone bool) {
	var whys []string
	for _, group := range g.groupsOf(m) {
		unready, plan := g.unready[group], plans.planFor(group)
		// A machine of the plan may have failed since.
		lost := func(name string) bool { return name != m.Claim.Name && !g.exposing[name] }
		switch {
		case unready != "":
			whys = append(whys, group.Title()+" waits for NodeClaim "+unready)
		case !plan.whole || slices.ContainsFunc(plan.on, lost):
			whys = append(whys, group.Title()+" has no place for all of the pods that it needs at once")
		}
	}
	alone = true
	for key := range countsOf(m.Claim.Annotations[v1alpha1.PlannedPodsAnnotation]) {
		if _, grouped := g.groups[key]; !grouped {
			alone = false
		}
	}
	return strings.Join(whys, "; "), alone
}
