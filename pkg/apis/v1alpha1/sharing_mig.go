package v1alpha1

import (
	"cmp"
	"fmt"
	"slices"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
)

// Share is what each GPU of a node is divided into. The planner counts with it.
// +kubebuilder:object:generate=false
type Share struct {
	// Resource is the name of the resource that pods request.
	Resource string
	// Least and Most are the minimum and maximum number of replicas of a GPU over all its instances. Both are at least 1.
	Least, Most int64
	// MIG describes how the GPU is divided into instances. It is zero if it is not divided.
	MIG nodecontract.MIG
	// Slots describes how the GPU is divided into slots of memory, without how many each GPU has. It is zero if it is not divided.
	Slots nodecontract.Slots
}

// Shares returns the possible divisions of GPUs with the cloud's name (as in its label of an instance type, for example "t4") and device memory in MiB.
// With MIG it returns one for each layout. It returns none if the strategy cannot share the GPUs.
func (s Sharing) Shares(gpuName string, memoryMiB int64) []Share {
	switch {
	case s.Strategy == StrategyMIG:
		return migInstances{}.shares(s, gpuName, memoryMiB)
	case !s.CanShare(gpuName):
		return nil
	case s.Strategy == StrategyMemorySlots:
		return memorySlots{}.shares(s, memoryMiB)
	}
	least, most := s.ReplicasRange(gpuName)
	return []Share{{Resource: s.Resource(), Least: least, Most: most}}
}

// ShareWith returns the share of GPUs that are divided into the given instances. It returns false if the strategy has no such share for them.
func (s Sharing) ShareWith(divided nodecontract.MIG, gpuName string, memoryMiB int64) (Share, bool) {
	for _, share := range s.Shares(gpuName, memoryMiB) {
		if share.MIG.Same(divided) {
			return share, true
		}
	}
	return Share{}, false
}

// Resources returns the names of all resources that the nodes may expose, without duplicates. Only MIG and MemorySlots may have several.
func (s Sharing) Resources() []string {
	if slots := s.MemorySlots(); !slots.IsZero() {
		return slots.Resources()
	}
	names := []string{s.Resource()}
	if s.Strategy == StrategyMIG && s.MIG != nil {
		for i := range s.MIG.Layouts {
			if name := (migInstances{}).named(s, s.MIG.Layouts[i].Profile); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// migInstances is StrategyMIG: each GPU is divided into instances with their own memory and compute. Pods have an instance to themselves or take turns
// on it.
type migInstances struct{ timeSlicing }

// resource returns the resource of the first layout's instances.
func (m migInstances) resource(s Sharing) string {
	if s.MIG == nil || len(s.MIG.Layouts) == 0 {
		return m.named(s, "")
	}
	return m.named(s, s.MIG.Layouts[0].Profile)
}

// named returns the resource name of the instances of a profile.
func (migInstances) named(s Sharing, profile string) string {
	if s.MIGNaming() == MIGNamingMixed {
		name := mig.Resource(profile)
		if s.slices() > 1 {
			name += sharedSuffix
		}
		return name
	}
	switch {
	case s.ResourceName != "":
		return s.ResourceName
	case s.slices() > 1:
		return ResourceGPUShared
	default:
		return ResourceGPU
	}
}

// sharedSuffix is what NVIDIA's device plugin adds to the names of resources whose replicas are renamed.
const sharedSuffix = ".shared"

// slices returns the number of pods that take turns on an instance.
func (s Sharing) slices() int64 {
	if s.Replicas == nil {
		return 1
	}
	return max(1, int64(*s.Replicas))
}

// replicas returns the minimum and maximum over all GPUs with the name.
func (m migInstances) replicas(s Sharing, gpuName string) (least, most int64) {
	for _, model := range mig.Models(gpuName, 0) {
		for _, share := range m.shares(s, gpuName, model.MemoryMiB) {
			least, most = cmp.Or(min(least, share.Least), share.Least), max(most, share.Most)
		}
	}
	return max(1, least), max(1, most)
}

func (m migInstances) shares(s Sharing, gpuName string, memoryMiB int64) []Share {
	if s.MIG == nil {
		return nil
	}
	var all []Share
	for i := range s.MIG.Layouts {
		l := &s.MIG.Layouts[i]
		if l.GPUName != gpuName || l.GPUMemoryMiB != nil && *l.GPUMemoryMiB != memoryMiB {
			continue
		}
		for _, model := range mig.Models(gpuName, memoryMiB) {
			count := model.Fit(l.Profile)
			if count == 0 {
				continue
			}
			replicas := count * s.slices()
			all = append(all, Share{
				Resource: m.named(s, l.Profile), Least: replicas, Most: replicas,
				MIG: nodecontract.MIG{Profile: l.Profile, Count: count, MemoryMiB: model.InstanceMiB(l.Profile), Naming: string(s.MIGNaming())},
			})
		}
	}
	return all
}

// MIGNaming returns how the resources of instances are named, with the default applied. It returns "" for other strategies.
func (s Sharing) MIGNaming() MIGNaming {
	switch {
	case s.Strategy != StrategyMIG:
		return ""
	case s.MIG == nil || s.MIG.Naming == "":
		return MIGNamingMixed
	default:
		return s.MIG.Naming
	}
}

// LayoutsError returns an error if a layout is impossible, or if two layouts contradict each other.
func (s Sharing) LayoutsError() error {
	if s.Strategy != StrategyMIG || s.MIG == nil {
		return nil
	}
	for i := range s.MIG.Layouts {
		l := &s.MIG.Layouts[i]
		memory := int64(0)
		if l.GPUMemoryMiB != nil {
			memory = *l.GPUMemoryMiB
		}
		if err := mig.CheckLayout(l.GPUName, memory, l.Profile); err != nil {
			return fmt.Errorf("spec.sharing.mig.layouts[%d]: %w", i, err)
		}
		for j := range s.MIG.Layouts[:i] {
			switch before := &s.MIG.Layouts[j]; {
			case !before.meets(l):
			case before.Profile == l.Profile:
				return fmt.Errorf("spec.sharing.mig.layouts[%d] and [%d] are the same for %s: remove one", j, i, l.GPUName)
			case s.MIGNaming() == MIGNamingSingle:
				return fmt.Errorf("spec.sharing.mig.layouts[%d] and [%d] are both for %s, and with naming Single pods could not tell their instances apart: remove one, or use naming Mixed", j, i, l.GPUName)
			}
		}
	}
	return nil
}

// meets reports whether two layouts may apply to the same GPUs.
func (l *MIGLayout) meets(other *MIGLayout) bool {
	return l.GPUName == other.GPUName && (l.GPUMemoryMiB == nil || other.GPUMemoryMiB == nil || *l.GPUMemoryMiB == *other.GPUMemoryMiB)
}
