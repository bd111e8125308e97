package prometheus

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	client "github.com/prometheus/client_golang/prometheus"

	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/cost"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/test/harness/billed"
)

// kubectlPlugin builds kubectl-karve, and returns its path.
var kubectlPlugin = sync.OnceValues(func() (string, error) {
	bin, err := binaries()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "karve")
	if err != nil {
		return "", err
	}
	build := exec.CommandContext(context.Background(), filepath.Join(bin, "..", "..", "tools", "build"), "kubectl-karve")
	build.Env = append(os.Environ(), "OUT="+dir, "TRIMPATH=no")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the plugin: %w\n%s", err, out)
	}
	return filepath.Join(dir, "kubectl-karve"), nil
})

func TestMain(m *testing.M) {
	status := m.Run()
	if path, err := kubectlPlugin(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(status)
}

// kubectlKarve runs the plugin, and returns what it prints to standard output and to standard error.
func kubectlKarve(t *testing.T, args ...string) (out, errOut string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), must[string](t)(kubectlPlugin()), args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

// ledger runs kubectl karve cost, and returns the ledger.
func ledger(t *testing.T, s *server, args ...string) cost.Ledger {
	t.Helper()
	out, errOut, err := kubectlKarve(t, append([]string{"cost", "-o", "json", "--prometheus", s.url}, args...)...)
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, errOut)
	}
	var l cost.Ledger
	if err := json.Unmarshal([]byte(out), &l); err != nil {
		t.Fatal(err)
	}
	return l
}

const aDay = int(24 * time.Hour / billed.Step)

// ways are the groupings that a pod has a name in, with that name.
var ways = map[string]func(*billed.Machine, *billed.Pod) string{
	"namespace":  func(_ *billed.Machine, p *billed.Pod) string { return p.Namespace },
	"owner":      func(_ *billed.Machine, p *billed.Pod) string { return p.Namespace + "/" + p.Owner },
	"label:team": func(_ *billed.Machine, p *billed.Pod) string { return p.Team },
}

func nameOf(by string, key cost.Key) string {
	switch {
	case key.Rest != "":
		return string(key.Rest)
	case by == "owner":
		return key.Namespace + "/" + key.Name
	case by == "namespace":
		return key.Namespace
	default:
		return key.Name
	}
}

func cents(usd float64) int64 { return int64(math.Round(usd * 100)) }

// isBilled checks that a ledger is the one that was added up by hand, each row to half a cent, and that the table and the CSV add up to its total to the cent.
func isBilled(t *testing.T, title string, got *cost.Ledger, want billed.Ledger) {
	t.Helper()
	by, _, _ := strings.Cut(title, " ")
	var total billed.Bill
	for _, b := range want {
		total = billed.Bill{Used: total.Used + b.Used, Idle: total.Idle + b.Idle, Overhead: total.Overhead + b.Overhead}
	}
	if cents(float64(got.Total)/1e6) != cents(total.Total()) {
		t.Errorf("by %s: the total is $%.4f, want $%.4f", title, float64(got.Total)/1e6, total.Total())
	}
	near := func(micro int64, usd float64) bool { return math.Abs(float64(micro)/1e6-usd) < 0.005 }
	if !near(got.Totals.Used, total.Used) || !near(got.Totals.Idle, total.Idle) || !near(got.Totals.Overhead, total.Overhead) {
		t.Errorf("by %s: the totals are %+v, want %+v", title, got.Totals, total)
	}
	if len(got.Rows) != len(want) {
		t.Errorf("by %s: there are %d rows, want %d", title, len(got.Rows), len(want))
	}
	for _, r := range got.Rows {
		if w := want[nameOf(by, r.Key)]; !near(r.Used, w.Used) || !near(r.Idle, w.Idle) || !near(r.Overhead, w.Overhead) {
			t.Errorf("by %s: %+v, want %+v", title, r, w)
		}
	}
}

// listed returns a ledger at the prices in the cloud's list.
func listed(l *cost.Ledger) *cost.Ledger {
	at := *l
	at.Rows, at.Totals, at.Total = slices.Clone(l.Rows), l.List, l.ListTotal
	for i, r := range at.Rows {
		at.Rows[i].Amounts, at.Rows[i].Total = r.List, r.ListTotal
	}
	return &at
}

// sumsOfCSV returns the sums of the columns in cents.
func sumsOfCSV(t *testing.T, text string) (sums [5]int64) {
	t.Helper()
	lines := must[[][]string](t)(csv.NewReader(strings.NewReader(text)).ReadAll())
	for _, line := range lines[1:] {
		for i := range sums {
			whole, hundredths, _ := strings.Cut(line[len(line)-5+i], ".")
			sums[i] += must[int64](t)(strconv.ParseInt(whole+hundredths, 10, 64))
		}
	}
	return sums
}

