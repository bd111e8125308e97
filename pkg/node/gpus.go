package node

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/backoff"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/health"
)

// Why the driver is opened again.
var (
	errNoGPU  = errors.New("the NVIDIA driver is there, and lists no GPU")
	errReset  = errors.New("a GPU was reset")
	errPaused = errors.New("somebody wants to unload the driver")
	errFound  = errors.New("the driver lists other GPUs than before")
)

// lostBackoff is the longest interval between attempts to open a driver that was open before. It may return at any moment.
const lostBackoff = 2 * time.Second

// watchGPUs opens the driver, sends the GPUs to found, and follows their health, until ctx ends. It returns an error if the process must be restarted,
// or if FailOnInitError is set and the driver cannot be opened at first.
func (a *Agent) watchGPUs(ctx context.Context, found chan<- []gpu.Device) error {
	log := logr.FromContextOrDiscard(ctx)
	// Shutdown ends a wait for events, so that the agent does not have to wait for it.
	defer context.AfterFunc(ctx, func() { _ = a.library.Shutdown() })()
	defer a.outage.end()
	tracker := a.loadHealth(ctx)
	said, opened := "", false
	var retry backoff.Backoff
	for ctx.Err() == nil {
		a.waitOutPause(ctx, tracker)
		driver, devices, err := a.open(ctx)
		if err != nil && a.paused() {
			continue
		}
		if err != nil {
			if a.failOnInit.Load() && !opened || errors.Is(err, gpu.ErrRestart) {
				return err
			}
			if err.Error() != said {
				said = err.Error()
				log.Info("No GPUs yet; staying and trying again", "reason", said)
			}
			a.driverMissing(ctx, tracker, err)
			a.report.opened(driver, nil, err)
			if len(tracker.State().GPUs) > 0 {
				retry.Last = lostBackoff
			}
			pause(ctx, retry.Next())
			continue
		}
		said, opened, retry = "", true, backoff.Backoff{}
		log.Info("Found GPUs", "count", len(devices), "product", devices[0].Product, "driver", driver.Version)
		a.driverOpened(ctx, tracker, driver, devices)
		select {
		case found <- devices:
		case <-ctx.Done():
			return nil
		}
		err = a.followEvents(ctx, tracker, devices)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, gpu.ErrRestart) {
			return err
		}
		if errors.Is(err, errReset) || errors.Is(err, errPaused) || errors.Is(err, errFound) || a.paused() {
			continue
		}
		log.Info("The driver does not answer; opening it again", "error", err.Error())
		a.beginOutage(tracker, err)
		pause(ctx, reopenAfter)
	}
	_ = a.library.Shutdown() // No one can handle the error.
	return nil
}

// driverOpened handles a driver that was opened, and its GPUs.
func (a *Agent) driverOpened(ctx context.Context, tracker *health.Tracker, driver gpu.Driver, devices []gpu.Device) {
	out := a.outage.end()
	a.report.opened(driver, devices, nil)
	a.reportUnusable(ctx, tracker)
	a.reportChanges(ctx, tracker)(tracker.Reopened(devices, a.gpuAnswers, time.Now()))
	a.askDriver(ctx, tracker, devices)
	if out {
		a.driverBack(ctx, tracker, devices)
	}
}

// driverMissing handles a driver that cannot be opened, or that lists no GPU.
func (a *Agent) driverMissing(ctx context.Context, tracker *health.Tracker, err error) {
	a.reportUnusable(ctx, tracker)
	serving := a.beginOutage(tracker, err)
	gone := errors.Is(err, errNoGPU) || errors.Is(err, gpu.ErrLost)
	if serving && (!gone || !a.outage.declared()) {
		return // The GPUs may return soon.
	}
	if gone {
		a.outage.end()
		a.report.driverAway(nil) // The driver answers, but each GPU is lost.
		a.reportChanges(ctx, tracker)(tracker.Reopened(nil, a.gpuAnswers, time.Now()))
		return
	}
	if len(a.library.Unusable()) > 0 {
		a.report.condition(tracker.Condition())
	}
}

// beginOutage begins an outage of the GPUs that are in service, and reports whether there are any.
func (a *Agent) beginOutage(tracker *health.Tracker, err error) bool {
	serving := slices.DeleteFunc(tracker.State().GPUs, func(uuid string) bool { return !tracker.Healthy(uuid) })
	if len(serving) > 0 && !a.policy.Off() {
		a.outage.begin(serving, err)
	}
	return len(serving) > 0
}

// reportUnusable records the GPUs that the driver does not offer.
func (a *Agent) reportUnusable(ctx context.Context, tracker *health.Tracker) {
	for _, e := range tracker.SetUnusable(a.library.Unusable()) {
		a.report.events.tell(ctx, e)
	}
}

// loadHealth returns a tracker with the state that an earlier agent saved since the machine started.
func (a *Agent) loadHealth(ctx context.Context) *health.Tracker {
	log := logr.FromContextOrDiscard(ctx)
	if a.options.stateDir == none {
		return health.New(a.policy, a.store.Boot, health.State{})
	}
	state, err := a.store.Load()
	if err != nil {
		log.Error(err, "The GPUs are taken for broken until they are reset, the machine is, or somebody removes the file and restarts the agent")
	}
	tracker := health.New(a.policy, a.store.Boot, state)
	out := tracker.OutOfService()
	for _, uuid := range out {
		a.setHealth(uuid, false)
	}
	if len(out) > 0 {
		log.Info("Out of service since before this agent", "gpus", out)
		a.report.condition(tracker.Condition())
	}
	return tracker
}

