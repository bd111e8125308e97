package image

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/registry"
)

// TestChartsOfAReleaseCanBePulled packs the charts twice, copies their OCI layouts into a registry, and has helm pull them from there.
func TestChartsOfAReleaseCanBePulled(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	version, err := chart.Version()
	if err != nil {
		t.Fatal(err)
	}
	first, second := t.TempDir(), t.TempDir()
	for _, out := range []string{first, second} {
		pack := exec.CommandContext(t.Context(), filepath.Join(root, "tools", "charts"))
		pack.Env = append(os.Environ(), "OUT="+out)
		if text, err := pack.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
	same(t, first, second)
	store := registry.New(t)
	for _, name := range []string{"karve", "karve-crd"} {
		layout := t.TempDir()
		unpack(t, filepath.Join(first, "chart-"+name+".tar"), layout)
		store.Load(t, layout, "charts/"+name)
		pulled := t.TempDir()
		helm(t, "pull", "oci://"+store.Host+"/charts/"+name, "--version="+version, "--plain-http", "--destination="+pulled)
		same(t, filepath.Join(pulled, name+"-"+version+".tgz"), filepath.Join(first, name+"-"+version+".tgz"))
		renders(t, filepath.Join(pulled, name+"-"+version+".tgz"), name)
	}
	helm(t, "push", filepath.Join(first, "karve-"+version+".tgz"), "oci://"+store.Host+"/pushed", "--plain-http")
	if !store.Has(store.Host + "/pushed/karve:" + version) {
		t.Error("helm does not push the archive of the chart")
	}
}

// renders checks that helm renders a packaged chart, and that what lies beside the manifests is not in it.
func renders(t *testing.T, packaged, name string) {
	t.Helper()
	c := chart.Chart{Name: packaged, Release: name, Namespace: "karve-system"}
	if _, err := c.Template(t.Context(), "--set=controller.image.repository=registry.example.com/karve/controller", "--set=node.image.repository=registry.example.com/karve/node"); err != nil {
		t.Error(err)
	}
	files, err := exec.CommandContext(t.Context(), "tar", "--list", "--file="+packaged).Output()
	if err != nil {
		t.Fatal(err)
	}
	for f := range bytes.FieldsSeq(files) {
		if slices.Contains([]string{".go", ".gotmpl"}, filepath.Ext(string(f))) {
			t.Errorf("the chart %s has the file %s", name, f)
		}
	}
}

func helm(t *testing.T, args ...string) {
	t.Helper()
	program, err := chart.Helm()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "HELM_CACHE_HOME="+home)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("helm %v: %v\n%s", args, err, out)
	}
}

func unpack(t *testing.T, archive, folder string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "tar", "--extract", "--file="+archive, "--directory="+folder).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// same checks that two files or folders have the same content.
func same(t *testing.T, a, b string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "diff", "--recursive", "--brief", a, b).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