// TestAQuarterOfAFleetIsBilledToTheCent generates what 500 machines with pods that come and go have left in a Prometheus, and adds up their bills by hand.
func TestAQuarterOfAFleetIsBilledToTheCent(t *testing.T) {
	t.Parallel()
	end := time.Now().UTC().Truncate(24 * time.Hour)
	start := end.AddDate(0, 0, -91)
	steps := 91 * aDay
	fleet := billed.Fleet(1, billed.Size{Steps: steps, Machines: 500, Pools: 4, Namespaces: 6, OwnersEach: 2})
	series := billed.NewSeries(steps)
	for i := range fleet {
		series.AddRecorded(&fleet[i], "")
	}
	dir := t.TempDir()
	never := func(int) bool { return false }
	always := billed.EachStep(start, never)
	err := billed.Blocks(t.Context(), dir, filepath.Join(dir, "data"), func(w io.Writer) error {
		return series.Write(w, start, `{__name__="cluster:karve_cost_unpriced_machines:max5m"}`, never)
	})
	if err != nil {
		t.Fatal(err)
	}
	s := startOn(t, "global: {}\n", must[[]int](t)(freePorts(t, 1))[0], filepath.Join(dir, "data"))
	for by, name := range ways {
		args := []string{"--from", start.Format(time.RFC3339), "--to", end.Format(time.RFC3339), "--by", by}
		got := ledger(t, s, args...)
		isBilled(t, by, &got, billed.Sum(fleet, steps, always, name))
		if by == "owner" { // Adding up by hand takes long.
			isBilled(t, by+" by the list", listed(&got), billed.Sum(billed.Listed(fleet), steps, always, name))
		}
		if got.Coverage.MissingMinutes != 0 {
			t.Errorf("by %s: %s", by, got.Coverage.Text())
		}
		text, _, err := kubectlKarve(t, append([]string{"cost", "-o", "csv", "--prometheus", s.url}, args...)...)
		sums := sumsOfCSV(t, text)
		if err != nil || sums[3] != cents(float64(got.Total)/1e6) || sums[0]+sums[1]+sums[2] != sums[3] || sums[4] != cents(float64(got.ListTotal)/1e6) {
			t.Errorf("by %s: the CSV adds up to %v cents, %v, want %d, and by the list %d", by, sums, err, cents(float64(got.Total)/1e6), cents(float64(got.ListTotal)/1e6))
		}
	}
	byHand := billed.Bill{}
	pools := map[string]float64{}
	for name, b := range billed.Sum(fleet, steps, always, func(m *billed.Machine, _ *billed.Pod) string { return m.Pool }) {
		byHand, pools[name] = billed.Bill{Used: byHand.Used + b.Total()}, b.Total()
	}
	for _, by := range []string{"pool", "class"} {
		got := ledger(t, s, "--from", start.Format(time.RFC3339), "--to", end.Format(time.RFC3339), "--by", by)
		if cents(float64(got.Total)/1e6) != cents(byHand.Used) {
			t.Errorf("by %s: the total is %d, want $%.4f", by, got.Total, byHand.Used)
		}
		for _, r := range got.Rows {
			if by == "pool" && math.Abs(float64(r.Total)/1e6-pools[r.Name]) > 0.005 {
				t.Errorf("%+v, want $%.4f", r, pools[r.Name])
			}
		}
	}
	t.Logf("%d machines for $%.2f", len(fleet), byHand.Used)
}

// scraped makes up what a Prometheus scrapes of a controller each minute, with the controller's own metrics.
type scraped struct {
	start   time.Time
	minutes int
	values  map[string][]string
}

func (s *scraped) scrape(t *testing.T, registry *client.Registry, minute int, labels string) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "karve_cost_") && f.GetName() != "karve_pod_usd_per_hour" && f.GetName() != "karve_pod_discount_usd_per_hour" {
			continue
		}
		for _, m := range f.GetMetric() {
			pairs := []string{fmt.Sprintf("__name__=%q", f.GetName())}
			for _, l := range m.GetLabel() {
				pairs = append(pairs, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			key := "{" + strings.Join(pairs, ",") + labels + "}"
			if s.values[key] == nil {
				s.values[key] = slices.Repeat([]string{"_"}, s.minutes)
			}
			s.values[key][minute] = strconv.FormatFloat(m.GetGauge().GetValue(), 'g', -1, 64)
		}
	}
}

func (s *scraped) write(w io.Writer) error {
	for key, values := range s.values {
		if _, err := fmt.Fprintf(w, "%s\t%d\t60\t%s\n", key, s.start.Add(time.Minute).Unix(), strings.Join(values, " ")); err != nil {
			return err
		}
	}
	return nil
}

