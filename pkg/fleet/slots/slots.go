// Package slots decides which slots of device memory the GPUs of a machine offer. The package is pure.
package slots

import (
	"slices"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Change is a machine whose GPUs should have other slots.
type Change struct {
	Machine *records.Machine
	// Slots are the new slots.
	Slots nodecontract.Slots
	// Withdraws reports whether the change withdraws a free slot. Meanwhile the scheduler must not give it to a pod.
	Withdraws bool
}

// Changes returns the machines that lack free slots for the pods that a plan places there, and those whose slots do not fit because the cloud launched
// another type than planned or because a GPU has less memory than expected.
func Changes(view *snapshot.View, placements []planner.Placement) []Change {
	placed := map[string]*planner.Placement{}
	for i := range placements {
		placed[view.Nodes[placements[i].Node].Name] = &placements[i]
	}
	var all []Change
	for i := range view.Machines {
		m := &view.Machines[i]
		if m.Promise.Slots.IsZero() || m.Leaving() || m.SlotsChanging() {
			continue
		}
		gpus, seated := m.SlotGPUs()
		if len(gpus) == 0 {
			continue
		}
		want, withdraws := m.Promise.Slots, false
		want.GPUs, withdraws = layout(want, gpus, seated, neededSlots(view, placed[m.PlannerName()], want, len(gpus)))
		said := m.Node == nil || !m.Registered() || facts.PromiseOf(m.Node.Annotations).Slots.Equal(want)
		if !want.Equal(m.Promise.Slots) || !said {
			all = append(all, Change{m, want, withdraws && !m.AwaitsReplicas()}) // The scheduler binds no pods to a machine that is starting.
		}
	}
	return all
}

// neededSlots returns how many slots of each size the placed pods need on each GPU.
func neededSlots(view *snapshot.View, p *planner.Placement, slots nodecontract.Slots, gpus int) [][]int64 {
	need := make([][]int64, gpus)
	for i := range need {
		need[i] = make([]int64, len(slots.SizesMiB))
	}
	if p == nil {
		return need
	}
	for i, name := range p.Pods {
		on := 0
		if p.GPUs != nil {
			on = max(0, p.GPUs[i])
		}
		for _, mib := range view.SlotsOf(name) {
			if s := slots.Index(mib); s >= 0 && on < gpus {
				need[on][s]++
			}
		}
	}
	return need
}

// layout returns how many slots of each size each GPU should have, and whether it withdraws free ones. seated is how many slots of each size pods will
// hold without being known to hold one yet. need is how many slots more pods need, on GPUs where they fit.
//
// It changes as little as possible. It changes nothing if enough slots of each size are free on any GPU, since all slots of a size are equal to the
// scheduler. Otherwise it adds slots in unused memory. If that is not possible, it creates the needed slots where they are needed, and keeps as many of
// the others as fit.
func layout(slots nodecontract.Slots, gpus []records.GPUSlots, seated []int64, need [][]int64) (counts [][]int64, withdraws bool) {
	if free, ok := addedSlots(slots, gpus, seated, need); ok {
		return sumsByGPU(gpus, free), false
	}
	free := rebuiltSlots(slots, gpus, seated, need)
	for i := range gpus {
		for s, n := range free[i] {
			withdraws = withdraws || n < gpus[i].Free[s]
		}
	}
	return sumsByGPU(gpus, free), withdraws
}

// addedSlots returns the free slots together with the missing ones. It returns false if they do not fit.
func addedSlots(slots nodecontract.Slots, gpus []records.GPUSlots, seated []int64, need [][]int64) (free [][]int64, ok bool) {
	left := make([]int64, len(gpus))
	for i, g := range gpus {
		free = append(free, slices.Clone(g.Free))
		left[i] = g.CapacityMiB - slots.UsedMiB(g.Held) - slots.UsedMiB(g.Free)
		if left[i] < 0 && slots.UsedMiB(g.Free) > 0 {
			return nil, false
		}
	}
	for s, mib := range slices.Backward(slots.SizesMiB) { // Large slots first: they fit in fewer places.
		lack := seated[s]
		for i, g := range gpus {
			lack += need[i][s] - g.Free[s]
		}
		add := func(i int) {
			free[i][s]++
			left[i] -= mib
			lack--
		}
		for i, g := range gpus { // First on the GPUs for which the plan has the pods.
			for lack > 0 && free[i][s] < max(g.Free[s], need[i][s]) && left[i] >= mib {
				add(i)
			}
		}
		for lack > 0 {
			best := -1
			for i := range gpus {
				if left[i] >= mib && (best < 0 || left[i] < left[best]) {
					best = i
				}
			}
			if best < 0 {
				return nil, false
			}
			add(best)
		}
	}
	return free, true
}

// rebuiltSlots returns the needed free slots, on the GPUs where they are needed, and as many of the present ones as fit beside them.
func rebuiltSlots(slots nodecontract.Slots, gpus []records.GPUSlots, seated []int64, need [][]int64) (free [][]int64) {
	for i, g := range gpus {
		left := g.CapacityMiB - slots.UsedMiB(g.Held)
		own := make([]int64, len(slots.SizesMiB))
		fill := func(upTo func(s int) int64) {
			for s, mib := range slices.Backward(slots.SizesMiB) {
				for own[s] < upTo(s) && left >= mib {
					own[s]++
					left -= mib
				}
			}
		}
		fill(func(s int) int64 { return min(seated[s], g.Free[s]) }) // Which of them the pods will hold is unknown.
		fill(func(s int) int64 { return min(seated[s], g.Free[s]) + need[i][s] })
		fill(func(s int) int64 { return g.Free[s] })
		free = append(free, own)
	}
	return free
}

// sumsByGPU returns the slots that pods hold plus the free ones.
func sumsByGPU(gpus []records.GPUSlots, free [][]int64) [][]int64 {
	counts := make([][]int64, len(gpus))
	for i, g := range gpus {
		counts[i] = slices.Clone(free[i])
		for s, n := range g.Held {
			counts[i][s] += n
		}
	}
	return counts
}
