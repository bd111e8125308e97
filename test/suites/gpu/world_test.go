//go:build cgo && gpu

package gpu_test

import (
	"bufio"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/nvml"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/plugintest"
)

const resource = "nvidia.com/gpu"

// bundle is the folder with the programs.
var bundle = os.Getenv("KARVE_GPU_BUNDLE")

// world is a machine with GPUs that nobody uses, and a fake kubelet.
type world struct {
	t       *testing.T
	devices []gpu.Device
	kubelet *plugintest.Kubelet
	agent   string // the program
	client  string // the program that uses a GPU
	dir     string
	port    int
	// environment is added to that of the agent.
	environment []string
}

// newWorld skips the test if there is no GPU, or if one is in use.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t}
	w.library(func(l *nvml.Library) {
		devices, err := l.Devices()
		if err != nil || len(devices) == 0 {
			t.Skipf("there are no GPUs: %v", err)
		}
		for _, d := range devices {
			if usage, err := l.Usage(d.UUID); err != nil || len(usage.Processes) > 0 {
				t.Skipf("GPU %d is in use: %v, %v", d.Index, usage.Processes, err)
			}
		}
		w.devices = devices
	})
	w.agent, w.client = filepath.Join(bundle, "karve-node"), filepath.Join(bundle, "client")
	var err error
	w.dir, err = os.MkdirTemp("", "karve") //nolint:usetesting // t.TempDir is too long for a socket's name.
	w.must(err)
	t.Cleanup(func() { _ = os.RemoveAll(w.dir) })
	sockets := filepath.Join(w.dir, "kubelet") // The kubelet empties it when it starts.
	w.must(os.Mkdir(sockets, 0o700))
	w.kubelet = &plugintest.Kubelet{Network: plugin.Unix{}, Dir: sockets}
	w.must(w.kubelet.Start(t.Context()))
	t.Cleanup(w.kubelet.Stop)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	w.must(err)
	w.port = listener.Addr().(*net.TCPAddr).Port
	w.must(listener.Close())
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// library opens the driver for a call of f, and skips the test if there is none.
func (w *world) library(f func(*nvml.Library)) {
	w.t.Helper()
	l := nvml.New(nvml.Options{})
	if _, err := l.Init(); err != nil {
		w.t.Skip(err)
	}
	defer func() { _ = l.Shutdown() }()
	f(l)
}

// whole skips the test unless all GPUs are undivided and of a compute capability.
func (w *world) whole(major int) {
	w.t.Helper()
	for _, d := range w.devices {
		if d.MIG || d.ComputeMajor < major {
			w.t.Skipf("GPU %d (%s) is divided, or its compute capability %d.%d is below %d.0", d.Index, d.Product, d.ComputeMajor, d.ComputeMinor, major)
		}
	}
}

// daemons skips the test unless the machine can run MPS daemons, and lets the agent's program run them. They leave the compute mode of GPUs as it is,
// unless KARVE_COMPUTE_MODE is set.
func (w *world) daemons() *exec.Cmd {
	w.t.Helper()
	if _, err := exec.LookPath(mps.Program); err != nil {
		w.t.Skip(err)
	}
	return w.run("mps-daemon")
}

// changesMode reports whether tests may change the compute mode of GPUs.
func changesMode() bool { return os.Getenv("KARVE_COMPUTE_MODE") != "" }

func (w *world) eventually(what string, f func() bool) {
	w.t.Helper()
	for began := time.Now(); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			w.t.Fatalf("never: %s", what)
		}
	}
}

func (w *world) allocatable(n int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d replicas", n), func() bool { return w.kubelet.Allocatable(resource) == n })
}

// share writes the agent's configuration: a strategy of NVIDIA's format with a number of replicas of each GPU.
func (w *world) share(strategy string, replicas int) {
	w.t.Helper()
	w.configure(fmt.Sprintf("version: v1\nsharing: {%s: {resources: [{name: %s, replicas: %d}]}}\n", strategy, resource, replicas))
}

func (w *world) configure(text string) {
	w.t.Helper()
	w.must(os.WriteFile(filepath.Join(w.dir, "config.yaml"), []byte(text), 0o600))
}

func (w *world) mpsDir() string { return filepath.Join(w.dir, "mps") }

// run starts the agent's program, and stops it as the kubelet does when the test ends.
func (w *world) run(args ...string) *exec.Cmd {
	w.t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(w.t.Context()), w.agent, args...) // It is stopped after the test's context.
	log := filepath.Join(w.dir, strings.Join(append([]string{"agent"}, args...), "-")+".log")
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	w.must(err)
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	cmd.Env = append(os.Environ(), "KUBELET_SOCKET="+w.kubelet.Socket(), "POD_RESOURCES_SOCKET="+w.kubelet.PodResourcesSocket(), "STATE_DIR=none", "MPS_DIR="+w.mpsDir(), "MPS_SHM_MIB=0", // Clients are no containers.
		fmt.Sprint("MPS_KEEP_COMPUTE_MODE=", !changesMode()), "CONFIG_FILE="+filepath.Join(w.dir, "config.yaml"), fmt.Sprintf("METRICS_ADDRESS=127.0.0.1:%d", w.port))
	cmd.Env = append(cmd.Env, w.environment...)
	w.must(cmd.Start())
	w.t.Cleanup(func() {
		w.stop(cmd)
		if text, err := os.ReadFile(log); err == nil && w.t.Failed() {
			w.t.Logf("karve-node %s said\n%s", strings.Join(args, " "), text)
		}
	})
	return cmd
}

