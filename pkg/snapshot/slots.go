package snapshot

import (
	"cmp"
	"fmt"
	"slices"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// SlotsOf returns the sizes in MiB of the slots that a pod of the view needs. The pod may be a placeholder for headroom.
func (v *View) SlotsOf(name string) []int64 {
	if pod := v.Pods[name]; pod != nil {
		return facts.SlotSizes(pod)
	}
	for i := range v.Reserves {
		r := &v.Reserves[i]
		if _, found := slices.BinarySearch(r.Class.Pods, name); !found {
			continue
		}
		if r.waiting != nil {
			return facts.SlotSizes(r.waiting.pod())
		}
		if mib := r.Class.GPUMemoryBytes / facts.BytesPerMiB; mib > 0 {
			return []int64{mib}
		}
	}
	return nil
}

// PromisedSlots returns the slots that the machine of a launch promises: those of its pods, on the GPUs on which the plan places them.
func (v *View) PromisedSlots(launch planner.Launch) nodecontract.Slots {
	o := v.Offerings[launch.Offering]
	slots := o.Share.Slots
	if slots.IsZero() {
		return slots
	}
	slots.GPUs = make([][]int64, o.Type.GPU.Count)
	for i := range slots.GPUs {
		slots.GPUs[i] = make([]int64, len(slots.SizesMiB))
	}
	for i, name := range launch.Pods {
		on := 0
		if launch.GPUs != nil {
			on = max(0, launch.GPUs[i])
		}
		for _, mib := range v.SlotsOf(name) {
			if s := slots.Index(mib); s >= 0 && on < len(slots.GPUs) {
				slots.GPUs[on][s]++
			}
		}
	}
	return slots
}

// CanarySlots returns the slots that a canary of the offering promises, which runs no workloads: one of the smallest on each GPU.
func (o *Offering) CanarySlots() nodecontract.Slots {
	slots := o.Share.Slots
	if slots.IsZero() {
		return slots
	}
	one := make([]int64, len(slots.SizesMiB))
	one[0] = 1
	slots.GPUs = slices.Repeat([][]int64{one}, int(o.Type.GPU.Count))
	return slots
}

// slotProblem returns why no machine of the pool could have one of the sizes, or "" if there is no problem.
func (p *Pool) slotProblem() string {
	slots := p.Class.Spec.Sharing.MemorySlots()
	if slots.IsZero() || len(p.Offerings) == 0 {
		return ""
	}
	largest := slices.MaxFunc(p.Offerings, func(a, b Offering) int { return cmp.Compare(a.Type.GPU.UsableMiB(), b.Type.GPU.UsableMiB()) }).Type
	has := slots.CapacityMiB(largest.GPU.UsableMiB())
	var above []int64
	for _, mib := range slots.SizesMiB {
		if mib > has {
			above = append(above, mib)
		}
	}
	if len(above) == 0 {
		return ""
	}
	return fmt.Sprintf("no GPU that the NodePool allows has slots of %s: the largest, the %s of %s, has %s for slots, beside spec.sharing.memory.reserve of %s %s; remove the sizes, or allow instance types with larger GPUs",
		records.JoinedSizes(above), largest.GPU.Name, largest.Name, records.JoinedSizes([]int64{has}), v1alpha1.Kind, p.Class.Name)
}
