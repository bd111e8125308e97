package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/plugintest"
	"karve.sh/karve/pkg/nodecontract"
)

// These tests give the agent what is missing, invalid or too large.

func TestInvalidConfigurationKeepsLastGoodOne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bad  func(m *machine)
		want string
	}{
		"not YAML":              {func(m *machine) { m.configure("version: [") }, "not YAML"},
		"empty":                 {func(m *machine) { m.configure("") }, "is empty"},
		"one replica":           {func(m *machine) { m.configure(replicas(1)) }, "number of replicas must be >= 2"},
		"far too many replicas": {func(m *machine) { m.configure(replicas(5000)) }, "a GPU can have at most 4096"},
		"gone":                  {func(m *machine) { _ = os.Remove(filepath.Join(m.dir, "config", "config.yaml")) }, "no such file"},
		"a folder": {func(m *machine) {
			_ = os.Remove(filepath.Join(m.dir, "config", "config.yaml"))
			_ = os.Mkdir(filepath.Join(m.dir, "config", "config.yaml"), 0o700)
		}, "is a directory"},
		"larger than a ConfigMap": {func(m *machine) { m.configure(strings.Repeat("#", 2<<20)) }, "larger than 1 MiB"},
		"an alias bomb": {func(m *machine) {
			m.configure("version: v1\na: &a " + strings.Repeat("a", 400_000) + "\nb: [" + strings.Repeat("*a,", 100_000) + "]\n")
		}, "with its aliases expanded, the YAML is larger than 8 MiB"},
		"a very long word": {func(m *machine) { m.configure("version: " + strings.Repeat("v", 900_000)) }, `version: is "vvvv`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var api *apiServer
			m := start(t, func(m *machine) {
				m.configure(replicas(10))
				api = m.withNode()
			})
			m.eventually("20 replicas", m.allocatable(20))
			m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
			c.bad(m)
			m.untilCondition(api, nodecontract.SharingCondition, "False ConfigurationRefused", "The last good configuration stays in force", c.want)
			m.eventually("the event", func() bool { return api.count("ConfigurationRefused", c.want) == 1 })
			if !m.allocatable(20)() {
				t.Error("the last good configuration is not in force")
			}
			_ = os.RemoveAll(filepath.Join(m.dir, "config", "config.yaml"))
			m.configure(replicas(4))
			m.eventually("8 replicas", m.allocatable(8))
			m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
			m.eventually("the event", func() bool { return api.count("ConfigurationApplied", "") == 1 })
		})
	}
}

func TestTooManyReplicasAreRefusedAlsoAfterDriverReopens(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(2))
		m.library.SetDevices(gputest.T4s(9)...)
		api = m.withNode()
	})
	m.eventually("18 replicas", m.allocatable(18))
	m.configure(replicas(4096))
	m.untilCondition(api, nodecontract.SharingCondition, "False ConfigurationRefused", "makes 36864 replicas, and a machine can have at most 32768")
	m.library.Break(gputest.DriverMissing)
	_ = m.library.Shutdown()
	m.untilCondition(api, nodecontract.SharingCondition, "False NoGPUs")
	m.library.SetDevices(append(gputest.T4s(9), gpu.Device{UUID: "GPU-late", Index: 9, Product: "Tesla T4", NUMANode: -1})...)
	m.library.Break(gputest.Works)
	m.eventually("the last good one on the new GPU, too", m.allocatable(20))
	m.untilCondition(api, nodecontract.SharingCondition, "False ConfigurationRefused", "makes 40960")
}

