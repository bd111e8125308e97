package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// leavesBefore reports whether machines of the offering leave before a time.
func (o *Offering) leavesBefore(end time.Time) bool {
	return o.reservation != nil && !o.reservation.Leaves.IsZero() && o.reservation.Leaves.Before(end)
}

// choice formats the labels that a pool chooses for a machine, and its MIG instances, as one string.
func (o *Offering) choice() string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(o.CustomLabels)) {
		pairs = append(pairs, key+"="+o.CustomLabels[key])
	}
	if key := o.Share.MIG.Key(); key != "" {
		pairs = append(pairs, key)
	}
	if o.depth > 0 {
		pairs = append(pairs, depthChoice(o.depth))
	}
	return strings.Join(pairs, ",")
}

// Anywhere reports whether the agent chooses the GPUs of the pods of a launch.
func (o *Offering) Anywhere() bool { return o.depth > 0 || o.instances != nil }

func depthChoice(depth int64) string {
	return fmt.Sprintf("at most %s for each GPU", words.Count(depth, "pod"))
}

// Offering is an instance type in a zone with a capacity type, as a pool would launch it.
type Offering struct {
	Type         *catalog.InstanceType
	Zone         string
	CapacityType string
	// MicroUSDPerHour is the price in millionths of a US dollar per hour, and ListMicroUSDPerHour that in the cloud's list.
	MicroUSDPerHour, ListMicroUSDPerHour int64
	// Reservation is the ID of the reservation whose slot the machine takes, or "" if it takes none. reservation is nil then.
	Reservation string
	reservation *catalog.Reservation
	// limited is the limit of the price, or nil if there is none.
	limited *catalog.LimitedPrice
	// Labels are the labels of the started node that pods can select by, as far as they are known. doubts are the others.
	Labels map[string]string
	doubts nodelabels.Doubts
	// CustomLabels are those Labels whose values Karve chose from a requirement of the pool.
	CustomLabels map[string]string
	// Share is what each GPU is divided into. instances are the resources of the machine if it has several.
	Share     v1alpha1.Share
	instances []mig.Offer
	// ReplicasPerGPU is the number of replicas of each GPU. It is 1 if GPUs are not shared.
	ReplicasPerGPU int64
	// Daemons are the total requests of the DaemonSet pods that will run on the node.
	Daemons planner.Resources
	// daemons are the pods of those DaemonSets.
	daemons []*records.Demand
	// depth is how many pods that state device memory may share one of gpus. It is 0 if the planner chooses their GPUs.
	depth int64
	gpus  records.GPUSet
}

func (o *Offering) nodeLabels() nodelabels.Labels {
	return nodelabels.Labels{Known: o.Labels, Doubts: o.doubts}
}

// Free returns what the machine has for pods, less the requests of DaemonSets.
func (o *Offering) Free() planner.Resources {
	free := facts.Minus(records.AllocatableOf(o.Type), o.Daemons)
	free.Replicas = o.replicas() - o.Daemons.Replicas
	if o.depth > 0 {
		free.Replicas = o.gpus.GPU(o.depth, o.Daemons.Replicas).Replicas
	}
	return facts.AtLeastZero(free)
}

// replicas returns the number of replicas of the machine.
func (o *Offering) replicas() int64 {
	if o.instances != nil {
		n, _ := records.TotalOf(o.instances)
		return n
	}
	return o.ReplicasPerGPU * o.Type.GPU.Count
}

// Resource returns the name of the resource that pods request. If they may request several, it is the first.
func (o *Offering) Resource() corev1.ResourceName { return corev1.ResourceName(o.Share.Resource) }

// exposes reports whether the machine has all GPU resources that a pod requests, of which gpu is one.
func (o *Offering) exposes(gpu corev1.ResourceName, requested corev1.ResourceList) bool {
	return records.Exposes(o.Resource(), o.Share.Slots, o.instances, gpu, requested)
}

// GPUs returns the GPUs of the machine, or their MIG instances, less what DaemonSets use.
func (o *Offering) GPUs() []planner.GPU {
	if slots := o.Share.Slots; !slots.IsZero() {
		gpus := records.SlotGPUs(slots, o.Type.GPU.Count, o.Type.GPU.UsableMiB())
		records.Hold(gpus, o.Daemons.Replicas, slots.SizesMiB[len(slots.SizesMiB)-1]*facts.BytesPerMiB)
		return gpus
	}
	if o.depth > 0 {
		return []planner.GPU{o.gpus.GPU(o.depth, o.Daemons.Replicas)}
	}
	if o.instances != nil {
		gpus := records.AsOneGPU(o.instances, o.replicas())
		records.Hold(gpus, o.Daemons.Replicas, 0)
		return gpus
	}
	count, perGPU, memoryMiB := records.Divide(o.Share.MIG, o.Type.GPU.Count, o.ReplicasPerGPU, o.Type.GPU.UsableMiB())
	gpus := records.FreshGPUs(count, perGPU, memoryMiB)
	records.Hold(gpus, o.Daemons.Replicas, 0)
	return gpus
}

// Physical returns what the machine adds to the usage that NodePool limits restrict.
func (o *Offering) Physical() planner.Physical { return records.PhysicalOf(o.Type, o.ReplicasPerGPU) }

// compareOfferings orders the offerings of a pool independently of the order in the catalog.
func compareOfferings(a, b Offering) int {
	if order := cmp.Or(
		strings.Compare(a.Type.Name, b.Type.Name), strings.Compare(a.Zone, b.Zone), strings.Compare(a.CapacityType, b.CapacityType),
		cmp.Compare(a.MicroUSDPerHour, b.MicroUSDPerHour),
	); order != 0 {
		return order
	}
	return cmp.Or(compareLabels(a.Labels, b.Labels), strings.Compare(a.Share.Resource, b.Share.Resource), strings.Compare(a.Share.MIG.Key(), b.Share.MIG.Key()),
		strings.Compare(a.limitName(), b.limitName()))
}

// Capacity returns the capacity type, with the ID of the reservation.
func (o *Offering) Capacity() string { return catalog.Capacity(o.CapacityType, o.Reservation) }

// limitName returns the name of the limit of the price, or "" if there is none.
func (o *Offering) limitName() string {
	if o.limited == nil {
		return ""
	}
	return o.limited.Limit
}

func compareLabels(a, b map[string]string) int {
	for _, key := range slices.Sorted(maps.Keys(records.MergedLabels(a, b))) {
		if order := strings.Compare(a[key], b[key]); order != 0 {
			return order
		}
	}
	return 0
}
