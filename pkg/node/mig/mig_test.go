//go:build cgo

package mig_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mig"
	"karve.sh/karve/pkg/node/nvml"
	fake "karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/pkg/nodecontract"
	profiles "karve.sh/karve/pkg/nodecontract/mig"
)

// world is a machine with fake GPUs that are divided. Its tests do not run in parallel, because a process has only one machine.
type world struct {
	t       *testing.T
	machine *fake.Machine
	mig.Machine
	held            map[string]string
	users           []mig.User
	resets, reboots int
	// resetFails is the error of resets.
	resetFails error
}

func newWorld(t *testing.T, profile fake.State) *world {
	t.Helper()
	path, machine := fake.Use(t, profile)
	w := &world{t: t, machine: machine}
	w.Machine = mig.Machine{
		Driver: nvml.New(nvml.Options{Library: path, Skipped: func(err error) { t.Log(err) }}),
		Pods:   func(context.Context) (map[string]string, error) { return w.held, nil },
		Users:  func([]int) []mig.User { return w.users },
		Reset: func(_ context.Context, uuids []string) error {
			w.resets++
			if w.resetFails == nil {
				for i, d := range machine.State.Devices {
					for _, uuid := range uuids {
						if d.UUID == uuid {
							w.must(fake.Reset(machine.Path, i))
						}
					}
				}
			}
			return w.resetFails
		},
		Reboot: func(context.Context) error { w.reboots++; return nil },
		Note:   mig.Note{Dir: filepath.Join(t.TempDir(), "state"), Boot: "first", Now: func() time.Time { return time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC) }},
		Files:  func() error { return nil },
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func promised(profile string, count int64) nodecontract.MIG {
	return nodecontract.MIG{Profile: profile, Count: count, Naming: nodecontract.MIGMixed}
}

// refuses divides and wants a failure with the words.
func (w *world) refuses(wanted nodecontract.MIG, reason string, words ...string) {
	w.t.Helper()
	err := w.Divide(w.t.Context(), wanted)
	var failure *mig.Failure
	if !errors.As(err, &failure) || failure.Reason != reason {
		w.t.Fatalf("%v, want a failure with the reason %s", err, reason)
	}
	for _, words := range words {
		if !strings.Contains(failure.Message, words) {
			w.t.Errorf("it says %q, want %q in it", failure.Message, words)
		}
	}
}

func (w *world) has(index int, want string) {
	w.t.Helper()
	if got := w.machine.Instances(w.t, index); got != want {
		w.t.Errorf("GPU %d has %q, want %q", index, got, want)
	}
}

func TestEightGPUsAreDividedBeforeAnyPodRuns(t *testing.T) {
	w := newWorld(t, fake.A100(8))
	began := time.Now()
	w.must(w.Divide(t.Context(), promised("1g.5gb", 7)))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	} else {
		t.Logf("8 GPUs in %s", took.Round(time.Millisecond))
	}
	for i := range 8 {
		w.has(i, "1g.5gb@0 1g.5gb@1 1g.5gb@2 1g.5gb@3 1g.5gb@4 1g.5gb@5 1g.5gb@6")
	}
	if w.resets != 1 || w.reboots != 0 {
		t.Errorf("%d resets and %d reboots", w.resets, w.reboots)
	}
	// The next boot finds MIG on, and no instances.
	w.machine.Reboot(t)
	w.has(3, "")
	w.must(w.Divide(t.Context(), promised("1g.5gb", 7)))
	w.has(3, "1g.5gb@0 1g.5gb@1 1g.5gb@2 1g.5gb@3 1g.5gb@4 1g.5gb@5 1g.5gb@6")
	if w.resets != 1 {
		t.Errorf("%d resets", w.resets)
	}
}

func TestWhatIsAsPromisedIsLeftAlone(t *testing.T) {
	w := newWorld(t, fake.H100(2))
	w.must(w.Divide(t.Context(), promised("3g.40gb", 2)))
	before, err := os.Stat(fake.MIGFile(w.machine.Path, 0))
	w.must(err)
	w.held = map[string]string{"GPU-other": "default/a"}
	w.users = []mig.User{{PID: 7, Name: "python3", Computes: true}}
	w.must(w.Divide(t.Context(), promised("3g.40gb", 2)))
	after, err := os.Stat(fake.MIGFile(w.machine.Path, 0))
	w.must(err)
	if !os.SameFile(before, after) || w.resets != 0 {
		t.Errorf("the instances were changed, with %d resets", w.resets)
	}
}

