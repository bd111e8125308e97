package scale

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
	"karve.sh/karve/test/harness/karve"
)

// Columns of the commands of kubectl-karve: the median of their wall clock times.
const (
	// VerbMax is the slowest of them.
	VerbMax Column = "verbSecondsMax"

	verbInspect     Column = "verbInspectSeconds"
	verbTopNodes    Column = "verbTopNodesSeconds"
	verbTopPods     Column = "verbTopPodsSeconds"
	verbNodes       Column = "verbNodesSeconds"
	verbExplainPod  Column = "verbExplainPodSeconds"
	verbExplainNode Column = "verbExplainNodeSeconds"
	verbDoctor      Column = "verbDoctorSeconds"
	verbRollout     Column = "verbRolloutStatusSeconds"
	verbPlan        Column = "verbPlanSeconds"
)

// verb is a command of kubectl-karve that reads the cluster.
type verb struct {
	column Column
	args   []string
	// says is a part of what it prints.
	says string
	// finds is true if it exits with 1 after it has found something.
	finds bool
}

// verbs returns the commands, with a pod that waits and a node of the NodePool.
func verbs(pod *podRecord, node string) []verb {
	return []verb{
		{column: verbInspect, args: []string{"inspect"}, says: node},
		{column: verbTopNodes, args: []string{"top", "nodes"}, says: node},
		{column: verbTopPods, args: []string{"top", "pods"}, says: "app-0000"},
		{column: verbNodes, args: []string{"nodes"}, says: node},
		{column: verbExplainPod, args: []string{"explain", "pod/" + pod.key.Name, "--namespace=" + pod.key.Namespace}, says: pod.key.Name},
		{column: verbExplainNode, args: []string{"explain", "node/" + node}, says: node},
		{column: verbDoctor, args: []string{"doctor"}, says: "fix:", finds: true},
		{column: verbRollout, args: []string{"rollout", "status"}, says: "GPUImageRollout"},
		{column: verbPlan, args: []string{"plan"}, says: "this plan"},
	}
}

// verbColumns returns the columns of all commands, and that of the slowest.
func verbColumns() []Column {
	columns := []Column{VerbMax}
	for _, v := range verbs(&podRecord{}, "") {
		columns = append(columns, v.column)
	}
	return columns
}

// verbRuns is how often each command runs.
const verbRuns = 3

// commands measures the commands of kubectl-karve while pods wait. Other programs have no such commands.
func (m *measurement) commands(ctx context.Context) error {
	if !m.plays {
		for _, c := range verbColumns() {
			m.figures.Reasons[c] = "kubectl karve is a command of Karve"
		}
		return nil
	}
	plugin, err := BuildPlugin(ctx)
	if err != nil {
		return err
	}
	pod := m.aWaitingPod()
	if pod == nil {
		return errors.New("no pod waits whose place could be explained")
	}
	for _, v := range verbs(pod, nodeName(0)) {
		var walls, cores []time.Duration
		for range verbRuns {
			wall, core, err := m.command(ctx, plugin, v)
			if err != nil {
				return err
			}
			walls, cores = append(walls, wall), append(cores, core)
		}
		slices.Sort(walls)
		slices.Sort(cores)
		took := walls[verbRuns/2]
		m.figures.Values[v.column] = took.Seconds()
		m.figures.Values[VerbMax] = max(m.figures.Values[VerbMax], took.Seconds())
		m.log("kubectl karve %s: %.2f s, with %.2f s of CPU time of its own; load average %s", strings.Join(v.args, " "), took.Seconds(), cores[verbRuns/2].Seconds(), load())
	}
	return nil
}

