package prometheus

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const dashboardsFiles = "charts/karve/files/dashboards/*.json"

// dashboard is what Grafana evaluates of a dashboard.
type dashboard struct {
	Title  string
	Panels []panel
}

type panel struct {
	Title   string
	GridPos struct{ X, Y, W, H int }
	Targets []struct{ Expr, LegendFormat string }
}

func readDashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files := must[[]string](t)(filepath.Glob(filepath.Join(root(t), dashboardsFiles)))
	all := map[string]dashboard{}
	for _, file := range files {
		var d dashboard
		if err := json.Unmarshal(must[[]byte](t)(os.ReadFile(file)), &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = d
	}
	if len(all) != 3 {
		t.Fatalf("there are %d dashboards", len(all))
	}
	return all
}

// variables replaces the variables of an expression as Grafana does when everything is selected.
var variables = strings.NewReplacer("$cluster", ".*", "$nodepool", ".*", "$namespace", ".*", "$pod", ".*", "$node", ".*", "$__rate_interval", "10s", "$__range", "1m")

// wanted says that one of some metrics must have a label.
type wanted struct {
	label string
	of    []string
}

// parse returns the metrics of an expression, as Prometheus parses it, and the labels that its matchers and aggregations want.
func (s *server) parse(expr string) (metrics []string, labels []wanted, err error) {
	tree, err := api[map[string]any](s, "parse_query", "query", expr)
	if err != nil {
		return nil, nil, err
	}
	metrics, labels = walk(tree)
	return metrics, labels, nil
}

func walk(node map[string]any) (metrics []string, labels []wanted) {
	if kind := node["type"]; kind == "vectorSelector" || kind == "matrixSelector" {
		metrics = []string{fmt.Sprint(node["name"])}
		matchers, _ := node["matchers"].([]any)
		for _, m := range matchers {
			if m, ok := m.(map[string]any); ok && m["name"] != "__name__" {
				labels = append(labels, wanted{fmt.Sprint(m["name"]), metrics})
			}
		}
		return metrics, labels
	}
	for _, value := range node {
		children, ok := value.([]any)
		if !ok {
			children = []any{value}
		}
		for _, child := range children {
			if child, ok := child.(map[string]any); ok && child["type"] != nil {
				more, wants := walk(child)
				metrics, labels = append(metrics, more...), append(labels, wants...)
			}
		}
	}
	grouping, _ := node["grouping"].([]any)
	for _, label := range grouping {
		labels = append(labels, wanted{fmt.Sprint(label), metrics})
	}
	return metrics, labels
}

// TestDashboardsKeepClustersApart checks that each metric is selected by the variable for the cluster, and that no aggregation of what only one cluster has
// merges clusters. Metrics of one cluster alone lack the label, which the variable and the aggregations then ignore.
func TestDashboardsKeepClustersApart(t *testing.T) {
	t.Parallel()
	metric := regexp.MustCompile(`\b(karve|leader_election|controller_runtime|process)_\w+(\{[^}]*\})?`)
	grouping := regexp.MustCompile(`\b(max by|on) \(([^)]*)\)`)
	for name, d := range readDashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				for _, m := range metric.FindAllStringSubmatch(target.Expr, -1) {
					if !strings.Contains(m[2], `cluster=~"$cluster"`) {
						t.Errorf("%s, %s: %s is of all clusters", name, p.Title, m[0])
					}
				}
				for _, m := range grouping.FindAllStringSubmatch(target.Expr, -1) {
					if !strings.HasPrefix(m[2], "cluster") {
						t.Errorf("%s, %s: %s merges clusters", name, p.Title, m[0])
					}
				}
			}
		}
	}
}
