// Package prometheus tests the chart's dashboards and alerts, and the examples for other tools, with a real Prometheus, which scrapes the real controller and the real agent.
package prometheus

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
)

const rulesFile = "charts/karve/files/rules/karve.yaml"

// binaries builds Prometheus and promtool if they are missing, and returns their folder. It builds them here, because no other suite needs them.
var binaries = sync.OnceValues(func() (string, error) {
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "_output", "bin"), builder.Build(context.Background(), root, os.Stderr, builder.Prometheus)
})

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func root(t *testing.T) string {
	t.Helper()
	return must[string](t)(cluster.Root())
}

type rules struct {
	Groups []group `json:"groups"`
}

type group struct {
	Name     string `json:"name"`
	Interval string `json:"interval,omitempty"`
	Rules    []rule `json:"rules"`
}

// rule is an alert, or records a metric.
type rule struct {
	Alert       string            `json:"alert,omitempty"`
	Record      string            `json:"record,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func readRules(t *testing.T) (all rules) {
	t.Helper()
	text := must[[]byte](t)(os.ReadFile(filepath.Join(root(t), rulesFile)))
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// rulesOften writes the rules to a file, all of them evaluated at the default interval.
func rulesOften(t *testing.T) string {
	t.Helper()
	all := readRules(t)
	for i := range all.Groups {
		all.Groups[i].Interval = ""
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, must[[]byte](t)(yaml.Marshal(all)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func promtool(t *testing.T, arguments ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(must[string](t)(binaries()), "promtool"), arguments...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
}

func TestPromtoolFindsNothingWrongWithTheRules(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", filepath.Join(root(t), rulesFile))
}

func TestScrapeConfigurationOfDocumentationIsValid(t *testing.T) {
	t.Parallel()
	page := string(must[[]byte](t)(os.ReadFile(filepath.Join(root(t), "docs", "metrics.md"))))
	_, config, _ := strings.Cut(page, "```yaml\nscrape_configs:\n")
	config, _, found := strings.Cut(config, "```")
	if !found {
		t.Fatal("the page has no scrape configuration")
	}
	file := filepath.Join(t.TempDir(), "prometheus.yaml")
	if err := os.WriteFile(file, []byte("scrape_configs:\n"+config), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "config", file)
}

// TestAlertsFireWhenTheyShouldAndNotOtherwise runs testdata/alerts.yaml, on the rules without their annotations, which promtool would compare as well.
func TestAlertsFireWhenTheyShouldAndNotOtherwise(t *testing.T) {
	t.Parallel()
	all, dir := readRules(t), t.TempDir()
	for _, group := range all.Groups {
		for i := range group.Rules {
			group.Rules[i].Annotations = nil
		}
	}
	tests := must[[]byte](t)(os.ReadFile("testdata/alerts.yaml"))
	for file, text := range map[string][]byte{"RULES": must[[]byte](t)(yaml.Marshal(all)), "alerts.yaml": tests} {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	promtool(t, "test", "rules", filepath.Join(dir, "alerts.yaml"))

	var read struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string `json:"alertname"`
				ExpAlerts []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	if err := yaml.Unmarshal(tests, &read); err != nil {
		t.Fatal(err)
	}
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, test := range read.Tests {
		for _, alert := range test.AlertRuleTest {
			fires[alert.Alertname] = fires[alert.Alertname] || len(alert.ExpAlerts) > 0
			quiet[alert.Alertname] = quiet[alert.Alertname] || len(alert.ExpAlerts) == 0
		}
	}
	for _, group := range all.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" {
				continue
			}
			if !fires[rule.Alert] || !quiet[rule.Alert] {
				t.Errorf("testdata/alerts.yaml has a test in which %s fires: %t, and one in which it does not: %t", rule.Alert, fires[rule.Alert], quiet[rule.Alert])
			}
		}
	}
}
