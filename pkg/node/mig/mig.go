// Package mig divides the GPUs of a machine into MIG instances, as promised when the machine was launched. It does so before any pod runs, and changes
// nothing that is in use.
package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
	profiles "karve.sh/karve/pkg/nodecontract/mig"
)

// Driver divides GPUs. Package nvml implements it.
type Driver interface {
	Init() (gpu.Driver, error)
	Shutdown() error
	Devices() ([]gpu.Device, error)
	Usage(uuid string) (gpu.Usage, error)
	// Geometry returns the profiles of a GPU, and where their instances can be placed.
	Geometry(uuid string) (profiles.Geometry, error)
	// MIGMode returns whether MIG is on for a GPU, and whether it will be after the next reset.
	MIGMode(uuid string) (now, pending bool, err error)
	// EnableMIG turns the MIG mode on. The error may be gpu.ErrInUse or gpu.ErrResetRequired.
	EnableMIG(uuid string) error
	// GPUInstances returns the instances of a GPU.
	GPUInstances(uuid string) ([]gpu.GPUInstance, error)
	// Create creates an instance with all of its compute. Destroy removes one.
	Create(uuid string, at profiles.Placement) error
	Destroy(uuid string, id int) error
}

// Machine is a machine whose GPUs are to be divided.
type Machine struct {
	Driver Driver
	// Pods returns the pods that hold devices of GPUs, by the UUID of the GPU or the instance.
	Pods func(ctx context.Context) (map[string]string, error)
	// Users returns the processes that have device files of the GPUs open, given the minor numbers of the files.
	Users func(minors []int) []User
	// Reset resets GPUs while the driver is closed.
	Reset func(ctx context.Context, uuids []string) error
	// Reboot requests a reboot of the machine. It is nil if a reboot is not allowed because pods may run on the machine.
	Reboot func(ctx context.Context) error
	// Note records that the machine was rebooted.
	Note Note
	// Files creates the device files of the instances on the machine.
	Files func() error
}

// ErrHeld means that pods hold GPUs that are not divided as promised. Nothing is changed.
var ErrHeld = errors.New("pods hold GPUs")

// Failure is why GPUs are not divided.
type Failure struct { //nolint:errname // It is the reason of a condition as well.
	// Reason is the reason of the Node's condition nodecontract.SharingCondition.
	Reason  string
	Message string
}

func (p *Failure) Error() string { return p.Message }

func refusedError(format string, args ...any) error {
	return &Failure{nodecontract.ReasonRefused, fmt.Sprintf(format, args...)}
}

func pendingError(format string, args ...any) error {
	return &Failure{nodecontract.ReasonMIGModePending, fmt.Sprintf(format, args...)}
}

// state is the current state of a GPU.
type state struct {
	gpu.Device
	geometry    profiles.Geometry
	on, pending bool // The MIG mode now, and after the next reset.
	instances   []gpu.GPUInstance
	// wanted are the instances that the GPU is to have.
	wanted []nodecontract.MIGInstances
}

func (s *state) name() string { return fmt.Sprintf("GPU %d (%s)", s.Index, s.Product) }

// Divide divides the GPUs as wanted. It returns nil on success, ErrHeld, or a *Failure.
func (m *Machine) Divide(ctx context.Context, wanted nodecontract.MIG) error {
	if _, err := m.Driver.Init(); err != nil {
		return &Failure{nodecontract.ReasonNone, "the NVIDIA driver does not answer: " + err.Error()}
	}
	defer func() { _ = m.Driver.Shutdown() }() // Nobody can handle the error.
	gpus, err := m.read(wanted)
	if err != nil {
		return err
	}
	if !allGPUs(gpus, (*state).divided) {
		if err := m.change(ctx, gpus); err != nil {
			return err
		}
		if err := m.verify(wanted); err != nil {
			return err
		}
		logr.FromContextOrDiscard(ctx).Info("Divided the GPUs", "gpus", len(gpus), "into", wanted.Describe())
	}
	m.Note.Clear()
	if err := m.Files(); err != nil {
		return refusedError("the device files of the MIG instances cannot be created: %s", err)
	}
	return nil
}