// save saves the state for the next agent. If that fails, it is tried again with the next call.
func (a *Agent) save(ctx context.Context, tracker *health.Tracker) {
	state := tracker.State()
	if a.options.stateDir == none || a.unsaved == "" && reflect.DeepEqual(state, a.saved) {
		return
	}
	err := a.store.Save(state)
	if err == nil {
		a.saved, a.unsaved = state, ""
		return
	}
	if a.unsaved != err.Error() {
		a.unsaved = err.Error()
		logr.FromContextOrDiscard(ctx).Error(err, "The health of the GPUs is not saved: an agent that starts anew would take broken ones for good", "folder", a.store.Dir)
	}
}

// open opens the driver and lists its GPUs. If ctx ends, it returns without waiting for the driver, which may hang.
func (a *Agent) open(ctx context.Context) (gpu.Driver, []gpu.Device, error) {
	var driver gpu.Driver
	var devices []gpu.Device
	done := make(chan error, 1)
	go func() {
		var err error
		if driver, err = a.library.Init(); err != nil {
			done <- fmt.Errorf("the NVIDIA driver does not answer: %w", err)
			return
		}
		devices, err = a.library.Devices()
		if err == nil && len(devices) == 0 {
			err = errNoGPU
		}
		if err != nil {
			_ = a.library.Shutdown() // It is opened again soon.
		}
		done <- err
	}()
	select {
	case err := <-done:
		return driver, devices, err
	case <-ctx.Done():
		return gpu.Driver{}, nil, ctx.Err()
	}
}

// gpuAnswers reports whether the GPU can be read and the driver asks for nothing.
func (a *Agent) gpuAnswers(uuid string) bool {
	if _, err := a.library.Usage(uuid); err != nil {
		return false
	}
	r, err := a.library.Recovery(uuid)
	return err == nil && !a.policy.CountsRecovery(r)
}

// askDriver asks the driver what GPUs need. If it does not answer, Wait reports that.
func (a *Agent) askDriver(ctx context.Context, tracker *health.Tracker, devices []gpu.Device) {
	if a.policy.Off() {
		return
	}
	var changes []health.Change
	var events []health.Event
	for _, d := range devices {
		r, err := a.library.Recovery(d.UUID)
		if err != nil {
			r = gpu.RecoveryUnknown
		}
		a.report.exporter.Asked(d.UUID, r)
		changed, said := tracker.Ask(d.UUID, r, time.Now())
		changes, events = append(changes, changed...), append(events, said...)
	}
	a.reportChanges(ctx, tracker)(changes, events)
}

// followEvents waits for events until the driver does not answer or must be opened again. It returns the reason.
func (a *Agent) followEvents(ctx context.Context, tracker *health.Tracker, devices []gpu.Device) error {
	unusable, looked, asked := a.library.Unusable(), time.Now(), time.Now()
	for ctx.Err() == nil {
		a.save(ctx, tracker)
		if a.paused() {
			_ = a.library.Shutdown() // It has just been opened.
			return errPaused
		}
		if len(unusable) > 0 && time.Since(looked) >= lookForReset {
			looked = time.Now()
			if _, err := a.library.Devices(); err == nil && !slices.Equal(unusable, a.library.Unusable()) {
				_ = a.library.Shutdown() // It is opened again immediately.
				return errFound
			}
		}
		if a.takeResets(ctx, tracker) {
			a.save(ctx, tracker)
			_ = a.library.Shutdown() // It is opened again immediately.
			return errReset
		}
		if a.policy.Off() {
			pause(ctx, waitForEvents)
			continue
		}
		if time.Since(asked) >= waitForEvents {
			asked = time.Now()
			a.askDriver(ctx, tracker, devices)
		}
		event, ok, err := a.library.Wait(waitForEvents)
		if err != nil {
			_ = a.library.Shutdown() // It is opened again soon.
			return err
		}
		if ok {
			a.report.observe(event)
			if a.policy.Doubtful(event.XID) {
				a.askDriver(ctx, tracker, slices.DeleteFunc(slices.Clone(devices), func(d gpu.Device) bool { return event.UUID != "" && d.UUID != event.UUID }))
			}
			a.reportChanges(ctx, tracker)(tracker.Observe(event, time.Now()))
		}
	}
	return ctx.Err()
}

// reportChanges returns a function that reports changes to the kubelet, saves them, and writes events and conditions.
func (a *Agent) reportChanges(ctx context.Context, tracker *health.Tracker) func([]health.Change, []health.Event) {
	return func(changes []health.Change, events []health.Event) {
		for _, c := range changes {
			a.setHealth(c.UUID, c.Healthy)
		}
		a.save(ctx, tracker)
		for _, e := range events {
			a.report.events.tell(ctx, e)
		}
		a.report.condition(tracker.Condition())
	}
}
