package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// group is a group of pods, as far as it matters for a plan.
type group struct {
	key  facts.GroupKey
	name string
	// by is how a pod names the group.
	by string
	// missing reports that the group is an object that does not exist.
	missing bool
	// whole reports that the pods are only disrupted together.
	whole bool
	// min is how many pods are needed at once, and topology the label of which all have the same value, or "".
	min      int64
	topology string
	created  time.Time
	// bound are the members that have a node and keep it, and ended how many need none any more. open are those that wait or will soon, of which gated may not be bound yet.
	bound []*corev1.Pod
	ended int64
	open  []*corev1.Pod
	gated int64
	// terms is the work of the group's classes in a plan. Its pods are planned for in parts, and blocked, if there is too much.
	terms int
	// differ reports whether pods state different minimums.
	differ bool
}

// placesNeeded returns how many more members need a place at once. It is 0 if enough have one.
func (g *group) placesNeeded() int64 { return max(0, g.min-int64(len(g.bound))-g.ended) }

// isTooLarge reports whether one plan has no time for all pods of the group.
func (g *group) isTooLarge() bool { return g.terms > maxTerms }

// refusal returns why nothing is planned for the group, or nil.
func (g *group) refusal() *planner.Refusal {
	exist := int64(len(g.bound)) + g.ended + int64(len(g.open))
	switch {
	case g.missing:
		return &planner.Refusal{Reason: planner.ReasonGroup, Message: fmt.Sprintf("%s of %s does not exist, and the pod names it in %s: create it, or remove that from the pod", g.name, g.key.API, g.by)}
	case g.isTooLarge():
		return &planner.Refusal{Reason: planner.ReasonGroup, Message: fmt.Sprintf("%s has more different pods and rules (affinity, anti-affinity, topology spread) than one plan has time for (%d): use fewer", g.name, maxTerms)}
	case exist < g.min:
		message := fmt.Sprintf("%s needs %d pods at once, %d exist", g.name, g.min, exist)
		if g.gated > 0 {
			message += fmt.Sprintf(", and %d more have scheduling gates", g.gated)
		}
		return &planner.Refusal{Reason: planner.ReasonGroup, Message: message + ": create the others, or lower its minimum"}
	}
	return nil
}

// grouping finds the groups of pods. moving and settled are as in [View.fill].
type grouping struct {
	cluster         *facts.Cluster
	nominating      *nominating
	moving, settled moving
	// known has nil for groups that do not affect a plan.
	known map[facts.GroupKey]*group
}

func newGrouping(c *facts.Cluster, nominating *nominating, moving, settled moving) *grouping {
	return &grouping{c, nominating, moving, settled, map[facts.GroupKey]*group{}}
}

// groupOf returns the group of a pod, or nil if it is planned alone.
func (g *grouping) groupOf(pod *corev1.Pod) *group {
	m, is := g.cluster.Membership(pod)
	if !is {
		return nil
	}
	found, known := g.known[m.Group]
	if !known {
		found = g.newGroup(m)
		g.known[m.Group] = found
	}
	return found
}

// newGroup returns a group with its members, or nil if it does not affect a plan.
func (g *grouping) newGroup(m facts.Membership) *group {
	made := &group{key: m.Group, by: m.By, name: g.nameOf(m.Group)}
	if m.Group.API.HasObjects() {
		object, exists := g.cluster.PodGroups.All[m.Group]
		made.missing, made.min, made.topology, made.created, made.whole = !exists, object.Min, object.Topology, object.Created, object.Whole
	}
	for pod := range g.cluster.Indexed().Members(m.Group) {
		g.addMember(made, pod)
	}
	if made.min <= 1 && made.topology == "" && !made.missing {
		return nil
	}
	slices.SortFunc(made.bound, facts.ComparePods)
	slices.SortFunc(made.open, facts.ComparePods)
	return made
}

