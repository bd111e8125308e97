package metrics

import (
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"karve.sh/karve/pkg/internal/docpage"
)

var update = flag.Bool("update", false, "rewrite the table of the controller's metrics in docs/metrics.md")

// listed is a Registerer that only collects what is registered.
type listed []prometheus.Collector

func (l *listed) Register(c prometheus.Collector) error { *l = append(*l, c); return nil }

func (l *listed) MustRegister(all ...prometheus.Collector) { *l = append(*l, all...) }

func (l *listed) Unregister(prometheus.Collector) bool { return false }

func kind(c prometheus.Collector) string {
	switch c.(type) {
	case prometheus.Histogram, *prometheus.HistogramVec:
		return "histogram"
	case *prometheus.GaugeVec, *bills:
		return "gauge"
	case *prometheus.CounterVec:
		return "counter"
	case prometheus.Gauge: // A Gauge has all methods of a Counter, so it must come first.
		return "gauge"
	default:
		return "counter"
	}
}

// A Desc has no getters, so desc parses its String.
var desc = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "(.*)", unit: "", constLabels: \{\}, variableLabels: \{([^}]*)\}\}$`)

func table(t *testing.T) string {
	t.Helper()
	var all listed
	New(&all)
	var rows []string
	for _, c := range all {
		descs := make(chan *prometheus.Desc)
		go func() {
			defer close(descs)
			c.Describe(descs)
		}()
		for d := range descs {
			m := desc.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("a metric cannot be read: %s", d)
			}
			labels, of := "", ""
			if m[3] != "" {
				labels = "{" + m[3] + "}"
			}
			if (kind(c) == "counter") != strings.HasSuffix(m[1], "_total") {
				t.Errorf("%s is a %s: the page says that the names of counters, and no others, end in _total", m[1], kind(c))
			}
			if kind(c) == "histogram" {
				of = ", histogram"
			}
			rows = append(rows, fmt.Sprintf("| `%s%s`%s | %s |\n", m[1], labels, of, m[2]))
		}
	}
	slices.Sort(rows)
	return "| metric | |\n|---|---|\n" + strings.Join(rows, "")
}

func TestReferenceListsControllerMetrics(t *testing.T) {
	t.Parallel()
	docpage.Check(t, "../../docs/metrics.md", "<!-- controller -->\n", "<!-- end of controller -->\n", table(t), *update)
}
