package node

import (
	"context"
	"strings"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/nodecontract"
)

// pausedLabels are the labels by which the driver manager and the MIG manager of the GPU Operator ask clients to close the driver, with a value that
// begins with "paused-". The driver cannot be unloaded while any process has NVML open. The first label is for clients that are not part of the
// Operator, from version 26.7 on.
var pausedLabels = []string{"nvidia.com/gpu.deploy.client", "nvidia.com/gpu.deploy.device-plugin"}

// pausedBy returns the label of the Node that requests a pause, with its value, or "" if none does.
func pausedBy(n nodeapi.Node) string {
	for _, label := range pausedLabels {
		if value := n.Metadata.Labels[label]; strings.HasPrefix(value, "paused-") {
			return label + "=" + value
		}
	}
	return ""
}

func (a *Agent) paused() bool {
	n, _ := a.latestNode.get()
	return pausedBy(n) != ""
}

// waitOutPause waits until the driver may be opened. The GPUs are out of service from the start of the pause until the driver has been opened again.
func (a *Agent) waitOutPause(ctx context.Context, tracker *health.Tracker) {
	n, next := a.latestNode.get()
	why := pausedBy(n)
	if why == "" {
		return
	}
	_ = a.library.Shutdown() // It may be called more than once.
	a.outage.suspend()
	for _, uuid := range tracker.State().GPUs {
		a.setHealth(uuid, false)
	}
	c := health.Condition{
		Type: nodecontract.HardwareCondition, Status: "Unknown", Reason: nodecontract.ReasonPaused,
		Message: "The Node has the label " + why + ": the driver is closed, and its GPUs are out of service, until the label has another value",
	}
	logr.FromContextOrDiscard(ctx).Info("Paused", "label", why)
	a.report.events.tell(ctx, health.Event{Reason: c.Reason, Message: c.Message})
	a.report.driverAway(&c)
	for pausedBy(n) != "" {
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
		n, next = a.latestNode.get()
	}
	logr.FromContextOrDiscard(ctx).Info("Not paused any more; opening the driver")
}
