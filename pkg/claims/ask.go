package claims

import (
	"cmp"
	"slices"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/nodecontract"
)

// Ask is the request for GPUs in the claims of a pod.
type Ask struct {
	// Driver is the DRA driver of the GPUs, or "" for that of Karve's agents.
	Driver string `json:"driver,omitempty"`
	// Sets are the sets of GPUs or MIG instances of one machine that the claims request, sorted. Different sets may share GPUs.
	Sets []Set `json:"sets"`
	// Selectors are the CEL expressions of DeviceClasses and requests, sorted and unique. Every GPU must satisfy all of them.
	Selectors []string `json:"selectors,omitempty"`
	// Mixes is a container that refers to several claims or requests, or "" if those of each container are certain to be on one GPU.
	Mixes string `json:"mixes,omitempty"`
	// ByIndex reports whether a constraint is on the index of GPUs. MIG instances have the index of their GPU.
	ByIndex bool `json:"byIndex,omitempty"`
	// NamesReplicas reports whether a request names the replicas capacity, which not all devices of the driver have.
	NamesReplicas bool `json:"namesReplicas,omitempty"`
	// MPS reports whether the driver should share the GPUs with MPS among the containers that have the claim.
	MPS bool `json:"mps,omitempty"`
	// Refusal is why nothing is launched for the pod, or "" if something can be.
	Refusal string `json:"refusal,omitempty"`
}

// DriverName returns the name of the DRA driver of the GPUs.
func (a *Ask) DriverName() string { return cmp.Or(a.Driver, nodecontract.DRADriver) }

// Set is a set of different GPUs of one machine, grouped by what is requested on them.
type Set []Share

// Share is what is requested on each of a number of GPUs.
type Share struct {
	GPUs        int64 `json:"gpus"`
	Replicas    int64 `json:"replicas"`
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
}

const bytesPerMiB = 1 << 20

// total returns the total request of the shares. Its Replicas and MemoryBytes are over all GPUs.
func (s Set) total() Share {
	var total Share
	for _, one := range s {
		total.GPUs = amount.Add(total.GPUs, one.GPUs)
		total.Replicas, total.MemoryBytes = amount.Add(total.Replicas, amount.Times(one.GPUs, one.Replicas)), amount.Add(total.MemoryBytes, amount.Times(one.GPUs, one.MemoryBytes))
	}
	return total
}

// Total returns the total request of the claims: the largest number of GPUs that it can use, and the replicas and device memory on all of them.
func (a *Ask) Total() Share { return slices.Concat(a.Sets...).total() }

// Distinct returns the number of different GPUs that a machine must have, at least 1.
func (a *Ask) Distinct() int64 {
	n := int64(1)
	for _, set := range a.Sets {
		n = max(n, set.total().GPUs)
	}
	return n
}

// Large reports whether the claims request more than half of a device with a number of replicas and an amount of memory. A device with one replica is
// not shared, so no smaller pod can be in the way.
func (a *Ask) Large(replicas, memoryMiB int64) bool {
	return replicas > 1 && a.exceeds(replicas/2, memoryMiB*bytesPerMiB/2)
}

// Alone reports whether the pod has a machine with several GPUs of a kind to itself: it takes so much of several GPUs that others would have hardly any
// left.
func (a *Ask) Alone(replicas, memoryMiB int64) bool {
	return a.Total().GPUs > 1 && a.Large(replicas, memoryMiB)
}

// exceeds reports whether the claims request more than this on one GPU.
func (a *Ask) exceeds(replicas, memoryBytes int64) bool {
	return slices.ContainsFunc(slices.Concat(a.Sets...), func(s Share) bool { return s.Replicas > replicas || s.MemoryBytes > memoryBytes })
}

// sort orders asks so that equal requests are equal.
func (a *Ask) sort() {
	compare := func(a, b Share) int {
		return cmp.Or(cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(a.Replicas, b.Replicas), cmp.Compare(a.MemoryBytes, b.MemoryBytes))
	}
	for _, set := range a.Sets {
		slices.SortFunc(set, compare)
	}
	slices.SortFunc(a.Sets, func(a, b Set) int { return slices.CompareFunc(a, b, compare) })
	slices.Sort(a.Selectors)
	a.Selectors = slices.Compact(a.Selectors)
}
