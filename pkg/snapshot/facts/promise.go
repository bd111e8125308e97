package facts

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/planner"
)

// OffersOf returns what a machine with a number of GPUs has of each resource of instances. It is nil if it has one resource, or none.
func OffersOf(m nodecontract.MIG, gpus int64) []mig.Offer {
	if !m.Mixed() {
		return nil
	}
	return mig.Offers(m, gpus)
}

// Offers returns what the machine is to have of each resource of instances. It is nil if it has one resource, or none.
func (p Promise) Offers() []mig.Offer { return OffersOf(p.MIG, p.GPUs) }

// Promise is what a machine was launched to provide, according to the annotations of its NodeClaim and Node.
type Promise struct {
	Resource       corev1.ResourceName
	GPUs           int64
	ReplicasPerGPU int64
	// MPS describes how the GPUs are shared with MPS. It is zero if they are not, or if the annotation is invalid.
	MPS nodecontract.MPS
	// MIG describes the instances into which each GPU is divided. It is zero if it is not divided, or if the annotation is invalid.
	MIG nodecontract.MIG
	// Slots describes the slots of memory into which each GPU is divided. It is zero if it is not divided, or if the annotation is invalid. If it is not
	// zero, Resource is that of the smallest slots. If there are instances of several profiles, Resource is that of one of them.
	Slots nodecontract.Slots
	// Backend is nodecontract.BackendDRA or BackendNVIDIADRA if a DRA driver serves the GPUs, and "" if a device plugin does.
	Backend string
	// MicroUSDPerHour is the price at the time of planning. If the cloud launched another offering, it is the price of that one.
	MicroUSDPerHour int64
	// ListMicroUSDPerHour is that price in the cloud's list.
	ListMicroUSDPerHour int64
}

// Replicas returns the number of replicas of the machine. For slots, it is their number, which changes with the pods.
func (p Promise) Replicas() int64 {
	if !p.Slots.IsZero() {
		return p.Slots.Count()
	}
	if p.MIG.Mixed() {
		return p.MIG.InstancesOf(p.GPUs) * p.MIG.PerInstance()
	}
	return p.GPUs * p.ReplicasPerGPU
}

// Whole reports whether each GPU serves one claim at a time, as NVIDIA's DRA driver publishes GPUs that are not shared.
func (p Promise) Whole() bool {
	return p.Backend == nodecontract.BackendNVIDIADRA && p.ReplicasPerGPU == 1
}

// ResourceNames returns the names of the machine's resources for messages.
func (p Promise) ResourceNames() string {
	if !p.Slots.IsZero() {
		return strings.Join(p.Slots.Resources(), ", ")
	}
	if offers := p.Offers(); offers != nil {
		var names []string
		for _, o := range offers {
			names = append(names, o.Resource)
		}
		return strings.Join(names, ", ")
	}
	return string(p.Resource)
}

// PromiseOf reads the promise from the annotations of a NodeClaim or Node. Values that are missing, invalid or larger than any machine are 0.
func PromiseOf(annotations map[string]string) Promise {
	mps, _ := nodecontract.ParseMPS(annotations[nodecontract.MPSAnnotation])
	mig, _ := nodecontract.ParseMIG(annotations[nodecontract.MIGAnnotation])
	slots, _ := nodecontract.ParseSlots(annotations[nodecontract.SlotsAnnotation])
	price := NumberIn(annotations, v1alpha1.PriceAnnotation, planner.MaxPrice)
	return Promise{
		MPS: mps, MIG: mig, Slots: slots, Backend: annotations[nodecontract.BackendAnnotation], Resource: corev1.ResourceName(annotations[nodecontract.ResourceAnnotation]),
		GPUs: NumberIn(annotations, nodecontract.GPUsAnnotation, catalog.MaxGPUs), ReplicasPerGPU: NumberIn(annotations, nodecontract.ReplicasPerGPUAnnotation, MaxReplicasPerGPU),
		MicroUSDPerHour: price, ListMicroUSDPerHour: cmp.Or(NumberIn(annotations, v1alpha1.ListPriceAnnotation, planner.MaxPrice), price),
	}
}
