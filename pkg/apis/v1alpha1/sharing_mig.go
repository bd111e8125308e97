package v1alpha1

import (
	"cmp"
	"errors"
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

// Shares returns the possible divisions of a machine's GPUs with the cloud's name (as in its label of an instance type, for example "t4") and device
// memory in MiB. With MIG it returns one for each layout. It returns none if the strategy cannot share the GPUs.
func (s Sharing) Shares(gpuName string, memoryMiB, gpus int64) []Share {
	switch {
	case s.Strategy == StrategyMIG:
		return migInstances{}.shares(s, gpuName, memoryMiB, gpus)
	case !s.CanShare(gpuName):
		return nil
	case s.Strategy == StrategyMemorySlots:
		return memorySlots{}.shares(s, memoryMiB)
	}
	least, most := s.ReplicasRange(gpuName)
	return []Share{{Resource: s.Resource(), Least: least, Most: most}}
}

// ShareWith returns the share of GPUs that are divided into the given instances. It returns false if the strategy has no such share for them.
func (s Sharing) ShareWith(divided nodecontract.MIG, gpuName string, memoryMiB, gpus int64) (Share, bool) {
	for _, share := range s.Shares(gpuName, memoryMiB, gpus) {
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
			for _, profile := range s.MIG.Layouts[i].Profiles() {
				if name := (migInstances{}).named(s, profile); !slices.Contains(names, name) {
					names = append(names, name)
				}
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
	return m.named(s, s.MIG.Layouts[0].Profiles()[0])
}

// named returns the resource name of the instances of a profile.
func (migInstances) named(s Sharing, profile string) string {
	if s.MIGNaming() == MIGNamingMixed {
		return mig.SharedResource(profile, s.PodsPerInstance())
	}
	switch {
	case s.ResourceName != "":
		return s.ResourceName
	case s.PodsPerInstance() > 1:
		return ResourceGPUShared
	default:
		return ResourceGPU
	}
}

// PodsPerInstance returns the number of pods that take turns on a MIG instance.
func (s Sharing) PodsPerInstance() int64 {
	if s.Replicas == nil {
		return 1
	}
	return max(1, int64(*s.Replicas))
}

// replicas returns the minimum and maximum over all GPUs with the name.
func (m migInstances) replicas(s Sharing, gpuName string) (least, most int64) {
	for _, model := range mig.Models(gpuName, 0) {
		for _, share := range m.shares(s, gpuName, model.MemoryMiB, 0) {
			least, most = cmp.Or(min(least, share.Least), share.Least), max(most, share.Most)
		}
	}
	return max(1, least), max(1, most)
}

// shares returns the shares of a machine's GPUs. If gpus is 0, their number is unknown, and layouts for any number apply.
func (m migInstances) shares(s Sharing, gpuName string, memoryMiB, gpus int64) []Share {
	if s.MIG == nil {
		return nil
	}
	var all []Share
	for i := range s.MIG.Layouts {
		l := &s.MIG.Layouts[i]
		if l.GPUName != gpuName || l.GPUMemoryMiB != nil && *l.GPUMemoryMiB != memoryMiB || l.gpus() > 0 && gpus > 0 && l.gpus() != gpus {
			continue
		}
		for _, model := range mig.Models(gpuName, memoryMiB) {
			if divided := l.on(model, s); !divided.IsZero() {
				all = append(all, m.share(s, divided, cmp.Or(l.gpus(), gpus, 1)))
			}
		}
	}
	return all
}

// share returns the share of a machine with a number of GPUs that are divided.
func (m migInstances) share(s Sharing, divided nodecontract.MIG, gpus int64) Share {
	instances := divided.Instances(gpus)
	// The GPUs may differ. Then the number is that of a GPU on average, rounded up.
	replicas := (divided.InstancesOf(gpus)*s.PodsPerInstance() + gpus - 1) / gpus
	return Share{Resource: m.named(s, instances[0].Profile), Least: replicas, Most: replicas, MIG: divided}
}

// on returns what GPUs of a model are divided into. It is zero if the layout does not fit on them.
func (l *MIGLayout) on(model mig.Model, s Sharing) nodecontract.MIG {
	if l.Profile != "" {
		return full(model, l.Profile, s)
	}
	var groups []nodecontract.MIGGroup
	for _, g := range l.groups() {
		for i := range g.Instances {
			g.Instances[i].MemoryMiB = model.InstanceMiB(g.Instances[i].Profile)
		}
		if !model.Holds(g.Instances) {
			return nodecontract.MIG{}
		}
		groups = append(groups, g)
	}
	divided := nodecontract.MIGOf(groups, s.PodsPerInstance())
	// As many instances of one profile as fit are the same as with the field profile.
	if of := divided.Instances(1); divided.GPUs() == 0 && len(of) == 1 && of[0].Count == model.Fit(of[0].Profile) {
		return full(model, of[0].Profile, s)
	}
	return divided
}

// full returns as many instances of a profile as fit, or zero if the model does not have the profile.
func full(model mig.Model, profile string, s Sharing) nodecontract.MIG {
	count := model.Fit(profile)
	if count == 0 {
		return nodecontract.MIG{}
	}
	return nodecontract.MIG{Profile: profile, Count: count, MemoryMiB: model.InstanceMiB(profile), Naming: string(s.MIGNaming())}
}

// groups returns the groups of a layout without a profile, for all GPUs or for some each.
func (l *MIGLayout) groups() []nodecontract.MIGGroup {
	if len(l.Groups) == 0 {
		return []nodecontract.MIGGroup{{Instances: instancesOf(l.Instances)}}
	}
	var groups []nodecontract.MIGGroup
	for i := range l.Groups {
		groups = append(groups, nodecontract.MIGGroup{GPUs: int64(l.Groups[i].GPUs), Instances: instancesOf(l.Groups[i].Instances)})
	}
	return groups
}

func instancesOf(all []MIGInstances) []nodecontract.MIGInstances {
	var out []nodecontract.MIGInstances
	for i := range all {
		out = append(out, nodecontract.MIGInstances{Profile: all[i].Profile, Count: int64(all[i].Count)})
	}
	return out
}

// gpus returns the number of GPUs of the machines that the layout is for, or 0 for any.
func (l *MIGLayout) gpus() int64 {
	n := int64(0)
	for i := range l.Groups {
		n += int64(l.Groups[i].GPUs)
	}
	return n
}

// Profiles returns the profiles of the layout's instances, each once. It has at least one, which is "" for an invalid layout.
func (l *MIGLayout) Profiles() []string {
	if l.Profile != "" {
		return []string{l.Profile}
	}
	var names []string
	for _, g := range l.groups() {
		for _, of := range g.Instances {
			if !slices.Contains(names, of.Profile) {
				names = append(names, of.Profile)
			}
		}
	}
	if len(names) == 0 {
		return []string{""}
	}
	return names
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
		if err := l.check(memory); err != nil {
			return fmt.Errorf("spec.sharing.mig.layouts[%d]: %w", i, err)
		}
		if s.MIGNaming() == MIGNamingSingle && l.Profile == "" {
			return fmt.Errorf("spec.sharing.mig.layouts[%d] has instances, and with naming Single pods could not tell them apart: set its profile, or use naming Mixed", i)
		}
		for j := range s.MIG.Layouts[:i] {
			switch before := &s.MIG.Layouts[j]; {
			case !before.meets(l):
			case s.sameLayout(before, l):
				return fmt.Errorf("spec.sharing.mig.layouts[%d] and [%d] are the same for %s: remove one", j, i, l.GPUName)
			case s.MIGNaming() == MIGNamingSingle:
				return fmt.Errorf("spec.sharing.mig.layouts[%d] and [%d] are both for %s, and with naming Single pods could not tell their instances apart: remove one, or use naming Mixed", j, i, l.GPUName)
			}
		}
	}
	return nil
}

func (l *MIGLayout) check(memoryMiB int64) error {
	switch forms := min(1, len(l.Profile)) + min(1, len(l.Instances)) + min(1, len(l.Groups)); {
	case forms == 0:
		return errors.New("it has no instances: set profile, instances or groups")
	case forms > 1:
		return errors.New("it has two of profile, instances and groups: keep one")
	case l.Profile != "":
		return mig.CheckLayout(l.GPUName, memoryMiB, l.Profile)
	}
	var of []mig.Model
	for i, g := range l.groups() {
		if len(l.Groups) > 0 && g.GPUs < 1 {
			return fmt.Errorf("groups[%d].gpus is %d, and is at least 1", i, g.GPUs)
		}
		if err := mig.CheckInstances(l.GPUName, memoryMiB, g.Instances); err != nil {
			if len(l.Groups) > 0 {
				err = fmt.Errorf("groups[%d]: %w", i, err)
			}
			return err
		}
		holds := slices.DeleteFunc(mig.Models(l.GPUName, memoryMiB), func(m mig.Model) bool { return !m.Holds(g.Instances) })
		if i > 0 {
			holds = slices.DeleteFunc(holds, func(m mig.Model) bool {
				return !slices.ContainsFunc(of, func(o mig.Model) bool { return o.MemoryMiB == m.MemoryMiB })
			})
		}
		if of = holds; len(of) == 0 {
			return fmt.Errorf("groups[%d] has profiles of another %s than the groups before", i, l.GPUName)
		}
	}
	return nil
}

// sameLayout reports whether two layouts divide a model equally.
func (s Sharing) sameLayout(a, b *MIGLayout) bool {
	return slices.ContainsFunc(mig.Models(a.GPUName, 0), func(m mig.Model) bool {
		if a.GPUMemoryMiB != nil && *a.GPUMemoryMiB != m.MemoryMiB || b.GPUMemoryMiB != nil && *b.GPUMemoryMiB != m.MemoryMiB {
			return false
		}
		on := a.on(m, s)
		return !on.IsZero() && on.Same(b.on(m, s))
	})
}

// meets reports whether two layouts may apply to the same GPUs.
func (l *MIGLayout) meets(other *MIGLayout) bool {
	return l.GPUName == other.GPUName && (l.GPUMemoryMiB == nil || other.GPUMemoryMiB == nil || *l.GPUMemoryMiB == *other.GPUMemoryMiB)
}
