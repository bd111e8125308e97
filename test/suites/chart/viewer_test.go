package chart_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"karve.sh/karve/test/harness/cluster"
)

// TestViewerHasTheDocumentedPermissions compares the role for users of kubectl karve with the table in docs/cli.md.
func TestViewerHasTheDocumentedPermissions(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n## Permissions\n")
	table, _, _ = strings.Cut(table, "\n## ")
	documented := map[string]bool{}
	verbs := []string{"get", "list", "watch", "create", "patch"}
	for row := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(row, "|")
		if len(cells) != 4 {
			continue
		}
		var with []string
		open := false // whether the next verb is another one for the same kinds
		for _, m := range regexp.MustCompile("`([a-z0-9/-]+)`( \\*)?").FindAllStringSubmatch(cells[2], -1) {
			if name := m[1]; slices.Contains(verbs, name) {
				if !open {
					with = nil
				}
				if m[2] == "" {
					with = append(with, name)
				}
				open = true
				continue
			}
			open = false
			if m[2] != "" || strings.HasPrefix(m[1], "karve") || m[1] == "explain" || m[1] == "inspect" {
				continue // Names of objects and verbs, and what the role does not have.
			}
			for _, verb := range with {
				documented[verb+" "+m[1]] = true
			}
		}
	}
	if len(documented) < 20 {
		t.Fatalf("the table has only %v", documented)
	}
	roles := named[rbacv1.ClusterRole](t, objects(t, needed), "ClusterRole")
	granted := map[string]bool{}
	for _, rule := range roles["karve-viewer"].Rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				if !slices.Contains([]string{"get", "list", "watch"}, verb) || resource == "secrets" {
					t.Errorf("a viewer may %s %s", verb, resource)
				}
				granted[verb+" "+resource] = true
			}
		}
	}
	for right := range documented {
		if !granted[right] {
			t.Errorf("the role karve-viewer lacks: %s", right)
		}
	}
	for _, right := range []string{"get configmaps", "get leases"} {
		if !granted[right] {
			t.Errorf("the role karve-viewer lacks: %s", right)
		}
	}
	view := roles["karve-view"]
	if view.Labels["rbac.authorization.k8s.io/aggregate-to-view"] != "true" || len(view.Rules) != 1 || !slices.Equal(view.Rules[0].APIGroups, []string{"karve.sh"}) {
		t.Errorf("karve-view is %+v", view)
	}
}
