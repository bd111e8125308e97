package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-logr/logr"

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

// useWatch finds the pods that hold replicas without using them.
type useWatch struct {
	notes   usage.Notes
	holders plugin.PodResources
	pods    metrics.PodSource // It is nil if processes cannot be assigned to pods.
	// earlier receives the annotation as it was when the agent started.
	earlier chan string
	every   time.Duration
}

func newUseWatch(o options) *useWatch {
	w := &useWatch{holders: plugin.PodResources{Socket: o.podResourcesSocket}, earlier: make(chan string, 1), every: lookForUse}
	if o.podLogs != none {
		w.pods = metrics.LogFolders{Root: o.podLogs}
	}
	return w
}

// seen takes the metadata of the Node.
func (w *useWatch) seen(m nodeapi.Metadata) {
	select {
	case w.earlier <- m.Annotations[nodecontract.UnusedSinceAnnotation]:
	default:
	}
}

// watchUse checks the use of GPUs until ctx ends. It starts when the Node has been read.
func (a *agent) watchUse(ctx context.Context) {
	log := logr.FromContextOrDiscard(ctx)
	var tracker usage.Tracker
	select {
	case <-ctx.Done():
		return
	case annotation := <-a.use.earlier:
		report, err := nodecontract.ParseUnused(annotation)
		if err != nil {
			log.Info("What an earlier agent said of unused replicas is not understood, and taken away", "error", err.Error())
			err = a.sayUnused(ctx, report)
		}
		if err != nil {
			log.Info("The Node cannot be written", "error", err.Error())
		}
		tracker.Adopt(report)
	}
	for said := ""; ctx.Err() == nil; pause(ctx, a.use.every) {
		now := ""
		if err := a.lookForUse(ctx, &tracker); err != nil {
			now = err.Error()
		}
		if now != "" && now != said && ctx.Err() == nil {
			log.Info("Which pods use their GPUs cannot be told; trying again", "error", now)
		}
		said = now
	}
}

// lookForUse checks the use of GPUs once, if the driver answers. A GPU that does not answer counts as used.
func (a *agent) lookForUse(ctx context.Context, tracker *usage.Tracker) error {
	devices, err := a.library.Devices()
	if errors.Is(err, gpu.ErrClosed) {
		return nil // It is being opened.
	}
	if err != nil {
		return err
	}
	holders, asked := a.use.holders.Holders(ctx)
	for _, d := range devices {
		_, _ = a.library.Usage(d.UUID) // The library records the reading.
	}
	seen := a.use.notes.Take(func(pids []int) map[int]string { return metrics.Users(proc, a.use.pods, pids) })
	tracker.Look(time.Now().Round(0), ofGPUs(holders, devices), seen)
	report, due := tracker.Report()
	if !due {
		return asked
	}
	written := a.sayUnused(ctx, report)
	if written == nil {
		tracker.Written(report)
	}
	return errors.Join(asked, written)
}

// ofGPUs removes the devices of other plugins.
func ofGPUs(holders map[string][]string, devices []gpu.Device) map[string][]string {
	for pod, ids := range holders {
		holders[pod] = slices.DeleteFunc(ids, func(id string) bool {
			return !slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.UUID == id })
		})
	}
	return holders
}

func (a *agent) sayUnused(ctx context.Context, r nodecontract.UnusedReport) error {
	var value any // The value nil removes the annotation.
	if text := r.String(); text != "" {
		value = text
	}
	return a.node.Patch(ctx, "", nodeapi.MergePatch, map[string]any{"metadata": map[string]any{"annotations": map[string]any{nodecontract.UnusedSinceAnnotation: value}}})
}
