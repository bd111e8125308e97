package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// maxTerms bounds the number of terms (affinity, anti-affinity, topology spread, preferred node affinity) of the pending classes in one plan. Long selectors
// count too: see [facts.LoadOf]. Selectors of ResourceClaims count as several terms, once for all classes with the same selector. It allows a thousand classes
// with three terms each, for which reading and planning take less than twice the plan budget. The other classes wait for the next round.
const maxTerms = 3_000

// waitingPod is a pod that needs a place, with its shape.
type waitingPod struct {
	pod   *corev1.Pod
	shape *shape
}

// queuedClass has the pending pods of a class with terms in one namespace, or those of a group.
type queuedClass struct {
	key      string
	pods     []waitingPod
	shapes   map[*shape]bool
	group    *group
	place    int64
	priority int32
	since    time.Time
}

// planWork returns the work of planning for the class, in terms, without that of the selectors in seen. Each class of a group counts, because groups are
// different even if their pods are equal.
func (t *queuedClass) planWork(seen map[string]bool) int {
	n, own := 0, map[string]bool{}
	for s := range t.shapes {
		n += s.load
		for _, selector := range s.selectors() {
			if !seen[selector] && !own[selector] {
				own[selector] = true
				n += claims.Work(selector)
			}
		}
		if t.group != nil {
			n++
		}
	}
	return n
}

func (t *queuedClass) markSeen(seen map[string]bool) {
	for s := range t.shapes {
		s.markSeen(seen)
	}
}

// queueKey returns the key of a pod's class in the queue. It is "" if the pod does not queue.
func (g *grouping) queueKey(pod *corev1.Pod, s *shape) string {
	if of := g.plannedWith(pod); of != nil && !of.isTooLarge() {
		return "\x00" + of.key.String()
	}
	if !s.hasTerms() {
		return ""
	}
	return pod.Namespace + "/" + s.queueText
}

// fairShare splits pods into those to plan for now and those that wait for the next round. It takes whole classes and groups in the order of the queue. New
// classes come after those that are already waiting. Among equals, the higher priority comes first, then the class that has waited longest. Namespaces
// also take turns, so a namespace with thousands of classes does not delay the others. Pods without terms, and pods that are moving, with their groups, are always
// planned for.
func fairShare(c *facts.Cluster, groups *grouping, pods []waitingPod, moving moving) (now []waitingPod, later []*corev1.Pod) {
	groups.measureGroups(pods)
	urgent := map[*group]bool{}
	for _, p := range pods {
		if moving[p.pod] {
			urgent[groups.plannedWith(p.pod)] = true
		}
	}
	classes := map[string]*queuedClass{}
	for _, p := range pods {
		of, key := groups.plannedWith(p.pod), groups.queueKey(p.pod, p.shape)
		if key == "" || moving[p.pod] || of != nil && urgent[of] {
			now = append(now, p)
			continue
		}
		t := classes[key]
		if t == nil {
			t = &queuedClass{key: key, shapes: map[*shape]bool{}, place: c.Queue.Place(key), priority: schedulinghelper.PodPriority(p.pod), since: p.pod.CreationTimestamp.Time}
			classes[key] = t
		}
		if of != nil && !of.isTooLarge() {
			t.group = of
		}
		t.pods, t.shapes[p.shape], t.priority = append(t.pods, p), true, max(t.priority, schedulinghelper.PodPriority(p.pod))
		if created := p.pod.CreationTimestamp.Time; created.Before(t.since) {
			t.since = created
		}
	}
	total, seen := 0, map[string]bool{}
	for _, t := range classes {
		total += t.planWork(seen)
		t.markSeen(seen)
	}
	if total <= maxTerms {
		return pods, nil
	}
	used := 0
	clear(seen)
	for _, t := range fairOrder(classes) {
		terms := t.planWork(seen)
		if used > 0 && used+terms > maxTerms {
			for _, p := range t.pods {
				later = append(later, p.pod)
			}
			continue
		}
		used += terms
		t.markSeen(seen)
		now = append(now, t.pods...)
	}
	slices.SortFunc(later, facts.ComparePods)
	return now, later
}

func (g *grouping) measureGroups(pods []waitingPod) {
	classes := map[*group]*queuedClass{}
	for _, p := range pods {
		of := g.plannedWith(p.pod)
		if of == nil {
			continue
		}
		if classes[of] == nil {
			classes[of] = &queuedClass{shapes: map[*shape]bool{}, group: of}
		}
		classes[of].shapes[p.shape] = true
	}
	for of, t := range classes {
		of.terms = t.planWork(nil)
	}
}

// fairOrder returns the first class of each namespace, then the second of each, and so on.
func fairOrder(classes map[string]*queuedClass) []*queuedClass {
	compare := func(a, b *queuedClass) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(b.priority, a.priority), a.since.Compare(b.since), cmp.Compare(a.key, b.key))
	}
	byNamespace := map[string][]*queuedClass{}
	for _, t := range classes {
		namespace := t.pods[0].pod.Namespace
		byNamespace[namespace] = append(byNamespace[namespace], t)
	}
	var all []*queuedClass
	for _, queue := range byNamespace {
		slices.SortFunc(queue, compare)
	}
	for len(byNamespace) > 0 {
		var firsts []*queuedClass
		for namespace, queue := range byNamespace {
			firsts = append(firsts, queue[0])
			if byNamespace[namespace] = queue[1:]; len(queue) == 1 {
				delete(byNamespace, namespace)
			}
		}
		slices.SortFunc(firsts, compare)
		all = append(all, firsts...)
	}
	return all
}

// NextQueue returns the queue after a plan for the view. Classes whose pods all have places, and classes that were not planned for yet, keep their
// position. Classes with a pod without a place move to the end. The queue is empty if all classes fit into one plan.
func (v *View) NextQueue(before facts.ClassQueue, plan planner.Plan) facts.ClassQueue {
	if len(v.Postponed) == 0 {
		return nil
	}
	last := before.Last()
	next := facts.ClassQueue{}
	keep := func(pod *corev1.Pod) {
		if key := v.grouping.queueKey(pod, v.shapeOf(pod)); key != "" {
			next[key] = before.Place(key)
		}
	}
	for _, pod := range v.Postponed {
		keep(pod)
	}
	for _, name := range slices.Sorted(maps.Keys(v.Pods)) {
		keep(v.Pods[name])
	}
	served := slices.Clone(v.leftPods)
	for _, u := range plan.Unplaced {
		if pod := v.Pods[u.Pod]; pod != nil {
			served = append(served, pod)
		}
	}
	for _, pod := range served {
		if key := v.grouping.queueKey(pod, v.shapeOf(pod)); key != "" {
			next[key] = last + 2
		}
	}
	return next
}
