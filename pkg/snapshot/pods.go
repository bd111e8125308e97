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

// waitingClass is a set of pods to plan for that the scheduler treats alike.
type waitingClass struct {
	*shape
	pods []*corev1.Pod
	// volumes are what the pods' volumes require of a node. It is nil if they have none.
	volumes *records.Volumes
	// expendable reports that the pods are pending, and that no machine is launched for them because of their priority.
	expendable bool
	// found has the indices of the selections that match the pods.
	found []int
	// group is the group of the pods, or nil if they are planned for alone. alone reports that they are placed one by one, and share only the group's topology.
	group *group
	alone bool
	// request is the ProvisioningRequest for which the pods stand. It is nil if the pods exist.
	request *Requested
}

// moving holds the running pods that will soon be pending, because their machine is leaving. Their replacements have other names. To avoid counting a pod
// twice, a pod that is being deleted is not moving, unless its owner replaces it only after it is gone.
type moving map[*corev1.Pod]bool

// movingOf returns the moving pods of machines that are leaving and for which goes returns true.
func movingOf(machines []records.Machine, goes func(*records.Machine) bool) moving {
	m := moving{}
	for i := range machines {
		if !machines[i].Leaving() || !goes(&machines[i]) {
			continue
		}
		for _, pod := range machines[i].Moving() {
			m[pod] = true
		}
	}
	return m
}

// waitingClasses returns the classes of the pods that are pending for a GPU resource or in moving, in a stable order. later has the pods that must wait for
// their turn. starts reports whether a machine is starting.
func waitingClasses(c *facts.Cluster, shapes *shapes, storage *records.Storage, groups *grouping, moving moving, starts bool) (planned []*waitingClass, later []*corev1.Pod) {
	asking := slices.DeleteFunc(c.Indexed().Pending(), func(pod *corev1.Pod) bool { return !claims.RequestsGPU(&pod.Spec) || !groups.nominating.waits(pod) })
	asking = slices.AppendSeq(asking, maps.Keys(moving))
	asking = groups.complete(asking)
	asking = append(asking, c.UntriedPods(starts || len(asking) > 0)...)
	slices.SortFunc(asking, facts.ComparePods)
	var pods []waitingPod
	for _, pod := range asking {
		c.BeginVisit("Pod", pod)
		if s := shapes.turn(pod); s.gpu != "" {
			pods = append(pods, waitingPod{pod, s})
		}
	}
	pods, later = fairShare(c, groups, pods, moving)
	for _, p := range pods {
		c.BeginVisit("Pod", p.pod)
		shapes.of(p.pod)
	}
	// All selections are known only now, after the last pod.
	byKey := map[classKey]*waitingClass{}
	for _, p := range pods {
		c.BeginVisit("Pod", p.pod)
		found := shapes.selections.of(p.pod)
		v := storage.Of(p.pod)
		key := classKeyOf(p.shape, found, v)
		key.expendable = !moving[p.pod] && c.PriorityCutoff != nil && schedulinghelper.PodPriority(p.pod) < *c.PriorityCutoff
		of, member := groups.keyOf(p.pod)
		key.member = member
		if byKey[key] == nil {
			byKey[key] = &waitingClass{shape: p.shape, volumes: v, found: found, expendable: key.expendable, group: of, alone: member.alone}
		}
		byKey[key].pods = append(byKey[key].pods, p.pod)
	}
	keys := slices.SortedFunc(maps.Keys(byKey), func(a, b classKey) int {
		return cmp.Or(strings.Compare(byKey[a].key, byKey[b].key), strings.Compare(a.found, b.found), strings.Compare(a.volumes, b.volumes),
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
	shape          [sha256.Size]byte
	found, volumes string
	expendable     bool
	member         groupKey
}

// asInt returns 1 for true, so that false comes first.
func asInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func classKeyOf(s *shape, found []int, v *records.Volumes) classKey {
	numbers := make([]byte, 0, 4*len(found))
	for _, i := range found {
		numbers = binary.BigEndian.AppendUint32(numbers, uint32(i))
	}
	return classKey{shape: s.sum, found: string(numbers), volumes: v.Key()}
}
