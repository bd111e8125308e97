package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/clouds"
)

const tinyTypes = `[
  {"name": "tiny-t4", "architecture": "amd64", "operatingSystems": ["linux"],
   "resources": {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "110", "nvidia.com/gpu": "1"},
   "offerings": [{"Price": 0.3, "Available": true, "Requirements": [
     {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
     {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["north-1"]},
     {"key": "karpenter.tiny.example/gpu", "operator": "In", "values": ["Tesla-T4"]},
     {"key": "karpenter.tiny.example/gpu-mib", "operator": "In", "values": ["16384"]}]}]},
  {"name": "tiny-old", "architecture": "amd64", "operatingSystems": ["linux"],
   "resources": {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "110", "nvidia.com/gpu": "1"},
   "offerings": [{"Price": 0.1, "Available": true, "Requirements": [
     {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
     {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["north-1"]},
     {"key": "karpenter.tiny.example/gpu", "operator": "In", "values": ["Tesla-M60"]},
     {"key": "karpenter.tiny.example/gpu-mib", "operator": "In", "values": ["8192"]}]}]}
]`

// TestAnotherCloudIsPlannedFor registers a cloud with its own node class, labels and names of GPUs, and changes nothing else. It is not parallel, because
// others read the list of clouds.
func TestAnotherCloudIsPlannedFor(t *testing.T) {
	all := clouds.All
	t.Cleanup(func() { clouds.All = all })
	clouds.All = slices.Concat(all, []*cloud.Provider{{
		NodeClass: schema.GroupKind{Group: "karpenter.tiny.example", Kind: "TinyNodeClass"}, LabelPrefix: "karpenter.tiny.example/",
		GPULabels: catalog.GPULabels{
			Name: "karpenter.tiny.example/gpu", Memory: "karpenter.tiny.example/gpu-mib", Models: map[string]string{"Tesla-T4": "t4", "Tesla-M60": "m60"},
		},
	}})
	folder := t.TempDir()
	types := filepath.Join(folder, "types.json")
	if err := os.WriteFile(types, []byte(tinyTypes), 0o600); err != nil {
		t.Fatal(err)
	}
	r := report{replicas: 20}
	manifests := strings.NewReplacer(
		"{group: karpenter.k8s.aws, kind: EC2NodeClass, name: gpu}", "{group: karpenter.tiny.example, kind: TinyNodeClass, name: gpu}",
		"- {key: karpenter.k8s.aws/instance-family, operator: In, values: [g4dn, g5]}", "- {key: karpenter.tiny.example/gpu, operator: Exists}",
	).Replace(r.manifests())
	for strategy, want := range map[string]string{
		"TimeSlicing": "2 × tiny-old",
		"MPS":         "2 × tiny-t4", // An M60 cannot have it, whatever the cloud calls it.
	} {
		file := filepath.Join(folder, strategy+".yaml")
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(manifests, "strategy: TimeSlicing", "strategy: "+strategy)), 0o600); err != nil {
			t.Fatal(err)
		}
		out := runIt(t, []string{"plan", "-f", file, "--instance-types", types}, "")
		if !strings.Contains(out, want) || strings.Contains(out, "g4dn") {
			t.Errorf("%s:\n%s\nwant %s", strategy, out, want)
		}
	}
}