// addMember adds a member to a group.
func (g *grouping) addMember(of *group, pod *corev1.Pod) {
	if !of.key.API.HasObjects() {
		if m, err := facts.MembershipOf(pod); err == nil {
			of.differ = of.differ || of.min > 0 && m.Min != of.min
			of.min = max(of.min, m.Min)
		}
		if t := pod.CreationTimestamp.Time; of.created.IsZero() || t.Before(of.created) {
			of.created = t
		}
	}
	switch {
	case pod.Status.Phase == corev1.PodSucceeded:
		if !of.key.API.HasObjects() { // The total counts them. Schedulers count only what runs.
			of.ended++
		}
	case !pod.DeletionTimestamp.IsZero() && !g.moving[pod]:
	case g.moving[pod]:
		of.open = append(of.open, pod)
	case pod.Spec.NodeName != "":
		of.bound = append(of.bound, pod)
	case facts.IsGated(pod):
		of.gated++
	default:
		of.open = append(of.open, pod)
	}
}

// nameOf returns the name of a group for people. It has the API if a group of another API has the same name.
func (g *grouping) nameOf(key facts.GroupKey) string {
	for _, api := range facts.PodGroupAPIs() {
		other := facts.GroupKey{API: api, Namespace: key.Namespace, Name: key.Name}
		if _, exists := g.cluster.PodGroups.All[other]; exists && api != key.API && key.API.HasObjects() {
			return fmt.Sprintf("%s (%s)", key.Title(), key.API)
		}
	}
	return key.Title()
}

// plannedWith returns the group with which a pod is planned for, or nil if it is planned alone: enough other members have a place, or it runs.
func (g *grouping) plannedWith(pod *corev1.Pod) *group {
	m, is := g.cluster.Membership(pod)
	if !is || g.settled[pod] {
		return nil
	}
	of := g.known[m.Group]
	if of == nil || !of.missing && of.placesNeeded() == 0 || of.missing && g.moving[pod] {
		return nil
	}
	return of
}

// withWaitingMembers adds the other waiting pods of groups of which some wait for a machine. Schedulers hold members back without a condition, or say of those
// that fit alone that they are schedulable.
func (g *grouping) withWaitingMembers(asking []*corev1.Pod) []*corev1.Pod {
	has, done := make(map[*corev1.Pod]bool, len(asking)), map[*group]bool{}
	for _, pod := range asking {
		has[pod] = true
		g.groupOf(pod)
	}
	add := func(of *group) {
		if done[of] {
			return
		}
		done[of] = true
		for _, pod := range of.open {
			if !has[pod] && claims.RequestsGPU(&pod.Spec) && !karpenter.IsDaemon(pod) && (pod.Status.NominatedNodeName == "" || g.nominating.isFreeToPlan(pod.Status.NominatedNodeName)) {
				has[pod] = true
				asking = append(asking, pod)
			}
		}
	}
	for _, pod := range slices.Clone(asking) {
		if of := g.plannedWith(pod); of != nil && !of.missing {
			add(of)
		}
	}
	for _, object := range g.cluster.PodGroups.All {
		if !object.Unschedulable {
			continue
		}
		for pod := range g.cluster.Indexed().Members(object.Key) {
			if g.groupOf(pod); g.plannedWith(pod) != nil {
				add(g.plannedWith(pod))
			}
			break // All have the same group.
		}
	}
	return asking
}

// groupKey identifies the group of a class.
type groupKey struct {
	group facts.GroupKey
	// alone reports that the pods are placed one by one, and share only the group's topology.
	alone bool
}

// groupKeyOf returns the group of a pod, and what identifies it in the key of the pod's class.
func (g *grouping) groupKeyOf(pod *corev1.Pod) (*group, groupKey) {
	of := g.groupOf(pod)
	if of == nil {
		return nil, groupKey{}
	}
	alone := g.plannedWith(pod) == nil
	if alone && of.topology == "" {
		return nil, groupKey{}
	}
	return of, groupKey{of.key, alone}
}

func compareGroupKeys(a, b groupKey) int {
	return cmp.Or(a.group.Compare(b.group), cmp.Compare(asInt(a.alone), asInt(b.alone)))
}
