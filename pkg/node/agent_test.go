package node

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/plugintest"
	"karve.sh/karve/pkg/node/sharing"
)

const resource = "nvidia.com/gpu"

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) has(words string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), words)
}

// machine is a node with a kubelet, fake GPUs and an agent.
type machine struct {
	t       *testing.T
	dir     string
	kubelet *plugintest.Kubelet
	library *gputest.Fake
	agent   *Agent
	log     *lines
	ended   chan error
	end     context.CancelFunc
	args    []string
	node    *nodeapi.Client
	boot    string
	// tune changes an agent before it runs. It may be nil.
	tune func(*Agent)
}

func start(t *testing.T, prepare func(*machine), args ...string) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "karve") //nolint:usetesting // t.TempDir is too long for a socket's name.
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: dir, kubelet: &plugintest.Kubelet{Network: plugin.Unix{}, Dir: dir}, log: &lines{}, ended: make(chan error, 1)}
	m.library = gputest.New(gpu.Device{UUID: "GPU-a", Index: 0, Product: "Tesla T4", MemoryMiB: 15360, NUMANode: -1}, gpu.Device{UUID: "GPU-b", Index: 1, Product: "Tesla T4", MemoryMiB: 15360, NUMANode: -1})
	if err := m.kubelet.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	prepare(m)
	m.args = args
	m.run()
	t.Cleanup(func() {
		m.stop()
		m.kubelet.Stop()
		_ = os.RemoveAll(dir)
		if t.Failed() {
			t.Log(m.log.text.String())
		}
	})
	return m
}

// run starts an agent.
func (m *machine) run() {
	m.t.Helper()
	o, err := Parse(append([]string{
		"--kubelet-socket", m.kubelet.Socket(), "--pod-resources-socket", m.kubelet.PodResourcesSocket(), "--metrics-address", "none",
		"--state-dir", filepath.Join(m.dir, "state"), "--runtime-config", none,
	}, m.args...), func(string) (string, bool) { return "", false }, m.log)
	if err != nil {
		m.t.Fatal(err)
	}
	o.configFile = filepath.Join(m.dir, "config", "config.yaml")
	ctx, cancel := context.WithCancel(logr.NewContext(m.t.Context(), logr.FromSlogHandler(slog.NewTextHandler(m.log, nil))))
	m.agent, err = New(ctx, o, func(string) gpu.Library { return m.library }, m.node)
	if err != nil {
		m.t.Fatal(err)
	}
	m.agent.use.every = 50 * time.Millisecond
	if m.boot != "" {
		m.agent.store.Boot = m.boot
	}
	if m.tune != nil {
		m.tune(m.agent)
	}
	go func() { m.ended <- m.agent.Run(ctx, nil) }()
	m.end = cancel
}

// stop stops the agent.
func (m *machine) stop() {
	m.t.Helper()
	m.end()
	if err := <-m.ended; err != nil {
		m.t.Error(err)
	}
}

func (m *machine) configure(text string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Join(m.dir, "config"), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.dir, "config", "config.yaml"), []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) eventually(what string, f func() bool) {
	m.t.Helper()
	m.within(15*time.Second, what, f)
}

// later waits longer than eventually, for conditions that need two checks for other device plugins.
func (m *machine) later(what string, f func() bool) {
	m.t.Helper()
	m.within(30*time.Second, what, f)
}

func (m *machine) within(limit time.Duration, what string, f func() bool) {
	m.t.Helper()
	for deadline := time.Now().Add(limit); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("never: %s", what)
		}
	}
}

func (m *machine) allocatable(n int) func() bool {
	return func() bool { return m.kubelet.Allocatable(resource) == n }
}

func replicas(n int) string {
	return fmt.Sprintf("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: %d}]}}", n)
}

func TestAgentStartsAndReloadsConfiguration(t *testing.T) {
	t.Parallel()
	m := start(t, func(m *machine) { m.configure(replicas(10)) })
	m.eventually("20 replicas", m.allocatable(20))
	if _, err := m.kubelet.Admit(t.Context(), "pod", resource, 1); err != nil {
		t.Fatal(err)
	}
	m.configure(replicas(3))
	m.eventually("6 replicas", m.allocatable(6))
	m.configure("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: one}]}}")
	m.eventually("a complaint", func() bool { return m.log.has("must be a whole number") })
	if !m.allocatable(6)() {
		t.Error("a bad file changed the configuration")
	}
	m.library.Report("GPU-a", 95)
	m.eventually("3 replicas of the healthy GPU", m.allocatable(3))
	for path, want := range map[string]string{
		"/metrics": `karve_node_allocations_total{result="granted"} 1`,
		"/readyz":  "", "/healthz": "",
	} {
		w := httptest.NewRecorder()
		m.agent.report.handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d\n%s", path, w.Code, w.Body)
		}
	}
}

