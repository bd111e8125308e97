package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// addGroups adds the groups of the classes that need places at once.
func (v *View) addGroups(waiting []*waitingClass) {
	type counted struct {
		*group
		classes []int
		pods    int64
	}
	byKey := map[facts.GroupKey]*counted{}
	var all []*counted
	for i, w := range waiting {
		if w.group == nil || w.alone || w.group.refusal() != nil {
			continue
		}
		c := byKey[w.group.key]
		if c == nil {
			c = &counted{group: w.group}
			byKey[w.group.key] = c
			all = append(all, c)
		}
		c.classes, c.pods = append(c.classes, i), c.pods+int64(len(v.Classes[i].Pods))
	}
	slices.SortFunc(all, func(a, b *counted) int {
		return cmp.Or(a.created.Compare(b.created), strings.Compare(a.name, b.name))
	})
	for _, c := range all {
		elsewhere := int64(len(c.open)) - c.pods // Others find places for them, or they request no GPU.
		v.Groups = append(v.Groups, planner.Group{Name: c.name, Classes: c.classes, Min: max(1, c.placesNeeded()-elsewhere), Holds: true})
	}
}

// withGroups returns the pods, with all pending pods of the groups to which any of them belong.
func (v *View) withGroups(pods sets.Set[types.UID]) sets.Set[types.UID] {
	for i := range v.Groups {
		var pending []types.UID
		for _, c := range v.Groups[i].Classes {
			for _, name := range v.Classes[c].Pods {
				if pod := v.Pods[name]; pod.Spec.NodeName == "" {
					pending = append(pending, pod.UID)
				}
			}
		}
		if pods.HasAny(pending...) {
			pods = pods.Clone().Insert(pending...)
		}
	}
	return pods
}

// GroupState is how far a group is.
type GroupState struct {
	Name string
	// Min is how many pods are needed at once, and 0 if that is unknown.
	Min int64
	// Placed have a node or have ended, Waiting need one, and Gated may not have one yet.
	Placed, Waiting, Gated int64
	// Differ reports whether pods of the group state different minimums. The largest counts.
	Differ bool
	// Refusal is why nothing is launched for the group, independent of room. It may be nil.
	Refusal *planner.Refusal
}

// String says how many pods are needed and how many there are.
func (s *GroupState) String() string {
	text := fmt.Sprintf("%s: %d pods at once, %d have a place, %d wait", s.Name, s.Min, s.Placed, s.Waiting)
	if s.Gated > 0 {
		text += fmt.Sprintf(", %d have scheduling gates", s.Gated)
	}
	if s.Differ {
		text += "; its pods state different minimums, and the largest counts"
	}
	return text
}

// GroupOf returns the state of the group of a pod, or nil if the pod is planned alone.
func (v *View) GroupOf(pod *corev1.Pod) *GroupState {
	of := v.groupOf(pod)
	if of == nil {
		return nil
	}
	return &GroupState{of.name, of.min, int64(len(of.bound)) + of.ended, int64(len(of.open)), of.gated, of.differ, of.refusal()}
}

// PodGroupOf returns the PodGroup to which a pod belongs. It returns false if there is none.
func (v *View) PodGroupOf(pod *corev1.Pod) (facts.PodGroup, bool) {
	m, is := v.cluster.Membership(pod)
	if !is {
		return facts.PodGroup{}, false
	}
	object, exists := v.cluster.PodGroups.All[m.Group]
	return object, exists
}

// groupOf returns the group of a pod, or nil. Views are shared, so it does not add to what the grouping knows.
func (v *View) groupOf(pod *corev1.Pod) *group {
	m, is := v.cluster.Membership(pod)
	if !is {
		return nil
	}
	if of, known := v.grouping.known[m.Group]; known {
		return of
	}
	return v.grouping.newGroup(m)
}

// RestartsWith returns how many pods restart if a running pod moves: 1, or all that run of a group that needs several at once. If the group says that its pods
// are only disrupted together, why is the reason why the pod must not move.
func (v *View) RestartsWith(pod *corev1.Pod) (pods int64, why string) {
	of := v.groupOf(pod)
	if of == nil || of.min <= 1 {
		return 1, ""
	}
	if of.whole {
		return 0, fmt.Sprintf("pod %s is one of %s, whose pods are disrupted only together", facts.PodName(pod), of.name)
	}
	return max(1, int64(len(of.bound))), ""
}
