package records

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Machines with slots of device memory have several resources, one for each size, and pods of all sizes share the memory of a GPU. For the planner,
// each slot is a replica that requests its size as device memory, and a GPU has as many replicas as it has room for the smallest slots. So the
// planner's rule for device memory is exact. Promise.Resource, which is that of the smallest slots, stands for all of them.

// SlotFault returns why a pod that requests slots cannot be served, or nil if it can. stated is the device memory that it requests by annotation, in
// bytes.
func SlotFault(pod *corev1.Pod, stated int64) *planner.Refusal {
	refuse := func(reason planner.Reason, format string, args ...any) *planner.Refusal {
		return &planner.Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if n, mib := facts.SlotsIn(c.Resources.Requests); n > 1 {
			return refuse(planner.ReasonRequestsAboveOne, "container %s asks for %d slots of device memory, which might be on two GPUs: ask for one slot with at least %d MiB", c.Name, n, mib)
		}
	}
	requested := facts.PodRequests(pod)
	_, mib := facts.SlotsIn(requested)
	for name := range requested {
		if nodecontract.IsGPUResource(string(name)) && !facts.IsSlot(name) && facts.ValueOf(requested, name) > 0 {
			return refuse(planner.ReasonUnsupported, "asks for slots of device memory and for %s, which are on different machines: ask for one of them", name)
		}
	}
	if has := amount.Times(mib, facts.BytesPerMiB); stated > has {
		return refuse(planner.ReasonTooLarge, "states %s of device memory and asks for slots with %s: ask for a larger slot, or lower %s",
			resource.NewQuantity(stated, resource.BinarySI), resource.NewQuantity(has, resource.BinarySI), v1alpha1.GPUMemoryAnnotation)
	}
	return nil
}

// Exposes reports whether a machine has the GPU resources that a pod requests: one resource, slots of several sizes, or instances of several profiles. own
// is the machine's resource. slots is not zero if the machine has slots, and instances not nil if it has instances of several profiles. Of instances, the
// quotas decide whether the machine has those that the pod requests besides gpu.
func Exposes(own corev1.ResourceName, slots nodecontract.Slots, instances []mig.Offer, gpu corev1.ResourceName, requested corev1.ResourceList) bool {
	if instances != nil {
		_, ok := OfferOf(instances, gpu)
		return ok
	}
	if slots.IsZero() || !facts.IsSlot(gpu) {
		return own == gpu && slots.IsZero()
	}
	for name := range requested {
		if size, ok := nodecontract.ParseSlotResource(string(name)); ok && slots.Index(size) < 0 && facts.ValueOf(requested, name) > 0 {
			return false
		}
	}
	return true
}

// JoinedSizes returns the sizes of slots for messages.
func JoinedSizes(sizesMiB []int64) string {
	var names []string
	for _, mib := range sizesMiB {
		names = append(names, resource.NewQuantity(mib*facts.BytesPerMiB, resource.BinarySI).String())
	}
	return strings.Join(names, ", ")
}

// SlotGPUs returns unused GPUs that are divided into slots.
func SlotGPUs(slots nodecontract.Slots, count, memoryMiB int64) []planner.GPU {
	return FreshGPUs(count, slots.Most(memoryMiB), slots.CapacityMiB(memoryMiB))
}

// GPUSlots has the slots of one GPU of a machine.
type GPUSlots struct {
	// CapacityMiB is the memory in MiB that is available to slots. It is 0 for a GPU that is out of service.
	CapacityMiB int64
	// Held is how many slots of each size pods hold. Free is how many others there are or will be according to the promise. Both are in the order of the
	// sizes.
	Held, Free []int64
}

// SlotGPUs returns the GPUs of a machine with slots, in the order of their indices. unreported is how many slots of each size the pods of the machine
// hold, or will hold, without a report by the agent of which GPU has them. They count among the free slots.
func (m *Machine) SlotGPUs() (gpus []GPUSlots, unreported []int64) {
	slots := m.Promise.Slots
	unreported = make([]int64, len(slots.SizesMiB))
	for _, pod := range m.Pods {
		for _, mib := range facts.SlotSizes(pod) {
			if i := slots.Index(mib); i >= 0 {
				unreported[i]++
			}
		}
	}
	inUse, reported := nodecontract.SlotsInUse{}, false
	if m.Node != nil {
		inUse, reported = nodecontract.ParseSlotsInUse(m.Node.Annotations[nodecontract.SlotsInUseAnnotation], slots.SizesMiB)
	}
	for i := range m.slotGPUCount(inUse) {
		g := GPUSlots{Held: make([]int64, len(slots.SizesMiB)), Free: make([]int64, len(slots.SizesMiB))}
		if i < len(slots.GPUs) {
			copy(g.Free, slots.GPUs[i])
		}
		switch {
		case !reported:
			g.CapacityMiB = slots.CapacityMiB(m.gpuMiB())
		case i < len(inUse.GPUs):
			g.CapacityMiB = slots.CapacityMiB(inUse.GPUs[i].MemoryMiB)
			for s, held := range inUse.GPUs[i].Held {
				g.Held[s], g.Free[s] = held, max(0, g.Free[s]-held)
				unreported[s] = max(0, unreported[s]-held)
			}
		}
		gpus = append(gpus, g)
	}
	return gpus, unreported
}

