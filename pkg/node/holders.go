package node

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/nodecontract"
)

// holdersOf returns the report of which pods hold which replicas. It leaves out devices of other plugins.
func holdersOf(now time.Time, devices []gpu.Device, shares map[string]plugin.Share, holders []plugin.Holder) nodecontract.HoldersReport {
	report := nodecontract.HoldersReport{AsOf: now.UTC().Truncate(time.Second)}
	for _, d := range devices {
		if len(d.Instances) == 0 {
			report.GPUs = append(report.GPUs, heldGPU(nodecontract.HeldGPU{UUID: d.UUID, Index: d.Index, Product: d.Product, MemoryMiB: d.MemoryMiB}, shares, holders))
		}
		for _, p := range d.Instances {
			report.GPUs = append(report.GPUs, heldGPU(nodecontract.HeldGPU{
				UUID: p.UUID, Index: d.Index, Product: d.Product, MemoryMiB: p.MemoryMiB, Instance: new(p.Index), Profile: p.Profile,
			}, shares, holders))
		}
	}
	return report
}

// heldGPU adds the sharing and the holders to a GPU or a MIG instance.
func heldGPU(g nodecontract.HeldGPU, shares map[string]plugin.Share, holders []plugin.Holder) nodecontract.HeldGPU {
	share := shares[g.UUID]
	g.Replicas, g.Health = share.Total, nodecontract.GPUInService
	switch {
	case share.Unhealthy:
		g.Health = nodecontract.GPUOutOfService
	case share.Cordoned:
		g.Health = nodecontract.GPUCordoned
	}
	held := map[int64]int{}
	for _, h := range holders {
		holds := nodecontract.GPUHolder{Pod: h.Pod, Container: h.Container}
		n := 0
		for _, id := range h.Devices {
			uuid, replica, shared := alloc.Parse(id)
			if uuid != g.UUID {
				continue
			}
			n++
			if mib, slot, ok := alloc.Slot(id); ok {
				holds.Slots = append(holds.Slots, nodecontract.SlotName(mib)+"-"+strconv.Itoa(slot))
				held[mib]++
			} else if shared {
				holds.IDs = append(holds.IDs, replica)
			}
		}
		if n > 0 {
			slices.Sort(holds.IDs)
			slices.Sort(holds.Slots)
			g.Held += n
			g.Holders = append(g.Holders, holds)
		}
	}
	for _, s := range share.Slots {
		g.Slots = append(g.Slots, nodecontract.HeldSlots{MiB: s.MiB, Held: held[s.MiB], Free: max(0, s.Held+s.Free-held[s.MiB])})
	}
	slices.SortFunc(g.Holders, func(a, b nodecontract.GPUHolder) int {
		return cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(a.Container, b.Container))
	})
	return g
}

// writeHolders writes the report of holders to the Node if it has changed or was not confirmed for nodecontract.HoldersBeat.
func (a *Agent) writeHolders(ctx context.Context, r nodecontract.HoldersReport) error {
	age, slots := r.AsOf.Sub(a.use.written.AsOf), slotsInUse(r)
	if a.use.written.SameHolders(r) && slots == a.use.writtenSlots && age >= 0 && age < nodecontract.HoldersBeat {
		return nil
	}
	annotations := map[string]any{nodecontract.HoldersAnnotation: r.String()}
	if slots != a.use.writtenSlots {
		annotations[nodecontract.SlotsInUseAnnotation] = slots
		if slots == "" {
			annotations[nodecontract.SlotsInUseAnnotation] = nil // This removes it.
		}
	}
	err := a.node.Patch(ctx, "", nodeapi.MergePatch, map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err == nil {
		a.use.written, a.use.writtenSlots = r, slots
	}
	return err
}

// slotsInUse returns the annotation with the slots that pods hold, or "" if the GPUs have none.
func slotsInUse(r nodecontract.HoldersReport) string {
	var in nodecontract.SlotsInUse
	for _, g := range r.GPUs {
		of := nodecontract.GPUSlotsInUse{MemoryMiB: g.MemoryMiB}
		if g.Health == nodecontract.GPUOutOfService {
			of.MemoryMiB = 0
		}
		in.SizesMiB = nil
		for _, s := range g.Slots {
			in.SizesMiB, of.Held = append(in.SizesMiB, s.MiB), append(of.Held, int64(s.Held))
		}
		in.GPUs = append(in.GPUs, of)
	}
	if len(in.SizesMiB) == 0 {
		return ""
	}
	return in.String()
}
