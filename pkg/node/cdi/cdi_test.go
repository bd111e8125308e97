package cdi_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"karve.sh/karve/pkg/node/cdi"
)

// generated is the output of nvidia-ctk cdi generate, shortened.
const generated = `cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}
- name: GPU-a
  containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}
containerEdits: {env: [NVIDIA_VISIBLE_DEVICES=void]}
`

func TestDevicesComeFromSpecs(t *testing.T) {
	t.Parallel()
	etc, run := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(etc, "nvidia.yaml"):     generated,
		filepath.Join(etc, "notes.txt"):       "kind: nvidia.com/gpu\ndevices: [{name: GPU-z}]",
		filepath.Join(run, "nvidia-gds.json"): `{"cdiVersion": "0.5.0", "kind": "nvidia.com/gds", "devices": [{"name": "all"}]}`,
		filepath.Join(run, "torn.json"):       `{"kind": "nvidia.com/gpu", "devices": [{"name": "GPU-y"`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	specs := cdi.Read(etc, run, filepath.Join(run, "none"))
	if err := specs.Missing([]string{"nvidia.com/gpu=GPU-a", "nvidia.com/gpu=0", "nvidia.com/gds=all"}); err != nil {
		t.Error(err)
	}
	for _, device := range []string{"nvidia.com/gpu=GPU-b", "nvidia.com/gpu=GPU-y", "nvidia.com/gpu=GPU-z", "nvidia.com/mofed=all", "k8s.device-plugin.nvidia.com/gpu=GPU-a"} {
		err := specs.Missing([]string{"nvidia.com/gpu=GPU-a", device, device})
		if err == nil || !strings.Contains(err.Error(), "defines "+device) || strings.Count(err.Error(), device) != 1 || !strings.Contains(err.Error(), "torn.json") {
			t.Errorf("%s: %v", device, err)
		}
	}
}

func TestOversizedSpecDefinesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "large.yaml"), []byte(generated+strings.Repeat("#", 5<<20)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cdi.Read(dir).Missing([]string{"nvidia.com/gpu=GPU-a"}); err == nil || !strings.Contains(err.Error(), "larger than 4 MiB") {
		t.Error(err)
	}
}
