package chart_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/test/harness/cluster"
)

// TestMigrationPagesHaveValuesForTheAgentAlone renders the chart of the agent with the values that docs/migrate has for nodes that Karve did not launch.
func TestMigrationPagesHaveValuesForTheAgentAlone(t *testing.T) {
	t.Parallel()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	pages := filepath.Join(root, "docs", "migrate")

	slots := template(t, "--values="+filepath.Join(pages, "gpushare", "own-nodes.yaml"))
	if diff := cmp.Diff(map[string]string{"gpushare": "true"}, daemonSet(t, "--values="+filepath.Join(pages, "gpushare", "own-nodes.yaml")).Spec.Template.Spec.NodeSelector); diff != "" {
		t.Errorf("gpushare's nodes: %s", diff)
	}
	text := into[corev1.ConfigMap](t, slots, "ConfigMap").Data["default"]
	config, warnings, err := sharing.Read([]byte(text), true)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, %v in %s", err, warnings, text)
	}
	want := &sharing.MemorySlots{Slots: []sharing.SlotCount{{SizeMiB: 3072, Count: 4}}, ReserveMiB: 512, Enforcement: "Watch"}
	if diff := cmp.Diff(want, config.Sharing.MemorySlots); diff != "" {
		t.Errorf("the slots: %s", diff)
	}

	instances := daemonSet(t, "--values="+filepath.Join(pages, "gpu-operator", "own-hosts.yaml"))
	for name, value := range map[string]string{"MIG_STRATEGY": "mixed", "DCGM_METRICS": "true"} {
		if got := env(instances, name); got != value {
			t.Errorf("%s is %q, want %q", name, got, value)
		}
	}
	if diff := cmp.Diff(map[string]string{"example.com/gpu-agent": "karve"}, instances.Spec.Template.Spec.NodeSelector); diff != "" {
		t.Errorf("hosts: %s", diff)
	}
}
