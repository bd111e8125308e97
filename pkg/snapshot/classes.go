package snapshot

import (
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/provreq"
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
	// matched has the indices of the selections that match the pods.
	matched []int
	// group is the group of the pods, or nil if they are planned for alone. alone reports that they are placed one by one, and share only the group's topology.
	group *group
	alone bool
	// request is the ProvisioningRequest for which the pods stand. It is nil if the pods exist.
	request *Requested
}

// Requested is a ProvisioningRequest that is not over. Pods that do not exist stand for those that it asks for, so that a plan launches machines for them and
// keeps machines on which they have room.
type Requested struct {
	*provreq.Request
	// Wants is the number of pods that it asks for. Taken is the number of those that exist, and take the room of the others.
	Wants, Taken int64
	// Pods are the names of the pods that stand for the rest. There are none if a PodTemplate is missing or requests no shared GPU, if the time of the request or of
	// the booking is over, or if there are too many for one plan.
	Pods []string
	// NoGPU is the name of a PodTemplate that requests no shared GPU. It is "" if all do.
	NoGPU string
	// Later reports that the requests before it have so many pods that one plan has no room for more.
	Later bool
	// classes are the indices of its classes, and launchable the offerings that admit them.
	classes    []int
	launchable [][]int
}
