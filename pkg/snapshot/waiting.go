package snapshot

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// waitingClasses returns the classes of the pods that are pending for a GPU resource or in moving, in a stable order. later has the pods that must wait for
// their turn. starts reports whether a machine is starting.
func waitingClasses(c *facts.Cluster, shapes *shapes, storage *records.Storage, groups *grouping, moving moving, starts bool) (planned []*waitingClass, later []*corev1.Pod) {
	asking := slices.DeleteFunc(c.Indexed().Pending(), func(pod *corev1.Pod) bool { return !claims.RequestsGPU(&pod.Spec) || !groups.nominating.needsPlan(pod) })
	asking = slices.AppendSeq(asking, maps.Keys(moving))
	asking = groups.withWaitingMembers(asking)
	asking = append(asking, c.UntriedPods(starts || len(asking) > 0)...)
	slices.SortFunc(asking, facts.ComparePods)
	var pods []waitingPod
	for _, pod := range asking {
		c.BeginVisit("Pod", pod)
		if s := shapes.sketchOf(pod); s.gpu != "" {
			pods = append(pods, waitingPod{pod, s})
		}
	}
	pods, later = fairShare(c, groups, pods, moving)
	for _, p := range pods {
		c.BeginVisit("Pod", p.pod)
		shapes.shapeOf(p.pod)
	}
	// All selections are known only now, after the last pod.
	byKey := map[classKey]*waitingClass{}
	for _, p := range pods {
		c.BeginVisit("Pod", p.pod)
		found := shapes.selections.matching(p.pod)
		v := storage.Of(p.pod)
		key := classKeyOf(p.shape, found, v)
		key.expendable = !moving[p.pod] && c.PriorityCutoff != nil && schedulinghelper.PodPriority(p.pod) < *c.PriorityCutoff
		of, member := groups.groupKeyOf(p.pod)
		key.member = member
		if byKey[key] == nil {
			byKey[key] = &waitingClass{shape: p.shape, volumes: v, matched: found, expendable: key.expendable, group: of, alone: member.alone}
		}
		byKey[key].pods = append(byKey[key].pods, p.pod)
	}
	keys := slices.SortedFunc(maps.Keys(byKey), func(a, b classKey) int {
		return cmp.Or(strings.Compare(byKey[a].key, byKey[b].key), strings.Compare(a.matched, b.matched), strings.Compare(a.volumes, b.volumes),
			cmp.Compare(asInt(a.expendable), asInt(b.expendable)), compareGroupKeys(a.member, b.member))
	})
	classes := make([]*waitingClass, 0, len(byKey))
	for _, key := range keys {
		class := byKey[key]
		slices.SortFunc(class.pods, facts.ComparePods)
		classes = append(classes, class)
	}
	return classes, later
}

// classKey identifies a class: its shape, the selections that match its pods, what their volumes require of a node, and their group.
type classKey struct {
	shape            [sha256.Size]byte
	matched, volumes string
	expendable       bool
	member           groupKey
}

func classKeyOf(s *shape, found []int, v *records.Volumes) classKey {
	numbers := make([]byte, 0, 4*len(found))
	for _, i := range found {
		numbers = binary.BigEndian.AppendUint32(numbers, uint32(i))
	}
	return classKey{shape: s.sum, matched: string(numbers), volumes: v.Key()}
}
