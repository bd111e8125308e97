package cost

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/density"
)

var update = flag.Bool("update", false, "rewrite docs/sharing-cost.md, its pictures and pkg/density/measured.json")

const (
	reportsDir = "../reports"
	docs       = "../../../../docs"
)

func rows() []Row {
	var all []Row
	for _, mode := range []string{TimeSlicing, MPS, MPSThreads} {
		for _, load := range Loads {
			for _, n := range []int{1, 2, 16} {
				all = append(all, Row{Mode: mode, Load: load, Clients: n, OpsPerSecond: 100 * float64(n), P50us: 95.04, P99us: 1234.5 * float64(n), MemoryMiBPerClient: 500.4})
			}
		}
	}
	return all
}

func TestRowIsOneLine(t *testing.T) {
	t.Parallel()
	want := rows()[0]
	want.P50us = 95
	text := want.String()
	var got Row
	if err := json.Unmarshal([]byte(text), &got); err != nil || got != want || strings.Contains(text, "\n") {
		t.Errorf("%s is read as %+v, %v", text, got, err)
	}
}

func TestSummaryHasTheMedianAndTheWorstClient(t *testing.T) {
	t.Parallel()
	got := Row{Mode: MPS, Clients: 4, Load: "short"}
	got.Summarize([]Result{{Operations: 10, Seconds: 2, P50: 40, P99: 50}, {30, 2, 10, 90}, {20, 2, 20, 70}, {20, 2, 30, 60}})
	want := Row{Mode: MPS, Clients: 4, Load: "short", OpsPerSecond: 40, PerClientMin: 5, PerClientMax: 15, P50us: 20, P99us: 90}
	if got != want {
		t.Errorf("the summary is %v, want %v", got, want)
	}
	got.OpsPerSecond = 1.0 / 3
	if text := got.String(); !strings.Contains(text, `"opsPerSecond":0.3,`) {
		t.Errorf("the row is %s", text)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	got := Table(rows())
	for _, want := range []string{
		"\n| load | clients | TimeSlicing | p99 | MPS | p99 | MPS, limited threads | p99 |\n|---|---|---|---|---|---|---|---|\n",
		"\n| Short kernels | 1 | 1.00 | 1.23 ms | 1.00 |", "\n| Inference | 16 | 16.00 | 19.8 ms |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q in\n%s", want, got)
		}
	}
	// Without MPS there are no columns for it, and what was not measured is a dash.
	few := Table([]Row{{Mode: TimeSlicing, Load: "short", Clients: 1, OpsPerSecond: 3, P99us: 2e6}, {Mode: TimeSlicing, Load: "compute", Clients: 4, OpsPerSecond: 3, P99us: 2}})
	for _, want := range []string{"| load | clients | TimeSlicing | p99 |\n|---|---|---|---|\n| Short kernels | 1 | 1.00 | 2 s |\n| Short kernels | 4 | - | - |\n", "| Compute | 4 | - | 2 µs |\n"} {
		if !strings.Contains(few, want) {
			t.Errorf("there is no %q in\n%s", want, few)
		}
	}
}

func TestPictureHasALineForEachMode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rows                    []Row
		charts, lines, vertices int
	}{
		"all":     {rows(), 5, 15, 45},
		"one row": {rows()[:1], 1, 1, 1},
		"none":    {nil, 0, 0, 0},
	} {
		picture := Picture(c.rows)
		charts, lines, vertices := 0, 0, 0
		inChart := false
		for d := xml.NewDecoder(strings.NewReader(picture)); ; {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, picture)
			}
			e, ok := token.(xml.StartElement)
			if !ok {
				continue
			}
			switch {
			case e.Name.Local == "g":
				charts, inChart = charts+1, true
			case e.Name.Local == "polyline" && inChart:
				lines++
				vertices += len(strings.Fields(e.Attr[0].Value))
			}
		}
		if charts != c.charts || lines != c.lines || vertices != c.vertices {
			t.Errorf("%s: %d charts, %d lines and %d points, want %d, %d and %d", name, charts, lines, vertices, c.charts, c.lines, c.vertices)
		}
		if strings.Contains(picture, "NaN") || strings.Contains(picture, "+Inf") || strings.Contains(picture, "-Inf") {
			t.Errorf("%s: a point is nowhere\n%s", name, picture)
		}
	}
}

