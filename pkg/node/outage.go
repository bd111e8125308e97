package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/nodecontract"
)

const (
	// outageGrace is how long the driver may be unavailable before its GPUs are taken out of service. A reloaded driver is back by then, and no pod that
	// is starting fails.
	outageGrace = 10 * time.Second
	// outagePatience is how long the driver may be unavailable before the agent exits. After systemd's daemon-reload, or if the device files were
	// recreated, only a new container can open them.
	outagePatience = 5 * time.Minute
)

// outage is a time during which the driver does not answer or was closed. Its timers run even while a call to the driver blocks.
type outage struct {
	grace, patience time.Duration
	// declare takes GPUs out of service, and giveUp ends the agent.
	declare func(gpus []string, why error)
	giveUp  func(why error)

	mu sync.Mutex
	// period numbers the outages. timers are the timers of the current outage, or nil if there is none.
	period int
	timers []*time.Timer
	why    error
	// out reports whether GPUs are out of service because of this outage or the previous one. told reports whether declare was called for this outage.
	out, told bool
}

// begin records that the driver does not answer and that the GPUs cannot be used. During an outage, it only updates why.
func (o *outage) begin(gpus []string, why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.why = why
	if o.timers != nil {
		return
	}
	o.period++
	o.told = false
	period, grace := o.period, o.grace
	if errors.Is(why, gpu.ErrHung) {
		grace = 0 // The call has already timed out.
	}
	after := func(d time.Duration, do func(why error)) *time.Timer {
		return time.AfterFunc(d, func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.timers != nil && o.period == period {
				do(o.why)
			}
		})
	}
	o.timers = []*time.Timer{
		after(grace, func(why error) {
			o.out, o.told = true, true
			o.declare(slices.Clone(gpus), why)
		}),
		after(o.patience, o.giveUp),
	}
}

// end ends the outage, and reports whether GPUs were out of service because of it.
func (o *outage) end() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, timer := range o.timers {
		timer.Stop()
	}
	out := o.out
	o.timers, o.out, o.told = nil, false, false
	return out
}

// declared reports whether the outage has lasted long enough to take GPUs out of service.
func (o *outage) declared() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.told
}

// suspend begins an outage that someone requested. It has no timers.
func (o *outage) suspend() {
	o.end()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.out = true
}

// driverLost takes all GPUs out of service.
func (a *Agent) driverLost(ctx context.Context, gpus []string, why error) {
	c := health.Condition{Type: nodecontract.HardwareCondition, Status: "False", Reason: nodecontract.ReasonDriverLost}
	if errors.Is(why, gpu.ErrHung) {
		c.Reason = nodecontract.ReasonDriverHung
	}
	c.Message = fmt.Sprintf("No GPU can be used: %s. See what `nvidia-smi` and `dmesg | grep NVRM` say on the machine, load the driver anew, and reboot the machine "+
		"when that does not help. karve-node goes on by itself when the driver is back, and starts anew after %s, so that its container is given the GPUs again.", strings.ReplaceAll(why.Error(), "\n", "; "), a.outage.patience)
	for _, uuid := range gpus {
		a.setHealth(uuid, false)
	}
	a.report.events.tell(ctx, health.Event{Warning: true, Reason: c.Reason, Message: c.Message})
	a.report.driverAway(&c)
}

// driverBack puts GPUs back in service, except those with a fault.
func (a *Agent) driverBack(ctx context.Context, tracker *health.Tracker, devices []gpu.Device) {
	for _, d := range devices {
		a.setHealth(d.UUID, tracker.Healthy(d.UUID))
	}
	a.report.driverAway(nil)
	a.report.events.tell(ctx, health.Event{Reason: health.ReasonDriverBack, Message: "The NVIDIA driver answers again"})
}