// TestRecordingRulesBillWhatTheControllerExports lets Prometheus scrape the controller's metrics of two clusters each minute, and record them with the chart's rules.
// Prometheus is down for some hours, and for some minutes.
func TestRecordingRulesBillWhatTheControllerExports(t *testing.T) {
	t.Parallel()
	const hours = 60
	end := time.Now().UTC().Truncate(24 * time.Hour).Add(6 * time.Hour)
	if end.After(time.Now().Add(-time.Hour)) {
		end = end.Add(-24 * time.Hour)
	}
	start, steps := end.Add(-hours*time.Hour), hours*12
	down := func(minute int) bool {
		return minute >= 20*60 && minute < 23*60 || minute >= 40*60+15 && minute < 40*60+30 || minute == 7 || minute >= 50*60 && minute < 50*60+4
	}
	raw := &scraped{start, hours * 60, map[string][]string{}}
	fleets := map[string][]billed.Machine{
		"east": billed.Fleet(7, billed.Size{Steps: steps, Machines: 12, Pools: 2, Namespaces: 3, OwnersEach: 2}),
		"west": billed.Fleet(8, billed.Size{Steps: steps, Machines: 5, Pools: 2, Namespaces: 4, OwnersEach: 1}),
	}
	for name, fleet := range fleets {
		registry := client.NewRegistry()
		m := metrics.New(registry)
		for minute := range hours * 60 {
			if down(minute) {
				continue
			}
			m.Bill([]string{"team"}, func() []bill.Node { return nodesAt(fleet, minute/5) })
			raw.scrape(t, registry, minute, fmt.Sprintf(`,cluster=%q,instance="10.0.0.%d:8080"`, name, 1+minute/1000)) // The leader changes.
		}
	}
	dir := t.TempDir()
	data, empty := filepath.Join(dir, "data"), filepath.Join(dir, "empty")
	if err := billed.Blocks(t.Context(), dir, data, raw.write); err != nil {
		t.Fatal(err)
	}
	ports := must[[]int](t)(freePorts(t, 3))
	during := []string{"--from", start.Format(time.RFC3339), "--to", end.Format(time.RFC3339)}
	t.Run("without rules", func(t *testing.T) {
		s := startOn(t, "global: {}\n", ports[0], data)
		if _, errOut, err := kubectlKarve(t, append([]string{"cost", "--prometheus", s.url}, during...)...); err == nil || !strings.Contains(errOut, "install the recording rules (prometheusRule.enabled of Karve's chart)") {
			// Raw metrics count only if they are of the last day.
			if !strings.Contains(errOut, "has no metrics of Karve") || time.Since(end) < 23*time.Hour {
				t.Errorf("%v: %s", err, errOut)
			}
		}
		promtool(t, "tsdb", "create-blocks-from", "rules", "--start", fmt.Sprint(start.Unix()), "--end", fmt.Sprint(end.Unix()), "--eval-interval", "5m", "--url", s.url,
			"--output-dir", data, costRules(t))
	})
	s := startOn(t, "global: {}\n", ports[1], data)
	w := windowsOf(t, s, start, hours, down)
	if w.coverage.MissingMinutes < 3*60 || w.coverage.MissingMinutes > 3*60+30 || len(w.coverage.Gaps) < 2 {
		t.Errorf("%s", w.coverage.Text())
	}
	for name, fleet := range fleets {
		for by, of := range ways {
			got := ledger(t, s, append(during, "--by", by, "--cluster-label", name)...)
			isBilled(t, by, &got, billed.Sum(fleet, steps, w.parts, of))
			isBilled(t, by+" by the list", listed(&got), billed.Sum(billed.Listed(fleet), steps, w.parts, of))
			if diff := cmp.Diff(w.coverage, got.Coverage); diff != "" {
				t.Errorf("%s by %s (-want +got):\n%s", name, by, diff)
			}
		}
		pods, namespaces := ledger(t, s, append(during, "--by", "pod", "--cluster-label", name)...), ledger(t, s, append(during, "--by", "namespace", "--cluster-label", name)...)
		of, list := map[string]int64{}, map[string]int64{}
		for _, r := range pods.Rows {
			if r.Name == "" && r.Rest != cost.Unused {
				t.Errorf("%s: the pods of %+v are not known", name, r)
			}
			of[r.Namespace] += r.Total
			list[r.Namespace] += r.ListTotal
		}
		for _, r := range namespaces.Rows {
			if of[r.Namespace] != r.Total || list[r.Namespace] != r.ListTotal {
				t.Errorf("%s: the pods of %s cost %d (by the list %d), and the namespace %d (%d)", name, r.Namespace, of[r.Namespace], list[r.Namespace], r.Total, r.ListTotal)
			}
		}
	}
	other := startOn(t, "global: {}\n", ports[2], empty)
	long := []string{"--since", "2h"}
	for name, c := range map[string]struct {
		s    *server
		args []string
		want string
	}{
		"two clusters":        {s, during, "has the costs of several clusters, choose one with --cluster-label: east, west"},
		"no such cluster":     {s, append(slices.Clone(during), "--cluster-label", "north"), "has no costs of the cluster north, only of east, west"},
		"no such label":       {s, append(slices.Clone(during), "--cluster-label", "east", "--by", "label:app"), "no costs are recorded for the label app in this range: add it to costLabels of Karve's chart"},
		"before the data":     {s, []string{"--from", "2024-01-01", "--to", "2024-02-01"}, "has no data of Karve from 2024-01-01 00:00 to 2024-02-01 00:00 UTC: choose another range"},
		"nobody's Prometheus": {other, long, "has no metrics of Karve: let it scrape the controller"},
	} {
		if out, errOut, err := kubectlKarve(t, append([]string{"cost", "--prometheus", c.s.url}, c.args...)...); err == nil || out != "" || !strings.Contains(errOut, c.want) {
			t.Errorf("%s: %v: %s%s", name, err, out, errOut)
		}
	}
}

