package node

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/metrics"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/usage"
	"karve.sh/karve/pkg/nodecontract"
)

// lookForUse is how often the agent checks which pods use their GPUs. NVML remembers the processes of a GPU for longer than that.
const lookForUse = 5 * time.Second

const proc = "/proc"

// useWatch finds the pods that hold replicas, and which of them do not use them.
type useWatch struct {
	notes   usage.Notes
	holders plugin.PodResources
	pods    metrics.PodSource // It is nil if processes cannot be assigned to pods.
	every   time.Duration
	// written is the last written report of holders. writtenSlots is that of slots in use.
	written      nodecontract.HoldersReport
	writtenSlots string
	// exceeding finds the pods that use more memory than their slots have, if enforcement requires it.
	exceeding   usage.Exceeding
	enforcement atomic.Value
}

func newUseWatch(o Options) *useWatch {
	w := &useWatch{holders: plugin.PodResources{Socket: o.podResourcesSocket}, every: lookForUse}
	if o.podLogs != none {
		w.pods = metrics.LogFolders{Root: o.podLogs}
	}
	return w
}

// watchUse checks the use of GPUs until ctx ends. It starts when the Node has been read.
func (a *Agent) watchUse(ctx context.Context) {
	log := logr.FromContextOrDiscard(ctx)
	n, next := a.latestNode.get()
	for n.Metadata.ResourceVersion == "" {
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
		n, next = a.latestNode.get()
	}
	report, err := nodecontract.ParseUnused(n.Metadata.Annotations[nodecontract.UnusedSinceAnnotation])
	if err != nil {
		log.Info("What an earlier agent said of unused replicas is not understood, and taken away", "error", err.Error())
		err = a.writeUnused(ctx, report)
	}
	if err != nil {
		log.Info("The Node cannot be written", "error", err.Error())
	}
	var tracker usage.Tracker
	tracker.Adopt(report)
	for said := ""; ctx.Err() == nil; pause(ctx, a.use.every) {
		now := ""
		if err := a.observeUsage(ctx, &tracker); err != nil {
			now = err.Error()
		}
		if now != "" && now != said && ctx.Err() == nil {
			log.Info("Which pods use their GPUs cannot be told; trying again", "error", now)
		}
		said = now
	}
}

// observeUsage checks the use of GPUs once, if the driver answers. A GPU that does not answer counts as used.
func (a *Agent) observeUsage(ctx context.Context, tracker *usage.Tracker) error {
	devices, err := a.library.Devices()
	if errors.Is(err, gpu.ErrClosed) {
		return nil // It is being opened.
	}
	if err != nil {
		return err
	}
	holders, asked := a.use.holders.Holders(ctx)
	usages := map[string]gpu.Usage{}
	for _, d := range devices {
		if u, err := a.library.Usage(d.UUID); err == nil { // The library also records the reading.
			usages[d.UUID] = u
		}
	}
	seen := a.use.notes.Take(func(pids []int) map[int]string { return metrics.Users(proc, a.use.pods, pids) })
	now := time.Now().Round(0)
	var holds map[string][]string
	var said, written error
	if asked == nil {
		holds = gpusOf(holders, devices)
		said = a.writeHolders(ctx, holdersOf(now, devices, a.shares(), holders))
		a.watchMemory(ctx, now, devices, holders, usages)
	}
	tracker.Look(now, holds, seen)
	if report, due := tracker.Report(); due {
		if written = a.writeUnused(ctx, report); written == nil {
			tracker.Written(report)
		}
	}
	return errors.Join(asked, said, written)
}

// gpusOf returns, by pod, the UUIDs of the GPUs of which the pod holds replicas or MIG instances, each once. It is empty, not nil, if there are none.
func gpusOf(holders []plugin.Holder, devices []gpu.Device) map[string][]string {
	out := map[string][]string{}
	for _, h := range holders {
		gpus := out[h.Pod]
		for _, d := range devices {
			holds := func(id string) bool {
				of, _ := gpu.Find([]gpu.Device{d}, alloc.UUID(id))
				return of != nil
			}
			if !slices.Contains(gpus, d.UUID) && slices.ContainsFunc(h.Devices, holds) {
				gpus = append(gpus, d.UUID)
			}
		}
		out[h.Pod] = gpus
	}
	return out
}

func (a *Agent) writeUnused(ctx context.Context, r nodecontract.UnusedReport) error {
	var value any // The value nil removes the annotation.
	if text := r.String(); text != "" {
		value = text
	}
	return a.node.Patch(ctx, "", nodeapi.MergePatch, map[string]any{"metadata": map[string]any{"annotations": map[string]any{nodecontract.UnusedSinceAnnotation: value}}})
}