// TestEachLayoutOfEachModelIsMade makes each layout that the controller accepts.
func TestEachLayoutOfEachModelIsMade(t *testing.T) {
	for name, c := range map[string]struct {
		profile fake.State
		model   profiles.Model
	}{
		"A100": {fake.A100(1), profiles.Models("a100", 40960)[0]},
		"H100": {fake.H100(1), profiles.Models("h100", 0)[0]},
		"H200": {fake.H200(1), profiles.Models("h200", 0)[0]},
	} {
		for _, kind := range c.model.Kinds {
			t.Run(name+" "+kind.Profile, func(t *testing.T) {
				w := newWorld(t, c.profile)
				w.must(w.Divide(t.Context(), promised(kind.Profile, c.model.Fit(kind.Profile))))
				if n := len(strings.Fields(w.machine.Instances(t, 0))); int64(n) != c.model.Fit(kind.Profile) {
					t.Errorf("%d instances", n)
				}
				devices := w.devices()
				for _, p := range devices[0].Instances {
					if p.Profile != kind.Profile || p.MemoryMiB < c.model.InstanceMiB(kind.Profile) || p.ComputeSlices != kind.Slices {
						t.Errorf("%+v, and the controller counts %d MiB", p, c.model.InstanceMiB(kind.Profile))
					}
				}
			})
		}
	}
}

// TestDriverKnowsBetterThanThePlan divides a GPU whose profiles are not those that the controller plans with.
func TestDriverKnowsBetterThanThePlan(t *testing.T) {
	plan := profiles.Models("h200", 0)[0].Kind("1g.18gb")
	state := fake.H200(1)
	all := state.Devices[0].MIGProfiles
	all[0].Starts, all[0].Count = []int{1, 2, 3, 4, 5, 6, 7}, 6
	if all[0].Name != plan.Profile || slices.Equal(all[0].Starts, plan.Starts) || all[0].Count == plan.Most {
		t.Fatalf("the driver does not differ: %+v", all[0])
	}
	w := newWorld(t, state)
	w.refuses(promised("1g.18gb", 7), nodecontract.ReasonRefused, "GPU 0", "7 instances 1g.18gb do not fit, at most 6 do")
	w.has(0, "")
	w.must(w.Divide(t.Context(), promised("1g.18gb", 6)))
	w.has(0, "1g.18gb@1 1g.18gb@2 1g.18gb@3 1g.18gb@4 1g.18gb@5 1g.18gb@6")

	w = newWorld(t, fake.H200(1))
	w.refuses(promised("1g.19gb", 7), nodecontract.ReasonRefused, "there is no profile 1g.19gb; there is 1g.18gb, ")
}

func (w *world) devices() []gpu.Device {
	w.t.Helper()
	_, err := w.Driver.Init()
	w.must(err)
	defer func() { _ = w.Driver.Shutdown() }()
	devices, err := w.Driver.Devices()
	w.must(err)
	return devices
}

func TestMachineIsRebootedOnceIfAResetFails(t *testing.T) {
	w := newWorld(t, fake.A100(2))
	w.resetFails = errors.New("resetting is not supported on this system")
	wanted := promised("3g.20gb", 2)
	w.refuses(wanted, nodecontract.ReasonMIGModePending, "GPU 0 (NVIDIA A100-SXM4-40GB)", "not supported on this system", "The machine reboots, once")
	w.refuses(wanted, nodecontract.ReasonMIGModePending, "was asked at 2026-11-24T12:00:00Z to reboot")
	if w.reboots != 1 {
		t.Fatalf("%d reboots", w.reboots)
	}
	w.machine.Reboot(t)
	w.Note.Boot = "second"
	w.must(w.Divide(t.Context(), wanted))
	w.has(1, "3g.20gb@0 3g.20gb@4")
	if _, err := os.Stat(filepath.Join(w.Note.Dir, "mig-reboot.json")); !os.IsNotExist(err) {
		t.Errorf("the note stays: %v", err)
	}
}

func TestMachineThatStaysAsItWasIsNotRebootedAgain(t *testing.T) {
	w := newWorld(t, fake.A100(1))
	w.resetFails = errors.New("no")
	w.refuses(promised("1g.5gb", 7), nodecontract.ReasonMIGModePending, "once")
	w.Note.Boot = "second"
	w.refuses(promised("1g.5gb", 7), nodecontract.ReasonMIGModePending, "was rebooted, and MIG is still off: replace it")
	if w.reboots != 1 {
		t.Errorf("%d reboots", w.reboots)
	}
}

