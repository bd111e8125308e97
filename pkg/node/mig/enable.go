package mig

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/gpu"
)

// enable turns the MIG mode of the GPUs on. If that needs a reset which fails, it reboots the machine once.
func (m *Machine) enable(ctx context.Context, gpus []*state) error {
	var reset []*state
	for _, s := range gpus {
		if s.on {
			continue
		}
		err := error(nil)
		if !s.pending {
			err = m.Driver.EnableMIG(s.UUID)
		}
		if err == nil {
			s.on, s.pending, err = m.Driver.MIGMode(s.UUID)
		}
		switch {
		case errors.Is(err, gpu.ErrInUse):
			return pendingError("the driver does not turn MIG on while something has the GPU open: %s%s", err, m.openers(s))
		case errors.Is(err, gpu.ErrResetRequired) || err == nil && !s.on:
			reset = append(reset, s)
		case err != nil:
			return refusedError("MIG cannot be turned on: %s", err)
		}
	}
	if len(reset) == 0 {
		return nil
	}
	return m.reset(ctx, reset)
}

// openers names the processes that have a GPU open, for messages.
func (m *Machine) openers(s *state) string {
	var names []string
	for _, user := range m.Users([]int{s.Minor}) {
		names = append(names, user.String())
	}
	if len(names) == 0 {
		return ""
	}
	return "; open it has " + strings.Join(names, ", ") + ": stop it until the node is ready, as DaemonSets that monitor GPUs"
}

// reset resets GPUs whose MIG mode is pending.
func (m *Machine) reset(ctx context.Context, gpus []*state) error {
	var uuids []string
	for _, s := range gpus {
		uuids = append(uuids, s.UUID)
	}
	_ = m.Driver.Shutdown() // It is opened again below.
	failed := m.Reset(ctx, uuids)
	if _, err := m.Driver.Init(); err != nil {
		return pendingError("the NVIDIA driver does not answer after a reset of its GPUs: %s", err)
	}
	if _, err := m.Driver.Devices(); err != nil {
		return pendingError("the NVIDIA driver does not answer after a reset of its GPUs: %s", err)
	}
	for _, s := range gpus {
		var err error
		if s.on, s.pending, err = m.Driver.MIGMode(s.UUID); err != nil {
			return pendingError("%s does not answer after a reset: %s", s.name(), err)
		}
	}
	if allGPUs(gpus, func(s *state) bool { return s.on }) {
		return nil
	}
	if failed == nil {
		failed = errors.New("MIG is still off after the reset")
	}
	return m.reboot(ctx, gpus[0], failed)
}

// reboot reboots the machine unless it has already been rebooted for this. It always returns a *Failure.
func (m *Machine) reboot(ctx context.Context, s *state, failed error) error {
	why := fmt.Sprintf("%s turns MIG on when it is reset, and a reset failed (%s)", s.name(), failed)
	was, err := m.Note.read()
	switch {
	case err != nil:
		return pendingError("%s: reboot the machine; it is not known whether it was: %s", why, err)
	case was != nil && was.Boot != m.Note.Boot:
		return pendingError("%s. The machine was rebooted, and MIG is still off: replace it", why)
	case was != nil:
		return pendingError("%s. The machine was asked at %s to reboot: reboot it if it does not", why, was.At.UTC().Format(time.RFC3339))
	case m.Reboot == nil || m.Note.Boot == "":
		return pendingError("%s: drain the node and reboot it, or replace it", why)
	}
	if err := m.Note.write(); err != nil {
		return pendingError("%s: reboot the machine; it is not done because it cannot be noted: %s", why, err)
	}
	logr.FromContextOrDiscard(ctx).Info("Rebooting the machine, once", "reason", why)
	if err := m.Reboot(ctx); err != nil {
		return pendingError("%s, and the machine cannot be asked to reboot (%s): reboot it", why, err)
	}
	return pendingError("%s. The machine reboots, once", why)
}