// Commands measures the commands of kubectl-karve alone, on a cluster without a controller, and logs the figures. Before the cluster stops, it calls then with its kubeconfig.
func Commands(ctx context.Context, size Size, then func(kubeconfig string), log func(string, ...any)) (err error) {
	w, err := NewWorld(ctx, size, Karve(karve.Options{}).Class, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	if err := w.Burst(ctx, size.late(), late); err != nil {
		return err
	}
	m := &measurement{World: w, figures: &Figures{Values: map[Column]float64{}, Reasons: map[Column]string{}}}
	if err := m.commands(ctx); err != nil {
		return err
	}
	then(w.Kubeconfig())
	return nil
}

// aWaitingPod returns one of the pods that have waited for the shortest time, or nil.
func (m *measurement) aWaitingPod() *podRecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == 0 {
		return nil
	}
	return m.waiting[len(m.waiting)-1]
}

// command runs a command once and returns the time that it took, and its own CPU time.
func (m *measurement) command(ctx context.Context, plugin string, v verb) (wall, cores time.Duration, err error) {
	cmd := exec.CommandContext(ctx, plugin, append(slices.Clone(v.args), "--kubeconfig="+m.Kubeconfig())...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	began := time.Now()
	err = cmd.Run()
	wall = time.Since(began)
	var exit *exec.ExitError
	if v.finds && errors.As(err, &exit) && exit.ExitCode() == 1 {
		err = nil
	}
	if err == nil && !strings.Contains(out.String(), v.says) {
		err = fmt.Errorf("it does not say %q", v.says)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("kubectl karve %s: %w: %.500s%.500s", strings.Join(v.args, " "), err, out.String(), errOut.String())
	}
	return wall, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// BuildPlugin builds kubectl-karve as it is released, and returns the path.
func BuildPlugin(ctx context.Context) (string, error) {
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "_output", "bin", "kubectl-karve"), builder.Alone(root, func() error {
		cmd := exec.CommandContext(ctx, filepath.Join(root, "tools", "build"), "kubectl-karve")
		cmd.Env = append(os.Environ(), "TRIMPATH=no")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building kubectl-karve: %w\n%s", err, out)
		}
		return nil
	})
}

// agentMetrics is a part of what an agent serves.
const agentMetrics = `# TYPE karve_gpu_memory_used_bytes gauge
karve_gpu_memory_used_bytes{gpu="GPU-0",index="0",product="Tesla T4"} 7.6546048e+09
# TYPE karve_gpu_utilization_ratio gauge
karve_gpu_utilization_ratio{gpu="GPU-0",index="0",product="Tesla T4"} 0.31
`

// agents serves what the agents of all nodes tell of their GPU, and returns the address that the pods of the DaemonSet have. The host is empty if this machine has only
// a loopback address, which the API server does not connect to.
func (w *World) agents(ctx context.Context) (host string, port int, err error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", 0, fmt.Errorf("reading the addresses of this machine: %w", err)
	}
	for _, a := range addresses {
		if network, ok := a.(*net.IPNet); ok && network.IP.IsGlobalUnicast() && network.IP.To4() != nil {
			host = network.IP.String()
			break
		}
	}
	if port, err = w.FreePort(ctx); err != nil || host == "" {
		return "", port, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("%s:%d", host, port))
	if err != nil {
		return "", 0, fmt.Errorf("serving the metrics of agents: %w", err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		_, _ = out.Write([]byte(agentMetrics)) // The reader has gone if that fails.
	})}
	w.running.Go(func() { _ = server.Serve(listener) })
	w.stopAgents = server.Close
	return host, port, nil
}

// reportAt makes a pod of the DaemonSet one of the agents that serve metrics at an address.
func reportAt(p *corev1.Pod, host string, port int) {
	for i := range p.Spec.Containers[0].Ports {
		if at := &p.Spec.Containers[0].Ports[i]; at.Name == "metrics" {
			at.ContainerPort = int32(port)
		}
	}
	p.Status.PodIP, p.Status.PodIPs = host, nil
	if host != "" {
		p.Status.PodIPs = []corev1.PodIP{{IP: host}}
	}
}
