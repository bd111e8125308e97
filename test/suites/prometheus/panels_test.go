package prometheus

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/plugintest"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

const (
	node     = "node-1" // the node of the first agent
	resource = "nvidia.com/gpu.shared"
)

// unseen are the metrics that the agents here have no series for, with their labels. No other device plugin serves the GPUs, and no pod has a slot of device memory.
var unseen = map[string][]string{
	"karve_node_stood_back":               {"resource", "node"},
	"karve_pod_gpu_memory_exceeded_bytes": {"namespace", "pod", "gpu"},
}

// scraping starts a Prometheus with the chart's rules that scrapes a controller and agents.
func scraping(t *testing.T, port int, controller string, agents ...string) *server {
	t.Helper()
	var targets strings.Builder
	for i, agent := range agents {
		_, _ = fmt.Fprintf(&targets, "  - {targets: [%s], labels: {namespace: karve-node, pod: karve-node-%d, node: node-%d}}\n", agent, i, i+1)
	}
	s := start(t, fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s, %s]
scrape_configs:
- job_name: opencost
  honor_labels: true
  static_configs:
  - {targets: [%s]}
- job_name: karve
  honor_labels: true
  static_configs:
  - {targets: [%s], labels: {namespace: karve-system, pod: karve-0}}
- job_name: karve-node
  honor_labels: true
  static_configs:
%s`, rulesOften(t), openCostRules(t), openCost(t), controller, targets.String()), port)
	s.eventually("all are scraped", func() error {
		up, err := s.query("up == 1")
		if err == nil && len(up) != 2+len(agents) {
			err = fmt.Errorf("%d of %d are up", len(up), 2+len(agents))
		}
		return err
	})
	return s
}

// TestPanelsAndAlertsHaveAnswers evaluates every panel and every alert on all metrics of the controller and of agents with fake GPUs. Each panel must have an answer, and
// each metric and label of the expressions must exist.
func TestPanelsAndAlertsHaveAnswers(t *testing.T) {
	ports := must[[]int](t)(freePorts(t, 2))
	agent := startAgent(t, ports[0])
	s := scraping(t, ports[1], controllerWithEverything(t), agent.address, agentWithProcesses(t))
	agent.gpus.Change(t, func(state *nvmltest.State) { state.XIDs = append(state.XIDs, nvmltest.XID{XID: 31}) })
	s.exportsWhatIsDocumented()
	for where, expr := range expressions(t) {
		if metrics := s.wellNamed(where, expr); slices.ContainsFunc(metrics, func(m string) bool { return unseen[m] != nil }) {
			continue
		}
		s.eventually(where, func() error {
			answer, err := s.query(expr)
			if err == nil && len(answer) == 0 {
				err = fmt.Errorf("%s has no answer", expr)
			}
			return err
		})
	}
	for _, group := range readRules(t).Groups {
		for _, rule := range group.Rules {
			s.wellNamed(rule.Alert+rule.Record, rule.Expr)
		}
	}
	s.rulesAreEvaluated()
	t.Run("OpenCost", s.openCostPricesReplicas)
	t.Run("KEDA", s.kedaScalesByWhatPodsUse)
	s.plot(readDashboards(t))
}

func freePorts(t *testing.T, n int) ([]int, error) {
	t.Helper()
	var ports []int
	for range n {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		address, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return nil, errors.New("no TCP address")
		}
		ports = append(ports, address.Port)
	}
	return ports, nil
}

// expressions returns what all panels evaluate, by where.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, d := range readDashboards(t) {
		for _, p := range d.Panels {
			for i, target := range p.Targets {
				all[fmt.Sprintf("%s: %s, query %d", name, p.Title, i+1)] = variables.Replace(target.Expr)
			}
		}
	}
	return all
}

// exportsWhatIsDocumented checks that Prometheus has every metric in docs/metrics.md, so that no panel is tried without one.
func (s *server) exportsWhatIsDocumented() {
	s.t.Helper()
	s.eventually("every metric has a series", func() error {
		names, err := api[[]string](s, "label/__name__/values")
		if err != nil {
			return err
		}
		for name, m := range documented(s.t) {
			if m.histogram {
				name += "_bucket"
			}
			if !slices.Contains(names, name) && unseen[name] == nil {
				return fmt.Errorf("%s has none", name)
			}
		}
		return nil
	})
}

// agent is a running agent with fake GPUs and a fake kubelet.
type agent struct {
	address string // of its metrics
	gpus    *nvmltest.Machine
	kubelet *plugintest.Kubelet
}

// startAgent starts the agent with two fake GPUs of ten replicas, of which pods hold three. The second GPU has profiling counters.
func startAgent(t *testing.T, port int) *agent {
	t.Helper()
	machines := nvmltest.T4(2)
	machines.Devices[1] = nvmltest.H100(2).Devices[1]
	machines.Devices[1].Usage.Profiling = &gpu.Profiling{SMActive: 0.5, NVLinkTransmit: 1e6, NVLinkReceive: 1e6}
	library, machine := nvmltest.New(t, machines)
	program := must[gpus.Plugin](t)(gpus.Karve(t.Context()))
	dir := must[string](t)(os.MkdirTemp("", "karve")) //nolint:usetesting // t.TempDir is too long for a socket's name.
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	k := &plugintest.Kubelet{Network: plugin.Unix{}, Dir: dir}
	if err := k.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte("version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 10}]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	cmd := exec.CommandContext(t.Context(), program.Path, "--kubelet-socket="+k.Socket(), "--pod-resources-socket="+k.PodResourcesSocket(), "--config-file="+config,
		"--metrics-address="+address, "--state-dir=none")
	cmd.Env = machine.Environment(library)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // The end of the test's context has killed it.
	s := &server{t: t}
	s.eventually("the agent has registered its replicas", func() error {
		if n := k.Allocatable(resource); n != 20 {
			return fmt.Errorf("%d replicas", n)
		}
		return nil
	})
	for i := range 3 {
		if _, err := k.Admit(t.Context(), fmt.Sprint("train-", i), resource, 1); err != nil {
			t.Fatal(err)
		}
	}
	return &agent{address, machine, k}
}

// metric is a metric in docs/metrics.md.
type metric struct{ histogram bool }

// documented returns the metrics that docs/metrics.md lists, which tests compare with the code. A row may have several.
func documented(t *testing.T) map[string]metric {
	t.Helper()
	page := must[[]byte](t)(os.ReadFile(filepath.Join(root(t), "docs/metrics.md")))
	all := map[string]metric{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`karve_[^|]*) \\|").FindAllStringSubmatch(string(page), -1) {
		for _, name := range regexp.MustCompile("`(karve_[a-z0-9_]+)[`{]").FindAllStringSubmatch(row[1], -1) {
			all[name[1]] = metric{histogram: strings.HasSuffix(row[1], ", histogram")}
		}
	}
	if len(all) < 80 {
		t.Fatalf("docs/metrics.md lists %d metrics only", len(all))
	}
	return all
}

