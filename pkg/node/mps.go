package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

// lookForMPS is how often the agent reads the status from the supervisor of the MPS daemons, and retries a configuration that waits for them.
const lookForMPS = time.Second

// waitForMPS is how long the agent waits for daemons after a change before it reports that they are missing.
const waitForMPS = 5 * time.Second

// applyError is an error with the reason for the sharing condition.
type applyError struct {
	reason string
	err    error
}

func (e *applyError) Error() string { return e.err.Error() }
func (e *applyError) Unwrap() error { return e.err }

// mpsWatch follows the MPS daemons of the GPUs that are shared with MPS.
type mpsWatch struct {
	dir string
	// inForce are the limits in the configuration in force.
	inForce []mps.Limits
	// changing are GPUs whose strategy is about to change.
	changing map[string]bool
	// down are GPUs whose daemons do not answer, with the reasons.
	down map[string]string
}

// prepare prepares the machine for a configuration before it is applied: the daemons that it needs answer, and GPUs that are shared without MPS allow
// several processes. Nobody holds a GPU while its strategy changes.
func (a *Agent) prepare(ctx context.Context, c sharing.Config, devices []gpu.Device) error {
	limits, err := c.Limits(devices)
	if err != nil {
		return nil //nolint:nilerr // Applying the configuration reports it.
	}
	was, err := mps.ReadWanted(a.mps.dir)
	if err != nil {
		return err
	}
	changing := strategyChanges(was, limits)
	if len(changing) > 0 {
		if err := a.nobodyHolds(ctx, changing); err != nil {
			a.mps.changing = nil
			a.updateDown()
			return err
		}
		a.mps.changing = changing // No pod may get a GPU in between.
		a.updateDown()
		if err := a.nobodyHolds(ctx, changing); err != nil {
			return err
		}
	}
	patience := time.Duration(0)
	if wanted := (mps.Wanted{GPUs: limits}); !slices.Equal(was.GPUs, limits) {
		if err := wanted.Write(a.mps.dir); err != nil {
			return err
		}
		patience = waitForMPS
	}
	for waited := time.Duration(0); ; waited += lookForMPS / 10 {
		err := a.daemonsReady(limits)
		if err == nil {
			err = a.checkComputeModes(c, devices)
		}
		if err == nil || waited >= patience || ctx.Err() != nil {
			return err
		}
		pause(ctx, lookForMPS/10)
	}
}

// daemonsReady returns an error if a daemon does not enforce its limits yet.
func (a *Agent) daemonsReady(limits []mps.Limits) error {
	if len(limits) == 0 {
		return nil
	}
	status, err := mps.ReadStatus(a.mps.dir)
	if err != nil {
		return &applyError{nodecontract.ReasonMPSDaemonDown, err}
	}
	if down := status.Unready(limits, time.Now()); len(down) > 0 {
		return &applyError{nodecontract.ReasonMPSDaemonDown, errors.New(reasons(down))}
	}
	return nil
}

// strategyChanges returns the GPUs that have an MPS daemon and will have none, and vice versa.
func strategyChanges(was mps.Wanted, limits []mps.Limits) map[string]bool {
	will := mps.Wanted{GPUs: limits}
	changing := map[string]bool{}
	for _, l := range append(slices.Clone(was.GPUs), limits...) {
		if was.Has(l.UUID) != will.Has(l.UUID) {
			changing[l.UUID] = true
		}
	}
	return changing
}

// nobodyHolds returns an error if pods hold replicas of the GPUs.
func (a *Agent) nobodyHolds(ctx context.Context, uuids map[string]bool) error {
	if a.options.podResourcesSocket == none {
		return nil
	}
	holders, err := a.use.holders.Holders(ctx)
	if err != nil {
		return &applyError{nodecontract.ReasonRefused, fmt.Errorf("the kubelet does not say which pods hold GPUs whose strategy is to change: %w", err)}
	}
	var devices []gpu.Device
	for _, uuid := range slices.Sorted(maps.Keys(uuids)) {
		devices = append(devices, gpu.Device{UUID: uuid})
	}
	for pod, gpus := range gpusOf(holders, devices) {
		if len(gpus) > 0 {
			return fmt.Errorf("a GPU changes between MPS and another strategy only when no pod holds it, and %s holds %s; delete the pod, or replace the node", pod, gpus[0])
		}
	}
	return nil
}