func TestMachineWithPodsIsNotRebooted(t *testing.T) {
	w := newWorld(t, fake.A100(1))
	w.resetFails, w.Reboot = errors.New("no"), nil
	w.refuses(promised("1g.5gb", 7), nodecontract.ReasonMIGModePending, "drain the node and reboot it")
	w = newWorld(t, fake.A100(1))
	w.resetFails, w.Note.Boot = errors.New("no"), ""
	w.refuses(promised("1g.5gb", 7), nodecontract.ReasonMIGModePending, "drain the node and reboot it")
	w = newWorld(t, fake.A100(1))
	w.resetFails, w.Note.Dir = errors.New("no"), "/proc/none"
	w.refuses(promised("1g.5gb", 7), nodecontract.ReasonMIGModePending, "cannot be noted")
	if w.reboots != 0 {
		t.Errorf("%d reboots", w.reboots)
	}
}

func TestGPUThatSomebodyUsesIsNotDivided(t *testing.T) {
	wanted := promised("1g.10gb", 7)
	w := newWorld(t, fake.H100(2))
	uuid := w.machine.State.Devices[1].UUID
	w.held = map[string]string{uuid: "default/trainer"}
	if err := w.Divide(t.Context(), wanted); !errors.Is(err, mig.ErrHeld) || !strings.Contains(err.Error(), "default/trainer holds "+uuid) {
		t.Errorf("with a pod: %v", err)
	}
	w.held = nil
	w.machine.Change(t, func(s *fake.State) { s.Devices[1].Usage.Processes = []gpu.Process{{PID: 4711, MemoryMiB: 512}} })
	w.refuses(wanted, nodecontract.ReasonMIGModePending, "process 4711 uses GPU 1")
	w.machine.Change(t, func(s *fake.State) { s.Devices[1].Usage.Processes = nil })
	w.users = []mig.User{{PID: 12, Name: "python3", Computes: true}}
	w.refuses(wanted, nodecontract.ReasonMIGModePending, "python3 (process 12) uses GPU 0")
	w.has(0, "")
	w.users = []mig.User{{PID: 13, Name: "nv-hostengine"}}
	w.machine.Change(t, func(s *fake.State) { s.Devices[0].Without = []string{"idle"} })
	w.refuses(wanted, nodecontract.ReasonMIGModePending, "open it has nv-hostengine (process 13): stop it")
	w.machine.Change(t, func(s *fake.State) { s.Devices[0].Without = nil })
	w.Pods = func(context.Context) (map[string]string, error) { return nil, errors.New("it does not answer") }
	w.refuses(wanted, nodecontract.ReasonMIGModePending, "it does not answer")
	w.Pods = func(context.Context) (map[string]string, error) { return nil, nil }
	w.must(w.Divide(t.Context(), wanted)) // A program that only looks is no obstacle to the driver.
}

func TestInstancesThatPodsHoldAreNotChanged(t *testing.T) {
	w := newWorld(t, fake.H100(1))
	w.must(w.Divide(t.Context(), promised("3g.40gb", 2)))
	instance := w.devices()[0].Instances[1].UUID
	w.held = map[string]string{instance: "default/a"}
	if err := w.Divide(t.Context(), promised("1g.10gb", 7)); !errors.Is(err, mig.ErrHeld) {
		t.Errorf("%v", err)
	}
	w.has(0, "3g.40gb@0 3g.40gb@4")
	w.held = nil
	w.refuses(promised("1g.10gb", 7), nodecontract.ReasonRefused, "instances that nobody planned (3g.40gb at memory slice 0, 3g.40gb at memory slice 4)", "7 MIG instances 1g.10gb were promised")
	w.refuses(promised("3g.40gb", 1), nodecontract.ReasonRefused, "2 instances 3g.40gb")
	w.has(0, "3g.40gb@0 3g.40gb@4")
}

func TestWhatAnInterruptedAttemptLeftIsReplaced(t *testing.T) {
	w := newWorld(t, fake.H100(1))
	// Two of seven instances are there, and one of them has no compute instance.
	w.must(os.WriteFile(fake.MIGFile(w.machine.Path, 0), []byte("mode 1 1\ninstance 9 0 2 1\ncompute 9 0 1\ninstance 12 0 5 1\n"), 0o600))
	w.must(w.Divide(t.Context(), promised("1g.10gb", 7)))
	if n := len(strings.Fields(w.machine.Instances(t, 0))); n != 7 {
		t.Errorf("%d instances", n)
	}
	// An instance whose compute is divided again is no instance of the profile.
	w.must(os.WriteFile(fake.MIGFile(w.machine.Path, 0), []byte("mode 1 1\ninstance 1 4 0 4\ncompute 1 0 1\ncompute 1 1 2\ninstance 2 4 4 4\ncompute 2 0 3\n"), 0o600))
	w.must(w.Divide(t.Context(), promised("3g.40gb", 2)))
	if d := w.devices()[0]; len(d.Instances) != 2 || d.Instances[0].Profile != "3g.40gb" {
		t.Errorf("%+v", d.Instances)
	}
}

