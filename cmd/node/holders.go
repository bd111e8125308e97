package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/nodecontract"
)

// holdersOf returns the report of which pods hold which replicas. Devices of other plugins are left out.
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

// heldGPU adds to a GPU or a MIG instance how it is shared and which containers hold it.
func heldGPU(g nodecontract.HeldGPU, shares map[string]plugin.Share, holders []plugin.Holder) nodecontract.HeldGPU {
	share := shares[g.UUID]
	g.Replicas, g.Health = share.Total, nodecontract.GPUInService
	switch {
	case share.Unhealthy:
		g.Health = nodecontract.GPUOutOfService
	case share.Cordoned:
		g.Health = nodecontract.GPUCordoned
	}
	for _, h := range holders {
		holds := nodecontract.GPUHolder{Pod: h.Pod, Container: h.Container}
		n := 0
		for _, id := range h.Devices {
			uuid, replica, shared := alloc.Parse(id)
			if uuid != g.UUID {
				continue
			}
			n++
			if shared {
				holds.IDs = append(holds.IDs, replica)
			}
		}
		if n > 0 {
			slices.Sort(holds.IDs)
			g.Held += n
			g.Holders = append(g.Holders, holds)
		}
	}
	slices.SortFunc(g.Holders, func(a, b nodecontract.GPUHolder) int {
		return cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(a.Container, b.Container))
	})
	return g
}

// sayHolders writes the report of holders to the Node if it has changed or was not confirmed for nodecontract.HoldersBeat.
func (a *agent) sayHolders(ctx context.Context, r nodecontract.HoldersReport) error {
	age := r.AsOf.Sub(a.use.said.AsOf)
	if a.use.said.SameHolders(r) && age >= 0 && age < nodecontract.HoldersBeat {
		return nil
	}
	err := a.node.Patch(ctx, "", nodeapi.MergePatch, map[string]any{"metadata": map[string]any{"annotations": map[string]any{nodecontract.HoldersAnnotation: r.String()}}})
	if err == nil {
		a.use.said = r
	}
	return err
}