// wellNamed checks that the metrics of an expression and their labels exist, and returns the metrics.
func (s *server) wellNamed(where, expr string) []string {
	s.t.Helper()
	metrics, wants, err := s.parse(expr)
	if err != nil {
		s.t.Errorf("%s: %v", where, err)
		return nil
	}
	labels := map[string][]string{}
	for _, name := range metrics {
		if labels[name] = unseen[name]; labels[name] != nil {
			continue
		}
		s.eventually(where, func() error {
			if labels[name], err = api[[]string](s, "labels", "match[]", name); err == nil && len(labels[name]) == 0 {
				err = fmt.Errorf("nobody exports %s", name)
			}
			return err
		})
	}
	for _, want := range wants {
		if want.label == "cluster" {
			continue // Only who collects the metrics of several clusters adds it.
		}
		if !slices.ContainsFunc(want.of, func(name string) bool { return slices.Contains(labels[name], want.label) }) {
			s.t.Errorf("%s: none of %v has the label %s", where, want.of, want.label)
		}
	}
	return metrics
}

func number(value [2]any) float64 {
	text, _ := value[1].(string)
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.NaN()
	}
	return n
}

// rulesAreEvaluated waits until Prometheus has evaluated every rule, and checks that it had no errors.
func (s *server) rulesAreEvaluated() {
	s.t.Helper()
	type evaluated struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	s.eventually("every rule was evaluated", func() error {
		all, err := api[evaluated](s, "rules")
		if err != nil {
			return err
		}
		for _, group := range all.Groups {
			for _, rule := range group.Rules {
				if rule.Health != "ok" {
					return fmt.Errorf("%s is %s: %s", rule.Name, rule.Health, rule.LastError)
				}
			}
		}
		return nil
	})
}

// plot writes the panels as pictures into the folder KARVE_DASHBOARDS, for a look.
func (s *server) plot(all map[string]dashboard) {
	folder := os.Getenv("KARVE_DASHBOARDS")
	if folder == "" {
		return
	}
	s.t.Helper()
	end := time.Now()
	for name, d := range all {
		var page strings.Builder
		height := 0
		for _, p := range d.Panels {
			height = max(height, p.GridPos.Y+p.GridPos.H)
			var lines []series
			for _, target := range p.Targets {
				answer, err := api[struct{ Result []series }](s, "query_range", "query", variables.Replace(target.Expr), "start", fmt.Sprint(end.Add(-time.Minute).Unix()), "end", fmt.Sprint(end.Unix()), "step", "1")
				if err != nil {
					s.t.Errorf("%s: %s: %v", name, p.Title, err)
				}
				lines = append(lines, answer.Result...)
			}
			draw(&page, p, lines)
		}
		svg := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="1200" height="%d" font-family="sans-serif" font-size="11"><rect width="100%%" height="100%%" fill="#fff"/>%s</svg>`, height*36, page.String())
		if err := os.MkdirAll(folder, 0o750); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name+".svg"), []byte(svg), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

// draw draws the lines of a panel.
func draw(page *strings.Builder, p panel, lines []series) {
	at := p.GridPos
	x, y, width, height := at.X*50, at.Y*36, at.W*50-6, at.H*36-6
	_, _ = fmt.Fprintf(page, `<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#ccc"/><text x="%d" y="%d" font-weight="bold">%s</text>`, x, y, width, height, x+4, y+14, p.Title)
	most, last := 1e-12, ""
	for _, line := range lines {
		for _, v := range line.Values {
			if n := number(v); !math.IsNaN(n) && !math.IsInf(n, 0) {
				most, last = max(most, n), strconv.FormatFloat(n, 'g', 4, 64)
			}
		}
	}
	for i, line := range lines {
		var points []string
		for j, v := range line.Values {
			if n := number(v); !math.IsNaN(n) && !math.IsInf(n, 0) {
				points = append(points, fmt.Sprintf("%d,%.1f", x+j*width/max(1, len(line.Values)), float64(y+height)-max(0, n)/most*float64(height-24)))
			}
		}
		_, _ = fmt.Fprintf(page, `<polyline fill="none" stroke="hsl(%d 70%% 40%%)" points="%s"/>`, i*67%360, strings.Join(points, " "))
	}
	_, _ = fmt.Fprintf(page, `<text x="%d" y="%d" fill="#666">%d lines, at most %.4g, last %s</text>`, x+4, y+28, len(lines), most, last)
}