func TestUndefinedCDINamesAreRefusedUntilDefined(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure("flags: {plugin: {deviceListStrategy: cdi-cri}}\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}")
		m.tune = func(a *Agent) { a.applyAgain = 50 * time.Millisecond }
		api = m.withNode()
	}, "--cdi-spec-dirs", "/nowhere,"+dir)
	m.untilCondition(api, nodecontract.SharingCondition, "False ConfigurationRefused", "no CDI spec in /nowhere or "+dir+" defines nvidia.com/gpu=GPU-a, nvidia.com/gpu=GPU-b", "run nvidia-ctk cdi generate")
	if len(m.kubelet.Requests()) != 0 {
		t.Error("something is registered")
	}
	if err := os.WriteFile(filepath.Join(dir, "nvidia.yaml"), []byte("kind: nvidia.com/gpu\ndevices: [{name: GPU-a}, {name: GPU-b}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.eventually("4 replicas", m.allocatable(4))
	m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
	if n := api.count("ConfigurationRefused", ""); n != 1 {
		t.Errorf("%d events", n)
	}
	g, err := m.kubelet.Admit(t.Context(), "pod", resource, 1)
	if err != nil {
		t.Fatal(err)
	}
	if d := g.Response.GetCdiDevices(); len(d) != 1 || d[0].GetName() != "nvidia.com/gpu="+alloc.UUID(g.IDs[0]) || len(g.Response.GetEnvs()) != 0 {
		t.Errorf("the answer is %v", g.Response)
	}
}

func TestAgentServesNothingWithoutValidConfiguration(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure("version: v3")
		api = m.withNode()
	})
	m.untilCondition(api, nodecontract.SharingCondition, "False ConfigurationRefused", "v3")
	if len(m.kubelet.Requests()) != 0 {
		t.Error("something is registered")
	}
	m.configure(replicas(2))
	m.eventually("4 replicas", m.allocatable(4))
}

func TestInvalidConfigurationStaysReportedAfterDriverReopens(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
	})
	m.eventually("20 replicas", m.allocatable(20))
	m.configure(replicas(1))
	m.untilCondition(api, nodecontract.SharingCondition, "False ConfigurationRefused")
	m.library.Break(gputest.DriverMissing)
	_ = m.library.Shutdown()
	m.untilCondition(api, nodecontract.SharingCondition, "False NoGPUs", "the NVIDIA kernel driver is not loaded")
	m.library.Break(gputest.Works)
	m.untilCondition(api, nodecontract.SharingCondition, "False ConfigurationRefused")
	if !m.allocatable(20)() || api.count("ConfigurationRefused", "") != 1 {
		t.Error("the replicas or the events are wrong")
	}
}

func TestConfigDirTakesPrecedenceOverConfigFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, n := range map[string]int{"few": 3, "many": 30} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(replicas(n)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := start(t, func(m *machine) { m.configure(replicas(10)) }, "--config-dir", dir, "--default-config", "few")
	m.eventually("6 replicas", m.allocatable(6))
	m.eventually("it is told", func() bool { return m.log.has("counts before the file") })
}

func TestAgentReportsOtherPluginUntilItEnds(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
		api.allocatable = "8"
	})
	m.untilCondition(api, nodecontract.SharingCondition, "False StandingBack", "the Node already has 8 nvidia.com/gpu")
	m.eventually("the event", func() bool { return api.count("StandingBack", resource) == 1 })
	api.mu.Lock()
	api.allocatable = "0"
	api.mu.Unlock()
	m.eventually("20 replicas", m.allocatable(20))
	m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
	m.eventually("the event", func() bool { return api.count("InCharge", resource) == 1 })
}

func TestAgentWaitsForKubelet(t *testing.T) {
	t.Parallel()
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		m.kubelet.Stop()
		_ = os.Remove(m.kubelet.Socket())
	})
	m.eventually("a sentence", func() bool { return m.log.has("Not registered with the kubelet; trying again") })
	if err := m.kubelet.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.eventually("20 replicas", m.allocatable(20))
}

func TestAllocateRefusesUnknownDevice(t *testing.T) {
	t.Parallel()
	m := start(t, func(m *machine) { m.configure(replicas(10)) })
	m.eventually("20 replicas", m.allocatable(20))
	for _, id := range []string{"GPU-z::0", "GPU-a::10", "GPU-a", "", "::", "GPU-a::-1"} {
		_, err := m.kubelet.Allocate(t.Context(), "pod", resource, id)
		if err == nil || !strings.Contains(err.Error(), "unknown device: "+id) {
			t.Errorf("%q: %v", id, err)
		}
	}
	if !m.allocatable(20)() {
		t.Error("the agent is gone")
	}
}