func TestGPUsThatCannotBeDividedSoAreRefused(t *testing.T) {
	w := newWorld(t, fake.T4(1))
	w.refuses(promised("1g.5gb", 7), nodecontract.ReasonRefused, "GPU 0 (Tesla T4) cannot be divided")
	w = newWorld(t, fake.A100(1))
	w.refuses(promised("1g.10gb", 7), nodecontract.ReasonRefused, "cannot have 7 MIG instances 1g.10gb", "at most 4 do")
	w.refuses(promised("1g.12gb", 7), nodecontract.ReasonRefused, "there is no profile 1g.12gb; there is 1g.5gb")
	w = newWorld(t, fake.H100(1))
	w.machine.Change(t, func(s *fake.State) { s.Devices[0].Without = []string{"set-mig-mode"} })
	w.refuses(promised("1g.10gb", 7), nodecontract.ReasonRefused, "the process may not do this")
	w.machine.Change(t, func(s *fake.State) { s.Devices[0].Without = []string{"create-instance"} })
	w.refuses(promised("1g.10gb", 7), nodecontract.ReasonRefused, "creating an instance 1g.10gb at memory slice 0")
	w.machine.Change(t, func(s *fake.State) { s.Devices[0].Without = []string{"create-compute"} })
	w.refuses(promised("1g.10gb", 7), nodecontract.ReasonRefused, "creating the compute instance")
	w.has(0, "") // The GPU instance does not stay without compute.
	w.machine.Change(t, func(s *fake.State) { s.Init = fake.DriverNotLoaded })
	w.refuses(promised("1g.10gb", 7), nodecontract.ReasonNone, "the NVIDIA kernel driver is not loaded")
	w = newWorld(t, fake.None())
	w.refuses(promised("1g.10gb", 7), nodecontract.ReasonNone, "it lists no GPU")
	w = newWorld(t, fake.H100(1))
	w.Files = func() error { return errors.New("no space") }
	w.refuses(promised("1g.10gb", 7), nodecontract.ReasonRefused, "no space")
}