// read reads the GPUs, and decides which instances each is to have.
func (m *Machine) read(wanted nodecontract.MIG) ([]*state, error) {
	devices, err := m.Driver.Devices()
	if err == nil && len(devices) == 0 {
		err = errors.New("it lists no GPU")
	}
	if err != nil {
		return nil, &Failure{nodecontract.ReasonNone, "the NVIDIA driver does not answer: " + err.Error()}
	}
	gpus := make([]*state, 0, len(devices))
	for _, d := range devices {
		s := &state{Device: d}
		if d.MIGCapable {
			if err := m.readMIG(s); err != nil {
				return nil, refusedError("%s", err)
			}
		}
		gpus = append(gpus, s)
	}
	assigned, err := wanted.Assign(len(gpus), func(i int) map[string]int64 { return gpus[i].profiles() })
	if err != nil {
		return nil, refusedError("the GPUs cannot be divided: %s", err)
	}
	for i, s := range gpus {
		s.wanted = assigned[i]
	}
	return gpus, nil
}

func (m *Machine) readMIG(s *state) (err error) {
	if s.on, s.pending, err = m.Driver.MIGMode(s.UUID); err != nil {
		return err
	}
	if s.geometry, err = m.Driver.Geometry(s.UUID); err != nil {
		return err
	}
	if s.on {
		s.instances, err = m.Driver.GPUInstances(s.UUID)
	}
	return err
}

func allGPUs(gpus []*state, is func(*state) bool) bool {
	return !slices.ContainsFunc(gpus, func(s *state) bool { return !is(s) })
}

// profiles returns the number of instances of each profile that the GPU has.
func (s *state) profiles() map[string]int64 {
	has := map[string]int64{}
	for _, p := range s.instances {
		has[p.Profile]++
	}
	return has
}

// divided reports whether the GPU is divided as wanted.
func (s *state) divided() bool {
	return s.on && nodecontract.SameInstances(s.wanted, s.profiles()) && !slices.ContainsFunc(s.instances, func(p gpu.GPUInstance) bool { return !p.Whole })
}

// places returns the placements of the wanted instances. It returns an error if the GPU cannot be divided that way, or if it has other instances.
func (s *state) places() ([]profiles.Placement, error) {
	if !s.MIGCapable {
		return nil, refusedError("%s cannot be divided into MIG instances", s.name())
	}
	wanted := nodecontract.DescribeInstances(s.wanted)
	places, err := s.geometry.Place(profiles.Profiles(s.wanted))
	if err != nil {
		return nil, refusedError("%s cannot have %s: %s", s.name(), wanted, err)
	}
	if foreign := s.foreign(); len(foreign) > 0 {
		return nil, refusedError("%s has MIG instances that nobody planned (%s), where %s were promised: remove them with `nvidia-smi mig -dci -i %d` and `nvidia-smi mig -dgi -i %d`, "+
			"and keep off the node what makes them; or replace the node", s.name(), strings.Join(foreign, ", "), wanted, s.Index, s.Index)
	}
	return places, nil
}

// foreign describes the instances that are not wanted. They are not those of an earlier attempt, which are removed and made again.
func (s *state) foreign() []string {
	wanted := map[string]int64{}
	for _, of := range s.wanted {
		wanted[of.Profile] = of.Count
	}
	var foreign, many []string
	has := s.profiles()
	for _, p := range s.instances {
		if wanted[p.Profile] == 0 {
			foreign = append(foreign, fmt.Sprintf("%s at memory slice %d", p.Profile, p.Start))
		}
	}
	for _, of := range s.wanted {
		if n := has[of.Profile]; n > of.Count {
			many = append(many, fmt.Sprintf("%d instances %s", n, of.Profile))
		}
	}
	return append(foreign, many...)
}

// change divides those GPUs that are not divided as wanted, after it has checked that nobody uses them.
func (m *Machine) change(ctx context.Context, gpus []*state) error {
	gpus = slices.DeleteFunc(slices.Clone(gpus), (*state).divided)
	places := make([][]profiles.Placement, len(gpus))
	for i, s := range gpus {
		var err error
		if places[i], err = s.places(); err != nil {
			if held := m.held(ctx, gpus); errors.Is(held, ErrHeld) {
				return held // The agent reports the problem, and serves what pods hold.
			}
			return err
		}
	}
	if err := m.unused(ctx, gpus); err != nil {
		return err
	}
	if err := m.enable(ctx, gpus); err != nil {
		return err
	}
	for i, s := range gpus {
		if err := m.divide(s, places[i]); err != nil {
			return err
		}
	}
	return nil
}