func (w *world) stop(cmd *exec.Cmd) {
	w.t.Helper()
	if cmd.ProcessState != nil {
		return
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		w.t.Errorf("karve-node ended with %v", err)
	}
}

// serve serves a Node with annotations to the agent, and returns the environment in which the agent finds it. Resources answers what the agent asks of
// resource.k8s.io, and everything else is refused.
func (w *world) serve(annotations map[string]string, resources http.Handler) []string {
	w.t.Helper()
	node, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": "machine", "uid": "machine", "resourceVersion": "1", "annotations": annotations},
	})
	w.must(err)
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Has("watch"):
			<-r.Context().Done()
		case r.URL.Path == "/api/v1/nodes/machine":
			_, _ = rw.Write(node)
		case strings.HasPrefix(r.URL.Path, "/apis/resource.k8s.io/"):
			resources.ServeHTTP(rw, r)
		default:
			http.Error(rw, "not here", http.StatusForbidden)
		}
	}))
	w.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	account := filepath.Join(w.dir, "service-account")
	w.must(os.MkdirAll(account, 0o700))
	w.must(os.WriteFile(filepath.Join(account, "token"), []byte("token"), 0o600))
	w.must(os.WriteFile(filepath.Join(account, "ca.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	address, err := url.Parse(server.URL)
	w.must(err)
	return []string{"NODE_NAME=machine", "CONFIG_FILE=", "SERVICE_ACCOUNT_DIR=" + account, "KUBERNETES_SERVICE_HOST=" + address.Hostname(), "KUBERNETES_SERVICE_PORT=" + address.Port()}
}

// process is a program that uses a GPU.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	// mib is the device memory that it has in MiB, and problem is why it has none.
	mib     int
	problem string
}

// use starts testdata/client.c on a GPU, which does what the argument says. It has the environment that the agent answered to the kubelet.
func (w *world) use(uuid, argument string, environment ...string) *process {
	w.t.Helper()
	p := &process{cmd: exec.CommandContext(w.t.Context(), w.client, argument)}
	p.cmd.Env = append(os.Environ(), append([]string{"CUDA_VISIBLE_DEVICES=" + uuid}, environment...)...)
	return w.start(p)
}

// start starts a program and reads its first line.
func (w *world) start(p *process) *process {
	w.t.Helper()
	in, err := p.cmd.StdinPipe()
	w.must(err)
	out, err := p.cmd.StdoutPipe()
	w.must(err)
	p.in, p.out = in, bufio.NewReader(out)
	w.must(p.cmd.Start())
	w.t.Cleanup(func() { p.end() })
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.problem = err.Error()
		return p
	}
	if p.mib, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		p.problem = strings.TrimSpace(line)
	}
	return p
}

// again lets the program use its memory again.
func (p *process) again() error {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return fmt.Errorf("asking the program: %w", err)
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return fmt.Errorf("the program does not answer: %w", err)
	}
	if line != "ok\n" {
		return errors.New(strings.TrimSpace(line))
	}
	return nil
}

// end lets the program end, and returns its error.
func (p *process) end() error {
	if p.cmd.ProcessState != nil {
		return nil
	}
	_ = p.in.Close()
	return p.cmd.Wait()
}

// metric returns the sum of the series of a metric that contain all of the words.
func (w *world) metric(name string, words ...string) float64 {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", w.port), http.NoBody)
	w.must(err)
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	defer response.Body.Close()
	sum := 0.0
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		series, value, _ := strings.Cut(lines.Text(), "} ")
		if strings.HasPrefix(series, name+"{") && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(series, word) }) {
			n, err := strconv.ParseFloat(value, 64)
			w.must(err)
			sum += n
		}
	}
	w.must(lines.Err())
	return sum
}

// mode returns the compute mode of a GPU.
func (w *world) mode(uuid string) (mode gpu.ComputeMode) {
	w.t.Helper()
	w.library(func(l *nvml.Library) {
		now, err := l.Devices()
		w.must(err)
		for _, d := range now {
			if d.UUID == uuid {
				mode = d.ComputeMode
			}
		}
	})
	return mode
}

// pipes returns the environment of a client of the MPS daemon of a GPU, which in a container has the directory at another path.
func (w *world) pipes(uuid string) string {
	return "CUDA_MPS_PIPE_DIRECTORY=" + mps.PipeDir(w.mpsDir(), uuid)
}