func TestCheckListsWhatIsThereInstead(t *testing.T) {
	instances := func(all ...string) (out []gpu.Instance) {
		for i, profile := range all {
			out = append(out, gpu.Instance{UUID: fmt.Sprintf("MIG-%d", i), Profile: profile})
		}
		return out
	}
	for want, d := range map[string]gpu.Device{
		"":                   {MIG: true, Instances: instances("2g.10gb", "2g.10gb")},
		"is not divided":     {},
		"has no MIG":         {MIG: true},
		"has 1 instances 2g": {MIG: true, Instances: instances("2g.10gb")},
		"has 2 instances 2g.10gb, 1 instances 1g.5gb, and 2 MIG instances 2g.10gb were promised": {MIG: true, Instances: instances("2g.10gb", "1g.5gb", "2g.10gb")},
	} {
		err := mig.Check([]gpu.Device{d}, promised("2g.10gb", 2))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// several returns groups of GPUs with a number of instances of each profile, as "3x1g.5gb 2x2g.10gb". Without a number of GPUs there is one group.
func several(t *testing.T, gpus int64, all ...string) nodecontract.MIG {
	t.Helper()
	var groups []nodecontract.MIGGroup
	for _, text := range all {
		g := nodecontract.MIGGroup{GPUs: gpus}
		for part := range strings.FieldsSeq(text) {
			count, profile, _ := strings.Cut(part, "x")
			n, err := strconv.Atoi(count)
			if err != nil {
				t.Fatal(err)
			}
			g.Instances = append(g.Instances, nodecontract.MIGInstances{Profile: profile, Count: int64(n)})
		}
		groups = append(groups, g)
	}
	return nodecontract.MIGOf(groups, 1)
}

func TestGPUsAreDividedIntoSeveralProfiles(t *testing.T) {
	w := newWorld(t, fake.A100(8))
	wanted := several(t, 0, "3x1g.5gb 2x2g.10gb")
	w.must(w.Divide(t.Context(), wanted))
	for i := range 8 {
		w.has(i, "2g.10gb@0 2g.10gb@2 1g.5gb@4 1g.5gb@5 1g.5gb@6")
	}
	w.must(mig.Check(w.devices(), wanted))
	if err := mig.Check(w.devices(), several(t, 0, "3x1g.5gb 1x3g.20gb")); err == nil || !strings.Contains(err.Error(), "has 3 instances 1g.5gb, 2 instances 2g.10gb, and 3 MIG instances 1g.5gb and 1 of 3g.20gb were promised") &&
		!strings.Contains(err.Error(), "has 2 instances 2g.10gb, 3 instances 1g.5gb, and 3 MIG instances 1g.5gb and 1 of 3g.20gb were promised") {
		t.Errorf("%v", err)
	}
	w.held = map[string]string{w.devices()[3].Instances[0].UUID: "default/a"}
	w.must(w.Divide(t.Context(), wanted)) // Nothing is to do.
	w.held = nil
	w.refuses(several(t, 0, "3x1g.5gb 1x3g.20gb"), nodecontract.ReasonRefused, "instances that nobody planned (2g.10gb at memory slice 0, 2g.10gb at memory slice 2)", "3 MIG instances 1g.5gb and 1 of 3g.20gb were promised")
	w.refuses(several(t, 0, "1x1g.5gb 2x2g.10gb"), nodecontract.ReasonRefused, "instances that nobody planned (3 instances 1g.5gb)")
	w.refuses(several(t, 0, "4x1g.5gb 2x2g.10gb"), nodecontract.ReasonRefused, "cannot have 4 MIG instances 1g.5gb and 2 of 2g.10gb", "more than the 7 compute slices")
}

func TestGPUsOfAMachineAreDividedDifferently(t *testing.T) {
	w := newWorld(t, fake.A100(4))
	wanted := several(t, 2, "7x1g.5gb", "2x3g.20gb")
	w.refuses(several(t, 1, "7x1g.5gb", "2x3g.20gb"), nodecontract.ReasonRefused, "there are 4 GPUs, and 2 MIG instances 3g.20gb on 1 GPU, 7 MIG instances 1g.5gb on 1 GPU were promised")
	w.must(w.Divide(t.Context(), wanted))
	w.has(0, "3g.20gb@0 3g.20gb@4")
	w.has(2, "1g.5gb@0 1g.5gb@1 1g.5gb@2 1g.5gb@3 1g.5gb@4 1g.5gb@5 1g.5gb@6")
	// Whatever the order in which the driver lists the GPUs, those that are divided stay as they are.
	first, last := w.machine.State.Devices[0].UUID, w.machine.State.Devices[3].UUID
	w.must(os.Remove(fake.MIGFile(w.machine.Path, 1)))
	w.held = map[string]string{first: "default/a", last: "default/b"}
	w.must(w.Divide(t.Context(), wanted))
	w.has(0, "3g.20gb@0 3g.20gb@4")
	w.has(1, "3g.20gb@0 3g.20gb@4")
	w.must(mig.Check(w.devices(), wanted))
	w.must(mig.Check(w.devices()[1:], wanted)) // One is lost.
}

// TestEachCombinationOfProfilesIsMade divides eight GPUs at a time, each differently.
func TestEachCombinationOfProfilesIsMade(t *testing.T) {
	model := profiles.Models("a100", 40960)[0]
	var all []string
	var add func(at int, so []nodecontract.MIGInstances)
	add = func(at int, so []nodecontract.MIGInstances) {
		if !model.Holds(so) {
			return
		}
		if at == len(model.Kinds) {
			if len(so) > 1 {
				var parts []string
				for _, of := range so {
					parts = append(parts, fmt.Sprintf("%dx%s", of.Count, of.Profile))
				}
				all = append(all, strings.Join(parts, " "))
			}
			return
		}
		add(at+1, so)
		if model.Kinds[at].Profile == "1g.5gb+me" { // The fake driver of a data center does not have it.
			return
		}
		for n := int64(1); n <= int64(model.Kinds[at].Most); n++ {
			add(at+1, append(slices.Clip(so), nodecontract.MIGInstances{Profile: model.Kinds[at].Profile, Count: n}))
		}
	}
	add(0, nil)
	if len(all) < 40 {
		t.Fatalf("only %d combinations: %q", len(all), all)
	}
	for some := range slices.Chunk(all, 8) {
		w := newWorld(t, fake.A100(len(some)))
		wanted := several(t, 1, some...)
		w.must(w.Divide(t.Context(), wanted))
		w.must(mig.Check(w.devices(), wanted))
	}
}
