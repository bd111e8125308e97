package records

import (
	"iter"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"karve.sh/karve/pkg/snapshot/facts"
)

// Attachable finds the number of volumes of a driver that a machine can attach.
type Attachable struct {
	index *facts.Index
	// types has the number for an instance type, if it is known. It is the smallest that nodes of the type report, because some drivers count disks and network
	// interfaces that are already attached.
	types func() map[string]map[string]int64
}

func AttachableOf(c *facts.Cluster) *Attachable {
	x := c.Indexed()
	return &Attachable{x, sync.OnceValue(func() map[string]map[string]int64 {
		types := map[string]map[string]int64{}
		for name, node := range x.CSINodes() {
			if s := x.Site(name); s != nil && s.Node.Labels[corev1.LabelInstanceTypeStable] != "" {
				for driver, limit := range attachments(node) {
					noteMin(types, s.Node.Labels[corev1.LabelInstanceTypeStable], driver, limit)
				}
			}
		}
		return types
	})}
}

// Of returns the number for a node. It returns false if it is unknown.
func (a *Attachable) Of(node, driver string) (int64, bool) {
	if csi := a.index.CSINode(node); csi != nil {
		for name, limit := range attachments(csi) {
			if name == driver {
				return limit, true
			}
		}
	}
	return 0, false
}

func (a *Attachable) OfType(name, driver string) (int64, bool) {
	limit, ok := a.types()[name][driver]
	return limit, ok
}

// attachments returns the drivers of a node that limit the number of volumes, with the limits.
func attachments(node *storagev1.CSINode) iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		for i := range node.Spec.Drivers {
			if d := &node.Spec.Drivers[i]; d.Allocatable != nil && d.Allocatable.Count != nil && !yield(d.Name, int64(*d.Allocatable.Count)) {
				return
			}
		}
	}
}

// noteMin records a limit if it is the lowest so far.
func noteMin(limits map[string]map[string]int64, of, driver string, limit int64) {
	if limits[of] == nil {
		limits[of] = map[string]int64{}
	}
	if known, ok := limits[of][driver]; !ok || limit < known {
		limits[of][driver] = limit
	}
}

// Attached returns the number of the driver's volumes that the pods use. It counts shared volumes once.
func (s *Storage) Attached(pods []*corev1.Pod, driver string) int64 {
	seen := map[string]bool{}
	var n int64
	for _, pod := range pods {
		for i := range pod.Spec.Volumes {
			name, ok := facts.ClaimName(pod, &pod.Spec.Volumes[i])
			claim := s.index.VolumeClaim(pod.Namespace + "/" + name)
			if !ok || claim == nil || seen[pod.Namespace+"/"+name] {
				continue
			}
			seen[pod.Namespace+"/"+name] = true
			if pv := s.index.Volume(claim.Spec.VolumeName); pv != nil && DriverOf(pv) == driver {
				n++
			}
		}
	}
	return n
}