func TestAgentWaitsForDriver(t *testing.T) {
	t.Parallel()
	m := start(t, func(m *machine) {
		m.configure(replicas(2))
		m.library.Break(gputest.DriverMissing)
	})
	m.eventually("a sentence", func() bool { return m.log.has("the NVIDIA kernel driver is not loaded") })
	m.library.Break(gputest.Works)
	m.eventually("4 replicas", m.allocatable(4))
}

func TestAgentWaitsForGPUs(t *testing.T) {
	t.Parallel()
	var devices []gpu.Device
	m := start(t, func(m *machine) {
		m.configure(replicas(2))
		_, _ = m.library.Init()
		devices, _ = m.library.Devices()
		m.library.SetDevices()
	})
	m.eventually("a sentence", func() bool { return m.log.has("lists no GPU") })
	m.library.SetDevices(devices...)
	m.eventually("4 replicas", m.allocatable(4))
}

func TestFailOnInitErrorEndsAgent(t *testing.T) {
	t.Parallel()
	m := start(t, func(m *machine) {
		m.configure(replicas(2))
		m.library.Break(gputest.DriverMissing)
	}, "--fail-on-init-error")
	select {
	case err := <-m.ended:
		if err == nil || !strings.Contains(err.Error(), "the NVIDIA kernel driver is not loaded") {
			t.Errorf("got %v", err)
		}
		m.ended <- nil
	case <-time.After(10 * time.Second):
		t.Error("it goes on")
	}
}

func TestListFlagsAppendAndIgnoredFlagsWarn(t *testing.T) {
	t.Parallel()
	nothing := func(string) (string, bool) { return "", false }
	o, err := Parse([]string{"--device-list-strategy=envvar", "--device-list-strategy", "volume-mounts,cdi-cri", "--imex-channel-ids=0"}, nothing, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := o.override(sharing.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := config.Settings(); err != nil || !slices.Equal(s.DeviceLists, []string{"envvar", "volume-mounts", "cdi-cri"}) || !slices.Equal(s.IMEXChannels, []int{0}) {
		t.Errorf("the devices are told by %q, and the channels are %v, %v", s.DeviceLists, s.IMEXChannels, err)
	}
	m := start(t, func(m *machine) { m.configure(replicas(2)) }, "--mps-root=/mps", "--nvidia-ctk-path=/x", "--cdi-feature-flags=a", "--cdi-disable-hooks=all")
	m.eventually("4 replicas", m.allocatable(4))
	for _, flag := range []string{"--mps-root", "--nvidia-ctk-path", "--cdi-feature-flags", "--cdi-disable-hooks"} {
		if !m.log.has(flag + " has no effect: ") {
			t.Errorf("the warnings do not mention %s", flag)
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	env := func(m map[string]string) func(string) (string, bool) {
		return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
	}
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		want string
	}{
		"NVIDIA's flags": {[]string{"--pass-device-specs", "--device-list-strategy=envvar,cdi-cri", "--nvidia-driver-root", "/x"}, map[string]string{"NODE_NAME": "n", "FAIL_ON_INIT_ERROR": "false"}, ""},
		"further NVIDIA flags": {[]string{
			"--mps-root=/run/nvidia/mps", "--nvidia-ctk-path=/usr/bin/nvidia-ctk", "--nvidia-cdi-hook-path", "/usr/bin/nvidia-cdi-hook", "--cdi-feature-flags=a", "--cdi-feature-flags=b",
			"--cdi-disable-hooks=all", "--cdi-annotation-prefix=cdi.example.com/", "--imex-channel-ids=0", "--imex-required", "--no-timestamp", "--machine-type-file=/x",
		}, map[string]string{"MPS_ROOT": "/mps", "CDI_FEATURE_FLAGS": "a", "NVIDIA_CTK_PATH": "/x", "IMEX_CHANNEL_IDS": "", "IMEX_REQUIRED": "false"}, ""},
		"an invalid IMEX channel":         {[]string{"--imex-channel-ids=one"}, nil, "--imex-channel-ids: is \"one\", and must be numbers"},
		"two IMEX channels":               {[]string{"--imex-channel-ids=0,1"}, nil, "imex.channelIDs: is [0 1], and can be [] or [0]"},
		"an argument":                     {[]string{"x"}, nil, "unexpected argument"},
		"an unknown flag":                 {[]string{"--x"}, nil, "not defined"},
		"an invalid boolean":              {[]string{"--pass-device-specs=x"}, nil, "must be true or false"},
		"an invalid environment variable": {nil, map[string]string{"DEVICE_LIST_STRATEGY": "smoke"}, "deviceListStrategy"},
		"another invalid boolean":         {nil, map[string]string{"STRICT": "very"}, "STRICT"},
		"an invalid log level":            {[]string{"--log-level", "loud"}, nil, "loud"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse(c.args, env(c.env), &bytes.Buffer{})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v", err)
			}
		})
	}
}