// held returns ErrHeld if pods hold one of the GPUs.
func (m *Machine) held(ctx context.Context, gpus []*state) error {
	pods, err := m.Pods(ctx)
	if err != nil {
		return pendingError("the kubelet does not say which pods hold GPUs: %s", err)
	}
	for uuid, pod := range pods {
		for _, s := range gpus {
			if d, _ := gpu.Find([]gpu.Device{s.Device}, uuid); d != nil {
				return fmt.Errorf("%w: %s holds %s of %s", ErrHeld, pod, uuid, s.name())
			}
		}
	}
	return nil
}

// unused returns an error if a pod holds one of the GPUs, or a process computes on it.
func (m *Machine) unused(ctx context.Context, gpus []*state) error {
	if err := m.held(ctx, gpus); err != nil {
		return err
	}
	for _, s := range gpus {
		u, err := m.Driver.Usage(s.UUID)
		if err != nil {
			return pendingError("%s cannot be read: %s", s.name(), err)
		}
		for _, p := range u.Processes {
			if p.MemoryMiB >= 0 || p.SMPercent != 0 { // Others have ended.
				return pendingError("process %d uses %s, which is to be divided: end it", p.PID, s.name())
			}
		}
		for _, user := range m.Users([]int{s.Minor}) {
			if user.Computes {
				return pendingError("%s uses %s, which is to be divided: end it", user, s.name())
			}
		}
	}
	return nil
}

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

// divide creates the instances of a GPU. It first removes those that an earlier attempt has left.
func (m *Machine) divide(s *state, places []profiles.Placement) error {
	for _, p := range s.instances {
		if err := m.Driver.Destroy(s.UUID, p.ID); err != nil {
			if errors.Is(err, gpu.ErrInUse) {
				return pendingError("%s%s", err, m.openers(s))
			}
			return refusedError("%s", err)
		}
	}
	for _, at := range places {
		if err := m.Driver.Create(s.UUID, at); err != nil {
			return refusedError("%s", err)
		}
	}
	return nil
}

// verify returns an error if the driver does not list the GPUs as wanted, including the names that containers are given.
func (m *Machine) verify(wanted nodecontract.MIG) error {
	gpus, err := m.read(wanted)
	if err != nil {
		return err
	}
	devices := make([]gpu.Device, 0, len(gpus))
	for _, s := range gpus {
		devices = append(devices, s.Device)
	}
	if err := Check(devices, wanted); err != nil {
		return refusedError("%s", err)
	}
	for _, s := range gpus {
		if !s.divided() {
			return refusedError("%s has other MIG instances than were just created", s.name())
		}
	}
	return nil
}

// Check returns an error if the GPUs of a machine do not have exactly the promised instances.
func Check(devices []gpu.Device, wanted nodecontract.MIG) error {
	assigned, err := wanted.Assign(len(devices), func(i int) map[string]int64 { return profilesOf(&devices[i]) })
	if err != nil {
		return err
	}
	for i := range devices {
		if err := checkInstances(&devices[i], assigned[i]); err != nil {
			return err
		}
	}
	return nil
}

func profilesOf(d *gpu.Device) map[string]int64 {
	has := map[string]int64{}
	for _, p := range d.Instances {
		has[p.Profile]++
	}
	return has
}

func checkInstances(d *gpu.Device, wanted []nodecontract.MIGInstances) error {
	has := profilesOf(d)
	if nodecontract.SameInstances(wanted, has) {
		return nil
	}
	var list, seen []string
	for _, p := range d.Instances {
		if !slices.Contains(seen, p.Profile) {
			seen = append(seen, p.Profile)
			list = append(list, fmt.Sprintf("%d instances %s", has[p.Profile], p.Profile))
		}
	}
	what := "is not divided"
	switch {
	case len(list) > 0:
		what = "has " + strings.Join(list, ", ")
	case d.MIG:
		what = "has no MIG instances, or this container was started before they were made"
	}
	return fmt.Errorf("GPU %d (%s) %s, and %s were promised", d.Index, d.Product, what, nodecontract.DescribeInstances(wanted))
}