func TestReadSkipsReportsWithoutMeasurements(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"h100": `{"began": "2026-11-27T10:00:00Z", "product": "NVIDIA H100", "driver": "580", "checks": [{"name": "TestMPS", "result": "pass"}, {"name": "TestCosts/mps", "result": "pass", "measured": {"cost": [{"mode": "mps", "load": "short", "clients": 2}], "wait": [3]}}]}`,
		"t4":   `{"checks": [{"name": "TestMPS", "result": "skip"}]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reports, err := Read(dir)
	if err != nil || len(reports) != 1 || len(reports[0].Rows) != 1 || reports[0].Picture() != "sharing-cost-h100.svg" {
		t.Fatalf("the reports are %+v, %v", reports, err)
	}
	if page := Page(reports); !strings.Contains(page, "\n## NVIDIA H100\n\nDriver 580, 2026-11-27.\n\n![p99 latency by the number of clients](images/sharing-cost-h100.svg)\n") {
		t.Errorf("the page is\n%s", page)
	}
}

func TestIntroHolds(t *testing.T) {
	t.Parallel()
	reports, err := Read(reportsDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reports {
		throughput := func(mode, load string, clients int) float64 {
			row, _ := find(r.Rows, mode, load, clients)
			alone, _ := find(r.Rows, TimeSlicing, load, 1)
			return row.OpsPerSecond / alone.OpsPerSecond
		}
		for _, c := range []struct {
			mode, load  string
			clients     int
			least, most float64
		}{
			{TimeSlicing, "compute", 8, 0.97, 1.03},
			{TimeSlicing, "memory", 8, 0.97, 1.03},
			{MPS, "compute", 8, 1.04, 1.11},
			{MPS, "memory", 8, 1.04, 1.11},
			{TimeSlicing, "short", 8, 0, 0.35},
			{MPS, "short", 8, 6, 12},
			{TimeSlicing, "inference", 4, 3.95, 4.05},
			{TimeSlicing, "inference", 8, 0, 7},
			{MPS, "inference", 16, 15.9, 16.1},
			{MPSThreads, "inference", 16, 15.9, 16.1},
		} {
			if got := throughput(c.mode, c.load, c.clients); !(c.least <= got && got <= c.most) {
				t.Errorf("%s: %d clients with load %s and %s have %.2f times the throughput of one, and the introduction says %.2f to %.2f", r.Name, c.clients, c.load, c.mode, got, c.least, c.most)
			}
		}
		for _, c := range []struct {
			mode    string
			clients int
			want    float64
		}{{TimeSlicing, 1, 520}, {TimeSlicing, 16, 520}, {MPS, 1, 520}, {MPS, 16, 520}, {MPSThreads, 4, 145}, {MPSThreads, 16, 59}} {
			row, _ := find(r.Rows, c.mode, "compute", c.clients)
			if got := row.MemoryMiBPerClient; got < c.want-6.5 || got > c.want+6.5 {
				t.Errorf("%s: %d clients with %s take %.0f MiB each, and the introduction says %.0f", r.Name, c.clients, c.mode, got, c.want)
			}
		}
	}
}

func TestDocumentationMatchesReports(t *testing.T) {
	t.Parallel()
	reports, err := Read(reportsDir)
	if err != nil {
		t.Fatal(err)
	}
	if len(reports) == 0 {
		t.Skip("no report has measurements")
	}
	files := map[string]string{filepath.Join(docs, "sharing-cost.md"): Page(reports)}
	var measured []density.Measurement
	for _, r := range reports {
		files[filepath.Join(docs, "images", r.Picture())] = Picture(r.Rows)
		measured = append(measured, r.Density())
	}
	text, err := json.MarshalIndent(measured, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	files["../../../../pkg/density/measured.json"] = string(text) + "\n"
	for file, want := range files {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(file)
		if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
			t.Errorf("%s differs from the reports: %v; go -C test test ./suites/gpu/cost -run Documentation -update rewrites it (-want +got):\n%s", file, err, diff)
		}
	}
}