// windows are the five minutes over which the rules average. Prometheus evaluates them some time after each full five minutes.
type windows struct {
	parts    func(step int) []billed.Part
	coverage cost.Coverage
}

// windowsOf returns the windows, in which a sample of a minute counts for its share of the samples that are there.
func windowsOf(t *testing.T, s *server, start time.Time, hours int, down func(minute int) bool) windows {
	t.Helper()
	answer := must[struct{ Result []series }](t)(api[struct{ Result []series }](s, "query", "query", "max(timestamp(cluster:karve_cost_unpriced_machines:max5m))", "time", fmt.Sprint(start.Add(time.Hour).Unix())))
	offset := time.Duration(math.Mod(number(answer.Result[0].Value), billed.Step.Seconds()) * float64(time.Second))
	window := func(minute int) int { // The sample of a minute is from its end.
		return int(math.Ceil(float64(time.Duration(minute+1)*time.Minute-offset) / float64(billed.Step)))
	}
	counts := make([]int, hours*12)
	for minute := range hours * 60 {
		if w := window(minute); !down(minute) && w < len(counts) {
			counts[w]++
		}
	}
	covered := make([]int, hours)
	for w, n := range counts {
		if n > 0 {
			covered[w/12]++
		}
	}
	return windows{
		coverage: cost.CoverageOf(cost.Range{From: start, To: start.Add(time.Duration(hours) * time.Hour)}, covered),
		parts: func(step int) (all []billed.Part) {
			for minute := step * 5; minute < step*5+5; minute++ {
				if w := window(minute); !down(minute) && w < len(counts) {
					all = append(all, billed.Part{Day: billed.DayOf(start.Add(time.Duration(w) * billed.Step)), Hours: billed.Step.Hours() / float64(counts[w])})
				}
			}
			return all
		},
	}
}

// nodesAt returns the machines that are there in a step, as the controller bills them.
func nodesAt(fleet []billed.Machine, step int) []bill.Node {
	var nodes []bill.Node
	for i := range fleet {
		m := &fleet[i]
		if step < m.Launched || step >= m.Gone {
			continue
		}
		n := bill.Node{NodePool: m.Pool, GPUNodeClass: m.Class, MicroUSDPerHour: m.Micro, ListMicroUSDPerHour: m.List, Replicas: m.Replicas, TakesPods: step >= m.Ready && step < m.Drained}
		if step >= m.Ready {
			n.Name = fmt.Sprint("n", i)
		}
		for j, p := range m.Pods {
			if step >= p.From && step < p.To {
				n.Holders = append(n.Holders, bill.Holder{
					Namespace: p.Namespace, Name: fmt.Sprintf("p-%d-%d", i, j), Owner: bill.Owner{Kind: "Deployment", Name: p.Owner}, Labels: []string{p.Team}, Replicas: p.Replicas,
				})
			}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// costRules returns a file with the recording rules of the chart only, because the past has no alerts.
func costRules(t *testing.T) string {
	t.Helper()
	all := readRules(t)
	all.Groups = slices.DeleteFunc(all.Groups, func(g group) bool { return g.Name != "karve-cost" })
	file := filepath.Join(t.TempDir(), "cost.yaml")
	if err := os.WriteFile(file, must[[]byte](t)(json.Marshal(all)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