// checkComputeModes returns an error if a GPU that is shared without MPS allows only one process. The supervisor restores modes that it has changed.
func (a *Agent) checkComputeModes(c sharing.Config, devices []gpu.Device) error {
	resources, err := c.Resources(devices)
	if err != nil {
		return nil //nolint:nilerr // Applying the configuration reports it.
	}
	now, err := a.library.Devices()
	if err != nil {
		return nil //nolint:nilerr // Whoever watches the GPUs reports it.
	}
	for _, r := range resources {
		for _, g := range r.GPUs {
			i := slices.IndexFunc(now, func(d gpu.Device) bool { return d.UUID == g.UUID })
			if g.MPS == nil && (g.Replicas > 1 || g.SlotMiB > 0 || g.Instance != nil) && i >= 0 && now[i].ComputeMode == gpu.ComputeExclusiveProcess {
				return &applyError{nodecontract.ReasonComputeModeWrong, fmt.Errorf(
					"GPU %d (%s) has the compute mode EXCLUSIVE_PROCESS, as for MPS, and is to be shared without MPS: run the pod of the MPS daemons, which resets it, or `nvidia-smi -i %d -c DEFAULT`",
					g.Index, g.UUID, g.Index)}
			}
		}
	}
	return nil
}

// applied records that a configuration is in force.
func (a *Agent) applied(c sharing.Config, devices []gpu.Device) {
	a.use.enforcement.Store(c.Sharing.Slots.Enforcement)
	a.mps.inForce, _ = c.Limits(devices) // It has just been applied.
	a.mps.changing = nil
	a.updateDown()
}

func (a *Agent) updateDown() {
	down := map[string]bool{}
	for uuid := range a.mps.down {
		down[uuid] = true
	}
	for uuid := range a.mps.changing {
		down[uuid] = true
	}
	a.manager.SetDown(down)
}

// watchMPS checks whether the daemons of the configuration in force answer. Replicas of a GPU whose daemon does not answer are unhealthy.
func (a *Agent) watchMPS(ctx context.Context) {
	if len(a.mps.inForce) == 0 && len(a.mps.down) == 0 {
		return
	}
	status, err := mps.ReadStatus(a.mps.dir)
	if err != nil {
		logr.FromContextOrDiscard(ctx).Info("What the supervisor of the MPS daemons reports cannot be read", "error", err.Error())
	}
	down := status.Down(a.mps.inForce, time.Now())
	was := a.mps.down
	a.mps.down = down
	if !slices.Equal(slices.Sorted(maps.Keys(was)), slices.Sorted(maps.Keys(down))) {
		a.updateDown()
		for uuid, why := range down {
			if _, known := was[uuid]; !known {
				a.report.events.tell(ctx, health.Event{Warning: true, Reason: nodecontract.ReasonMPSDaemonDown, Message: "GPU " + uuid + " takes no pods: " + why})
			}
		}
		for uuid := range was {
			if _, still := down[uuid]; !still {
				a.report.events.tell(ctx, health.Event{Reason: "MPSDaemonBack", Message: "The MPS daemon of GPU " + uuid + " answers; it takes pods again"})
			}
		}
	}
	a.report.mpsDown(reasons(down))
}

// reasons returns a sentence for each GPU, or "" for none.
func reasons(down map[string]string) string {
	var all []string
	for _, uuid := range slices.Sorted(maps.Keys(down)) {
		all = append(all, "GPU "+uuid+": "+down[uuid])
	}
	return strings.Join(all, "; ")
}