// slotGPUCount returns the number of GPUs, from the agent's report or from the type. For a NodeClaim that may become one of several types it is the
// smallest number.
func (m *Machine) slotGPUCount(inUse nodecontract.SlotsInUse) int {
	if n := len(inUse.GPUs); n > 0 {
		return n
	}
	if m.Type == nil {
		return int(m.Promise.GPUs)
	}
	n := m.Type.GPU.Count
	for _, t := range m.Others {
		n = min(n, t.GPU.Count)
	}
	return int(n)
}

// gpuMiB returns the memory of each GPU in MiB, the minimum over the types that the machine may become.
func (m *Machine) gpuMiB() int64 {
	var labels map[string]string
	if m.Node != nil {
		labels = m.Node.Labels
	}
	mib := MemoryMiB(labels, m.Type)
	for _, t := range m.Others {
		mib = min(mib, t.GPU.UsableMiB())
	}
	return mib
}

// SlotsLeft returns what is left on the GPUs of a machine with slots. Free slots count as left, since other slots can replace them. Slots that a pod
// will hold do not: as the GPU is unknown, they are subtracted from each GPU that has such a slot. Nothing is left while the machine does not expose
// the promised slots, unless follows reports that it still has time to.
func (m *Machine) SlotsLeft(follows bool) []planner.GPU {
	slots := m.Promise.Slots
	gpus, unreported := m.SlotGPUs()
	left := make([]planner.GPU, len(gpus))
	if !follows {
		return left
	}
	for i, g := range gpus {
		mib := g.CapacityMiB - slots.UsedMiB(g.Held)
		most := int64(facts.MaxReplicasPerGPU)
		if slots.Enforcement == nodecontract.EnforceMPS {
			most = nodecontract.MaxMPSReplicas
		}
		for s, held := range g.Held {
			taken := min(unreported[s], g.Free[s])
			mib -= taken * slots.SizesMiB[s]
			most -= held + taken
		}
		mib = max(0, mib)
		left[i] = planner.GPU{Replicas: max(0, min(most, mib/slots.SizesMiB[0])), MemoryBytes: mib * facts.BytesPerMiB}
	}
	return left
}

// FreeSlots returns the total number of replicas of GPUs.
func FreeSlots(gpus []planner.GPU) int64 {
	var n int64
	for _, g := range gpus {
		n += g.Replicas
	}
	return n
}

// SlotsChanging reports whether free slots of the machine are being withdrawn.
func (m *Machine) SlotsChanging() bool {
	return m.Node != nil && facts.HasTaint(m.Node, nodecontract.SlotsChangingTaintKey)
}

// ExposesSlots reports whether the Node of a machine with slots has exactly the slots of the promise.
func (m *Machine) ExposesSlots() bool {
	if m.Node == nil {
		return false
	}
	for i, n := range m.Promise.Slots.Wanted() {
		if facts.ValueOf(m.Node.Status.Allocatable, corev1.ResourceName(nodecontract.SlotResource(m.Promise.Slots.SizesMiB[i]))) != n {
			return false
		}
	}
	return true
}

// exposedSlots returns how many slots of the promise the Node has.
func (m *Machine) exposedSlots() int64 {
	var sum int64
	for i, n := range m.Promise.Slots.Wanted() {
		sum += min(n, facts.ValueOf(m.Node.Status.Allocatable, corev1.ResourceName(nodecontract.SlotResource(m.Promise.Slots.SizesMiB[i]))))
	}
	return sum
}

// Shares returns the number of parts into which the price of the machine is divided: its replicas, or for slots and for instances of several profiles their
// memory in MiB.
func (m *Machine) Shares() int64 {
	if offers := m.Promise.Offers(); offers != nil {
		_, mib := TotalOf(offers)
		return cmp.Or(mib, m.Promise.Replicas())
	}
	if m.Promise.Slots.IsZero() {
		return m.Promise.Replicas()
	}
	gpus, _ := m.SlotGPUs()
	var mib int64
	for _, g := range gpus {
		mib += g.CapacityMiB
	}
	return mib
}

// SharesOf returns how many of these parts a pod pays for.
func (m *Machine) SharesOf(pod *corev1.Pod) int64 {
	if offers := m.Promise.Offers(); offers != nil {
		return cmp.Or(instanceMiB(offers, facts.PodRequests(pod)), m.ReplicasOf(pod))
	}
	if m.Promise.Slots.IsZero() {
		return m.ReplicasOf(pod)
	}
	_, mib := facts.SlotsIn(facts.PodRequests(pod))
	return mib
}
