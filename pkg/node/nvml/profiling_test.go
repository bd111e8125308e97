package nvml_test

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nvml"
	fake "karve.sh/karve/pkg/node/nvml/nvmltest"
)

// counted returns a machine with H100s whose profiling counters count, and a library with a clock of its own.
func counted(t *testing.T, gpus int) (*nvml.Library, *control, *clocktesting.FakePassiveClock) {
	t.Helper()
	path, machine := fake.Use(t, fake.H100(gpus))
	c := &control{t: t, sysfs: t.TempDir(), machine: machine}
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	for _, d := range machine.State.Devices {
		c.setActive(d.UUID, 0.5)
	}
	return nvml.New(nvml.Options{Library: path, Sysfs: c.sysfs, Clock: clock}), c, clock
}

func (c *control) setActive(uuid string, share float64) {
	c.change(uuid, func(d *fake.Device) { d.Usage.Profiling = &gpu.Profiling{SMActive: share} })
}

// samples returns how many samples of profiling counters the process has allocated.
func (c *control) samples() int {
	text, err := os.ReadFile(fake.SamplesFile(c.machine.Path))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	n, err2 := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || err2 != nil {
		c.t.Fatal(err, err2)
	}
	return n
}

// TestProfilingCountsSinceSampleBefore compares the library with a model, and checks that it keeps one sample of a GPU at most.
func TestProfilingCountsSinceSampleBefore(t *testing.T) {
	l, c, clock := counted(t, 1)
	uuid := start(t, l)[0].UUID
	const interval = time.Second
	rapid.Check(t, func(r *rapid.T) {
		var sampled bool
		var at time.Time
		var want *gpu.Profiling
		restart := func() {
			if err := l.Shutdown(); err != nil || c.samples() != 0 {
				r.Fatalf("after Shutdown, %d samples are left: %v", c.samples(), err)
			}
			start(t, l)
			sampled, want = false, nil
		}
		restart()
		r.Repeat(map[string]func(*rapid.T){
			"read": func(r *rapid.T) {
				clock.SetTime(clock.Now().Add(rapid.SampledFrom([]time.Duration{0, 1, interval / 2, interval - 1, interval, time.Minute}).Draw(r, "passed")))
				active := float64(rapid.IntRange(0, 64).Draw(r, "active")) / 64
				c.setActive(uuid, active)
				switch {
				case !sampled:
					sampled, at = true, clock.Now()
				case clock.Since(at) >= interval:
					at, want = clock.Now(), &gpu.Profiling{SMActive: active}
				}
				u, err := l.Usage(uuid)
				if diff := cmp.Diff(want, u.Profiling); diff != "" || err != nil {
					r.Fatal(diff, err)
				}
			},
			"list": func(r *rapid.T) {
				if _, err := l.Devices(); err != nil {
					r.Fatal(err)
				}
			},
			"counters fail": func(r *rapid.T) {
				c.change(uuid, func(d *fake.Device) { d.Usage.Profiling = nil })
				clock.SetTime(clock.Now().Add(interval))
				if u, err := l.Usage(uuid); err != nil || u.Profiling != nil {
					r.Fatalf("without counters: %+v, %v", u.Profiling, err)
				}
				sampled, want = false, nil
			},
			"lose": func(r *rapid.T) {
				c.Lose(uuid)
				if _, err := l.Usage(uuid); !errors.Is(err, gpu.ErrLost) {
					r.Fatal(err)
				}
				if _, err := l.Devices(); err != nil || c.samples() != 0 {
					r.Fatalf("a lost GPU has %d samples: %v", c.samples(), err)
				}
				c.Return(uuid)
				restart()
			},
			"restart": func(*rapid.T) { restart() },
			"": func(r *rapid.T) {
				if n := c.samples(); n > 1 || (n == 1) != sampled {
					r.Fatalf("%d samples, want one: %v", n, sampled)
				}
			},
		})
	})
}

func TestSamplesOfGPUThatIsGoneAreFreed(t *testing.T) {
	l, c, _ := counted(t, 2)
	for _, d := range start(t, l) {
		if _, err := l.Usage(d.UUID); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.samples(); n != 2 {
		t.Fatalf("%d samples of two GPUs", n)
	}
	c.machine.Change(t, func(s *fake.State) { s.Devices = s.Devices[:1] })
	if devices, err := l.Devices(); err != nil || len(devices) != 1 || c.samples() != 1 {
		t.Errorf("%d samples of %v, %v", c.samples(), devices, err)
	}
}

func TestProfilingIsSafeForConcurrentUse(t *testing.T) {
	l, c, clock := counted(t, 2)
	devices := start(t, l)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20 {
				clock.SetTime(clock.Now().Add(700 * time.Millisecond))
				for _, d := range devices {
					if u, err := l.Usage(d.UUID); err != nil || u.Profiling != nil && u.Profiling.SMActive != 0.5 {
						t.Errorf("%+v, %v", u.Profiling, err)
					}
				}
			}
		})
	}
	group.Wait()
	if n := c.samples(); n != 2 {
		t.Errorf("%d samples of two GPUs", n)
	}
	if err := l.Shutdown(); err != nil || c.samples() != 0 {
		t.Errorf("after Shutdown, %d samples are left: %v", c.samples(), err)
	}
}

// TestGPUBeforeHopperIsNotSampled: what such a GPU answers is unknown.
func TestGPUBeforeHopperIsNotSampled(t *testing.T) {
	l, c := open(t, fake.A100(1))
	uuid := start(t, l)[0].UUID
	c.setActive(uuid, 0.5)
	for range 2 {
		if u, err := l.Usage(uuid); err != nil || u.Profiling != nil {
			t.Errorf("%+v, %v", u.Profiling, err)
		}
	}
	if _, err := os.Stat(fake.SamplesFile(c.machine.Path)); err == nil {
		t.Error("the GPU was sampled")
	}
}
