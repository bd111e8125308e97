package image

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"karve.sh/karve/test/harness/cluster"
)

func TestSBOMListsAllModules(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for _, command := range [][]string{{"build", "node"}, {"sbom"}} {
		run := exec.CommandContext(t.Context(), filepath.Join(root, "tools", command[0]), command[1:]...)
		run.Env = append(os.Environ(), "OUT="+bin, "BIN="+bin, "TRIMPATH=no")
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	info, err := buildinfo.ReadFile(filepath.Join(bin, "karve-node"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "_output", "sbom", "karve-node.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		BOMFormat  string `json:"bomFormat"`
		Components []struct {
			Name    string `json:"name"`
			Version string `json:"version"`
			PURL    string `json:"purl"`
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &bill); err != nil || bill.BOMFormat != "CycloneDX" {
		t.Fatalf("the format is %q: %v", bill.BOMFormat, err)
	}
	got := map[string]string{}
	for _, c := range bill.Components {
		got[c.Name] = c.Version
		if c.PURL == "" {
			t.Errorf("%s has no purl", c.Name)
		}
	}
	if got["std"] != info.GoVersion || len(got) != len(info.Deps)+1 || len(info.Deps) == 0 {
		t.Errorf("there are %d components with Go %s, want %d with %s", len(got), got["std"], len(info.Deps)+1, info.GoVersion)
	}
	for _, module := range info.Deps {
		if got[module.Path] != module.Version {
			t.Errorf("%s is %q, want %s", module.Path, got[module.Path], module.Version)
		}
	}
}