func TestReplacedDriverEndsAgent(t *testing.T) {
	t.Parallel()
	m := start(t, func(m *machine) { m.configure(replicas(10)) })
	m.eventually("20 replicas", m.allocatable(20))
	m.library.Break(gputest.DriverReplaced)
	_ = m.library.Shutdown()
	select {
	case err := <-m.ended:
		if err == nil || !strings.Contains(err.Error(), "the process must be restarted") {
			t.Errorf("got %v", err)
		}
		m.ended <- nil
	case <-time.After(10 * time.Second):
		t.Error("it goes on")
	}
}

// TestProgramOnBrokenMachines runs the program itself with fake drivers.
func TestProgramOnBrokenMachines(t *testing.T) {
	t.Parallel()
	library, machine := nvmltest.New(t, nvmltest.None())
	program := buildProgram(t)
	dir, err := os.MkdirTemp("", "karve") //nolint:usetesting // t.TempDir is too long for a socket's name.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	k := &plugintest.Kubelet{Network: plugin.Unix{}, Dir: dir}
	if err := k.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	for name, c := range map[string]struct {
		state nvmltest.State
		// goes is true if the program must keep running.
		goes bool
		want string
	}{
		"no driver":       {nvmltest.Without(nvmltest.DriverNotLoaded), true, "the NVIDIA kernel driver is not loaded"},
		"no GPU":          {nvmltest.None(), true, "lists no GPU"},
		"invalid library": {nvmltest.Without(nvmltest.LibraryVersionMismatch), false, "are of different versions, as after an update of the driver (NVML code 18): restart this process"},
	} {
		t.Run(name, func(t *testing.T) {
			machine.Change(t, func(s *nvmltest.State) { *s = c.state })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var log lines
			cmd := exec.CommandContext(ctx, program, "--kubelet-socket", k.Socket(), "--pod-resources-socket", "none",
				"--metrics-address", "127.0.0.1:0", "--state-dir", filepath.Join(dir, "state"))
			cmd.Env, cmd.Stderr = machine.Environment(library), &log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			if !c.goes {
				err := <-ended
				var code *exec.ExitError
				if !errors.As(err, &code) || code.ExitCode() != 1 || !log.has("karve-node: ") || !log.has(c.want) {
					t.Errorf("%v\n%s", err, log.text.String())
				}
				return
			}
			for deadline := time.Now().Add(10 * time.Second); !log.has(c.want) && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			}
			select {
			case err := <-ended:
				t.Errorf("it ended: %v", err)
			default:
				cancel()
				<-ended
			}
			if !log.has(c.want) {
				t.Errorf("the log does not mention %q\n%s", c.want, log.text.String())
			}
		})
	}
}

func TestEventsAreRateLimitedAndFailuresAreLogged(t *testing.T) {
	t.Parallel()
	c := clocktesting.NewFakeClock(noon)
	r := newRecorder(func(context.Context, nodeapi.Event) error { return nil }, c)
	for i := range eventBurst + 3 {
		if r.limit.AllowN(c.Now(), 1) != (i < eventBurst) {
			t.Errorf("event %d", i)
		}
	}
	c.Step(2*eventEvery + time.Second)
	for i := range 3 {
		if r.limit.AllowN(c.Now(), 1) != (i < 2) {
			t.Errorf("event %d after two of %s", i, eventEvery)
		}
	}
	c.Step(1000 * eventEvery)
	for i := range eventBurst + 1 {
		if r.limit.AllowN(c.Now(), 1) != (i < eventBurst) {
			t.Errorf("event %d after a while", i)
		}
	}
	(*recorder)(nil).tell(t.Context(), health.Event{})

	log := &lines{}
	ctx := logr.NewContext(t.Context(), logr.FromSlogHandler(slog.NewTextHandler(log, nil)))
	r = newRecorder(func(context.Context, nodeapi.Event) error { return errors.New("no") }, clock.RealClock{})
	for range eventQueue + 1 { // Nobody reads the queue, and tell does not block.
		r.tell(ctx, health.Event{Reason: "R"})
	}
	if !log.has("too many wait") {
		t.Error("tell blocks or does not log the overflow")
	}

	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
		api.refuse = true
	})
	m.eventually("20 replicas", m.allocatable(20))
	m.library.Report("GPU-a", 48)
	m.eventually("10 replicas", m.allocatable(10))
	m.eventually("a sentence", func() bool { return m.log.has("An event is not written") })
	m.untilCondition(api, hardware, "False GPUNeedsReset")
}
