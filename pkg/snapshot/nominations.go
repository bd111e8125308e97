package snapshot

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
)

// The scheduler tries the node first that a pod's status nominates, and keeps its room there from others of the same priority or a lower one. So the pods that a machine
// is launched for get there, where the scheduler would spread them over all that start together.

// Nomination is a node for a pod that waits for a machine; none where Node is "".
type Nomination struct {
	Pod  *corev1.Pod
	Node string
}

// Keeping is a plan for the view in which pods that are nominated for a node stay there as far as the plan has room for them: pods of a class are alike, and change
// places.
func (v *View) Keeping(plan planner.Plan) planner.Plan {
	plan.Placements, plan.Launches, plan.Unplaced = slices.Clone(plan.Placements), slices.Clone(plan.Launches), slices.Clone(plan.Unplaced)
	class := v.classes()
	// Where the pods of each class are in the plan.
	type place struct {
		pod  *string
		node string
	}
	places := make([][]place, len(v.Classes))
	add := func(node string, pods ...*string) {
		for _, pod := range pods {
			c := class[*pod]
			places[c] = append(places[c], place{pod, node})
		}
	}
	for i := range plan.Placements {
		p := &plan.Placements[i]
		p.Pods, p.GPUs = slices.Clone(p.Pods), slices.Clone(p.GPUs)
		add(v.rooms[p.Node].nodeName, pointers(p.Pods)...)
	}
	for i := range plan.Launches {
		l := &plan.Launches[i]
		l.Pods, l.GPUs = slices.Clone(l.Pods), slices.Clone(l.GPUs)
		add("", pointers(l.Pods)...)
	}
	for i := range plan.Unplaced {
		add("", &plan.Unplaced[i].Pod)
	}
	for i := range v.Classes {
		others := slices.DeleteFunc(slices.Clone(v.Classes[i].Pods), func(pod string) bool {
			at := v.nominatedFor(pod)
			j := slices.IndexFunc(places[i], func(p place) bool { return at != "" && p.node == at })
			if j >= 0 {
				*places[i][j].pod = pod
				places[i] = slices.Delete(places[i], j, j+1)
			}
			return j >= 0
		})
		for j, p := range places[i] {
			*p.pod = others[j]
		}
	}
	for i := range plan.Placements {
		sortPods(plan.Placements[i].Pods, plan.Placements[i].GPUs)
	}
	for i := range plan.Launches {
		sortPods(plan.Launches[i].Pods, plan.Launches[i].GPUs)
	}
	slices.SortFunc(plan.Unplaced, func(a, b planner.Unplaced) int { return strings.Compare(a.Pod, b.Pod) })
	return plan
}

// classes are the classes of pods by their names.
func (v *View) classes() map[string]int {
	classes := map[string]int{}
	for i := range v.Classes {
		for _, pod := range v.Classes[i].Pods {
			classes[pod] = i
		}
	}
	return classes
}

func pointers(pods []string) []*string {
	all := make([]*string, len(pods))
	for i := range pods {
		all[i] = &pods[i]
	}
	return all
}

// sortPods sorts pods, and the GPUs that they are planned for with them.
func sortPods(pods []string, gpus []int) {
	if gpus == nil {
		slices.Sort(pods)
		return
	}
	on := map[string]int{}
	for i, pod := range pods {
		on[pod] = gpus[i]
	}
	slices.Sort(pods)
	for i, pod := range pods {
		gpus[i] = on[pod]
	}
}

// nominatedFor is the node that a pod is nominated for; "" where it runs still.
func (v *View) nominatedFor(pod string) string {
	if p := v.Pods[pod]; p.Spec.NodeName == "" {
		return p.Status.NominatedNodeName
	}
	return ""
}

// Nominations are those that a plan for the view asks for and that pods do not have: of pods that wait for machines that have Nodes and have not started. One that the
// plan has no use for is taken back: it would keep room from others. Where all that start for a pool are for alike pods none is of use.
func (v *View) Nominations(plan planner.Plan) []Nomination {
	planned, comes := map[string]*room{}, map[string][]string{}
	for _, p := range plan.Placements {
		r := &v.rooms[p.Node]
		for _, name := range p.Pods {
			planned[name] = r
		}
		if r.starting {
			comes[r.machine.Pool()] = append(comes[r.machine.Pool()], p.Pods...)
		}
	}
	for _, l := range plan.Launches {
		pool := v.Snapshot.Pools[v.Snapshot.Offerings[l.Offering].Pool].Name
		comes[pool] = append(comes[pool], l.Pods...)
	}
	classes := v.classes()
	matters := map[string]bool{}
	for pool, pods := range comes {
		matters[pool] = slices.ContainsFunc(pods, func(pod string) bool { return classes[pod] != classes[pods[0]] })
	}
	var nominations []Nomination
	for _, name := range slices.Sorted(maps.Keys(v.Pods)) {
		pod, had, node := v.Pods[name], v.nominatedFor(name), ""
		if r := planned[name]; r != nil && (r.nodeName == had || r.starting && matters[r.machine.Pool()]) {
			node = r.nodeName
		}
		if pod.Spec.NodeName == "" && node != had {
			nominations = append(nominations, Nomination{pod, node})
		}
	}
	return nominations
}

// nominating says of nodes whether pods that are nominated for them wait all the same. Of a machine where others have to end first it is the scheduler's nomination:
// such a pod preempts those, and needs no other machine.
type nominating map[string]bool

func (c *Cluster) nominating(machines []Machine) nominating {
	n := nominating{}
	for i := range c.Nodes {
		n[c.Nodes[i].Name] = false
	}
	ends := func(pod *corev1.Pod) bool { return !pod.DeletionTimestamp.IsZero() && isWorkload(pod) }
	for i := range machines {
		if m := &machines[i]; m.Node != nil {
			n[m.Node.Name] = m.Leaving() || !slices.ContainsFunc(m.Pods, ends)
		}
	}
	return n
}

// waits says whether a pod waits for a machine.
func (n nominating) waits(pod *corev1.Pod) bool {
	node := pod.Status.NominatedNodeName
	if waits, there := n[node]; node == "" || there && !waits {
		return karpenter.IsProvisionable(pod)
	}
	free := *pod // What it is nominated for is ours, or is gone.
	free.Status.NominatedNodeName = ""
	return karpenter.IsProvisionable(&free)
}
