package node

import (
	"context"
	"strings"
	"sync"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/nodecontract"
)

// pausedLabels are the labels by which the driver manager and the MIG manager of the GPU Operator ask clients to close the driver, with a value that
// begins with "paused-". The driver cannot be unloaded while any process has NVML open. The first label is for clients that are not part of the
// Operator, from version 26.7 on.
var pausedLabels = []string{"nvidia.com/gpu.deploy.client", "nvidia.com/gpu.deploy.device-plugin"}

// pausing tracks whether the Node's labels request a pause.
type pausing struct {
	mu      sync.Mutex
	why     string
	changed chan struct{}
}

// seen records the metadata of the Node, and reports whether a pause has begun.
func (p *pausing) seen(m nodeapi.Metadata) bool {
	why := ""
	for _, label := range pausedLabels {
		if value := m.Labels[label]; strings.HasPrefix(value, "paused-") {
			why = label + "=" + value
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	begun := p.why == "" && why != ""
	if p.why != why {
		p.why = why
		if p.changed != nil {
			close(p.changed)
		}
		p.changed = nil
	}
	return begun
}

// now returns the label that requests the pause, or "" if none does. The channel is closed when that changes.
func (p *pausing) now() (string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.why, p.changed
}

func (a *Agent) paused() bool {
	why, _ := a.pausing.now()
	return why != ""
}

// waitOut waits until the driver may be opened. The GPUs are out of service from the start of the pause until the driver has been opened again.
func (a *Agent) waitOut(ctx context.Context, tracker *health.Tracker) {
	why, changed := a.pausing.now()
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
	for why != "" {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		why, changed = a.pausing.now()
	}
	logr.FromContextOrDiscard(ctx).Info("Not paused any more; opening the driver")
}
