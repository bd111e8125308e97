package chart_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/test/harness/cluster"
)

// alerts returns the alerts of the chart's PrometheusRule by name.
func alerts(t *testing.T, options ...string) map[string]monitoringv1.Rule {
	t.Helper()
	rule := into[monitoringv1.PrometheusRule](t, objects(t, append([]string{needed, "--set=prometheusRule.enabled=true"}, options...)...), "PrometheusRule")
	found := map[string]monitoringv1.Rule{}
	for _, group := range rule.Spec.Groups {
		for _, r := range group.Rules {
			if r.Alert != "" {
				found[r.Alert] = r
			}
		}
	}
	return found
}

func TestEveryAlertHasARunbookAndEveryRunbookAnAlert(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "runbooks.md"))
	if err != nil {
		t.Fatal(err)
	}
	var sections []string
	for _, heading := range regexp.MustCompile(`(?m)^## (\S+)$`).FindAllStringSubmatch(string(page), -1) {
		sections = append(sections, heading[1])
	}
	all := alerts(t, "--set=prometheusRule.runbooks=https://wiki.example.com/karve")
	if diff := cmp.Diff(slices.Sorted(slices.Values(sections)), slices.Sorted(maps.Keys(all))); diff != "" {
		t.Errorf("sections of docs/runbooks.md and alerts (-sections +alerts):\n%s", diff)
	}
	for name, alert := range all {
		if want := "https://wiki.example.com/karve#" + strings.ToLower(name); alert.Annotations["runbook_url"] != want {
			t.Errorf("%s links to %s, want %s", name, alert.Annotations["runbook_url"], want)
		}
		if alert.Annotations["summary"] == "" || alert.Annotations["description"] == "" || !slices.Contains([]string{"info", "warning", "critical"}, alert.Labels["severity"]) {
			t.Errorf("%s has the annotations %v and the labels %v", name, alert.Annotations, alert.Labels)
		}
	}
	for name, part := range map[string]string{"look": "**Look.**", "fix": "**Fix.**"} {
		if n := strings.Count(string(page), part); n != len(sections) {
			t.Errorf("%d of %d runbooks say what to do: %s", n, len(sections), name)
		}
	}
}

func TestAlertsCanBeLeftOut(t *testing.T) {
	all, fewer := alerts(t), alerts(t, "--set=prometheusRule.disabled={KarvePoolNearLimit,KarveGPUErrors}")
	for _, name := range []string{"KarvePoolNearLimit", "KarveGPUErrors"} {
		if _, ok := fewer[name]; ok || all[name].Alert == "" {
			t.Errorf("%s is left out: %t, and there otherwise: %t", name, !ok, all[name].Alert != "")
		}
	}
	if len(fewer) != len(all)-2 {
		t.Errorf("%d of %d alerts are left", len(fewer), len(all))
	}
}

// TestCostsAreRecordedEveryFiveMinutes checks that the interval of the group arrives, because kubectl karve cost counts the samples of an hour.
func TestCostsAreRecordedEveryFiveMinutes(t *testing.T) {
	for option, want := range map[string]int{"prometheusRule.enabled=true": 9, "prometheusRule.disabled={owner:karve_cost_usd_per_hour:avg5m}": 8} {
		rule := into[monitoringv1.PrometheusRule](t, objects(t, needed, "--set=prometheusRule.enabled=true", "--set="+option), "PrometheusRule")
		recorded := 0
		for _, group := range rule.Spec.Groups {
			for _, r := range group.Rules {
				if r.Record == "" {
					continue
				}
				recorded++
				if group.Interval == nil || *group.Interval != "5m" {
					t.Errorf("%s is recorded at the interval %v", r.Record, group.Interval)
				}
			}
		}
		if recorded != want {
			t.Errorf("%s: %d metrics are recorded, want %d", option, recorded, want)
		}
	}
}

// TestGrafanaFindsTheDashboards checks what Grafana's sidecar and Grafana itself need.
func TestGrafanaFindsTheDashboards(t *testing.T) {
	made := named[corev1.ConfigMap](t, objects(t, needed, "--set=node.enabled=false,dashboards.enabled=true,dashboards.namespace=monitoring,dashboards.annotations.grafana_folder=Karve"), "ConfigMap")
	if diff := cmp.Diff([]string{"karve-dashboard-controller", "karve-dashboard-cost", "karve-dashboard-gpus"}, slices.Sorted(maps.Keys(made))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	uids := map[string]bool{}
	for name, cm := range made {
		if cm.Namespace != "monitoring" || cm.Labels["grafana_dashboard"] != "1" || cm.Annotations["grafana_folder"] != "Karve" || len(cm.Data) != 1 {
			t.Errorf("%s is in %s, has the labels %v, the annotations %v and %d files", name, cm.Namespace, cm.Labels, cm.Annotations, len(cm.Data))
		}
		for file, text := range cm.Data {
			var dashboard struct {
				UID, Title string
				Panels     []struct {
					ID      int
					Title   string
					GridPos struct{ X, Y, W, H int }
				}
			}
			if err := json.Unmarshal([]byte(text), &dashboard); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if uids[dashboard.UID] || dashboard.UID == "" || len(dashboard.UID) > 40 || dashboard.Title == "" {
				t.Errorf("%s has the UID %q and the title %q", file, dashboard.UID, dashboard.Title)
			}
			uids[dashboard.UID] = true
			ids := map[int]bool{}
			for i, p := range dashboard.Panels {
				at := p.GridPos
				if ids[p.ID] || p.Title == "" || at.X+at.W > 24 {
					t.Errorf("%s: panel %d %q is at %+v", file, p.ID, p.Title, at)
				}
				ids[p.ID] = true
				for _, o := range dashboard.Panels[:i] {
					if o := o.GridPos; at.X < o.X+o.W && o.X < at.X+at.W && at.Y < o.Y+o.H && o.Y < at.Y+at.H {
						t.Errorf("%s: %q is over another panel", file, p.Title)
					}
				}
			}
		}
	}
}
