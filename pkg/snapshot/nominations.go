package snapshot

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// The scheduler tries the node in status.nominatedNodeName first, and reserves room there against pods of the same or a lower priority. So pods get the
// machine that was launched for them. Without nominations, the scheduler would spread them over all machines that start together.

// Nomination is the node for a pending pod. If Node is "", the nomination is to be removed.
type Nomination struct {
	Pod  *corev1.Pod
	Node string
}

// Waiting returns the pending pods of the view, sorted by name. Its other pods run on machines that are leaving, or do not exist.
func (v *View) Waiting() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, name := range slices.Sorted(maps.Keys(v.Pods)) {
		if pod := v.Pods[name]; pod.Spec.NodeName == "" && !facts.IsVirtual(pod) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Without returns the view as if some of its pending pods did not exist, and neither did the pending pods that have to be placed together with them.
func (v *View) Without(pods sets.Set[types.UID]) View {
	w := *v
	w.Classes, w.Pods = slices.Clone(v.Classes), maps.Clone(v.Pods)
	pods = v.withGroups(pods)
	out := func(name string) bool { pod := v.Pods[name]; return pod != nil && pods.Has(pod.UID) }
	for i := range w.Classes {
		w.Classes[i].Pods = slices.DeleteFunc(slices.Clone(w.Classes[i].Pods), out)
	}
	maps.DeleteFunc(w.Pods, func(name string, _ *corev1.Pod) bool { return out(name) })
	return w
}

// seat is a place that a plan has for a pod of a class. The node is "" if it is still to be launched, or if the plan leaves the pod out.
type seat struct {
	pod  *string
	node string
}

// Keeping swaps equal pods in a plan so that nominated pods stay on their nodes, as far as the plan has room for their class there.
func (v *View) Keeping(plan planner.Plan) planner.Plan {
	if !slices.ContainsFunc(v.Waiting(), func(pod *corev1.Pod) bool { return pod.Status.NominatedNodeName != "" }) {
		return plan
	}
	class, seats := v.ClassByPod(), make([][]seat, len(v.Classes))
	add := func(pod *string, node string) { seats[class[*pod]] = append(seats[class[*pod]], seat{pod, node}) }
	own := func(pods []string, node string) []string {
		pods = slices.Clone(pods)
		for i := range pods {
			add(&pods[i], node)
		}
		return pods
	}
	plan.Placements, plan.Launches, plan.Unplaced = slices.Clone(plan.Placements), slices.Clone(plan.Launches), slices.Clone(plan.Unplaced)
	for i := range plan.Placements {
		p := &plan.Placements[i]
		p.Pods, p.GPUs = own(p.Pods, v.rooms[p.Node].nodeName), slices.Clone(p.GPUs)
	}
	for i := range plan.Launches {
		l := &plan.Launches[i]
		l.Pods, l.GPUs = own(l.Pods, ""), slices.Clone(l.GPUs)
	}
	for i := range plan.Unplaced {
		add(&plan.Unplaced[i].Pod, "")
	}
	for i := range seats {
		v.assignSeats(v.Classes[i].Pods, seats[i])
	}
	for _, p := range plan.Placements {
		sortPods(p.Pods, p.GPUs)
	}
	for _, l := range plan.Launches {
		sortPods(l.Pods, l.GPUs)
	}
	slices.SortFunc(plan.Unplaced, func(a, b planner.Unplaced) int { return strings.Compare(a.Pod, b.Pod) })
	return plan
}

// assignSeats assigns the pods of a class to its seats. Pods that are nominated for a node get the seats there first.
func (v *View) assignSeats(pods []string, seats []seat) {
	free, taken := map[string][]*string{}, map[*string]bool{}
	for _, p := range seats {
		free[p.node] = append(free[p.node], p.pod)
	}
	var others []string
	for _, pod := range pods {
		node := v.nominatedFor(pod)
		if node == "" || len(free[node]) == 0 {
			others = append(others, pod)
			continue
		}
		*free[node][0], taken[free[node][0]] = pod, true
		free[node] = free[node][1:]
	}
	for _, p := range seats {
		if !taken[p.pod] {
			*p.pod, others = others[0], others[1:]
		}
	}
}

// sortPods sorts pods, and keeps the list of their GPUs in the same order.
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

// nominatedFor returns the node for which a pending pod is nominated, or "" for a running pod.
func (v *View) nominatedFor(pod string) string {
	if p := v.Pods[pod]; p.Spec.NodeName == "" {
		return p.Status.NominatedNodeName
	}
	return ""
}

// Withdrawn returns the nominations that a plan does not use. They have to be removed, because they reserve room.
func (v *View) Withdrawn(plan planner.Plan) []Nomination {
	planned := map[string]string{}
	for _, p := range plan.Placements {
		for _, name := range p.Pods {
			planned[name] = v.rooms[p.Node].nodeName
		}
	}
	var nominations []Nomination
	for _, pod := range v.Waiting() {
		if node := pod.Status.NominatedNodeName; node != "" && planned[facts.PodName(pod)] != node {
			nominations = append(nominations, Nomination{pod, ""})
		}
	}
	for _, pod := range v.droppedPods() {
		nominations = append(nominations, Nomination{pod, ""})
	}
	return nominations
}
