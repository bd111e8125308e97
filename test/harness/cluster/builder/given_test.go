package builder

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// program writes a program that prints a version.
func program(t *testing.T, path, version string) {
	t.Helper()
	write(t, path, "#!/bin/sh\necho "+version+"\n")
	if err := os.Chmod(path, 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
}

func TestGivenProgramsAreUsed(t *testing.T) {
	root, folder := t.TempDir(), t.TempDir()
	t.Setenv(Given, folder)
	program(t, filepath.Join(folder, "kube-apiserver"), "Kubernetes v1.34.4")
	wanted := Set{{"kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"}}
	if stale, err := wanted.stale(root, filepath.Join(root, "_output", "bin")); err != nil || len(stale) != 1 {
		t.Fatal(stale, err)
	}
	var progress bytes.Buffer
	for range 2 {
		if err := Build(t.Context(), root, &progress, wanted); err != nil || progress.Len() > 0 {
			t.Fatal(progress.String(), err)
		}
		if link, err := os.Readlink(filepath.Join(root, "_output", "bin", "kube-apiserver")); err != nil || link != filepath.Join(folder, "kube-apiserver") {
			t.Fatal(link, err)
		}
	}
	// Another version, or none given any more, is another program.
	for name, change := range map[string]func(){
		"another version": func() { program(t, filepath.Join(folder, "kube-apiserver"), "Kubernetes v1.36.3") },
		"no folder": func() {
			t.Setenv(Given, "")
			write(t, filepath.Join(wanted[0].dir(root), "go.mod"), "")
			write(t, filepath.Join(wanted[0].dir(root), "go.sum"), "")
		},
	} {
		change()
		if stale, err := wanted.stale(root, filepath.Join(root, "_output", "bin")); err != nil || len(stale) != 1 {
			t.Errorf("%s: %v, %v", name, stale, err)
		}
	}
}

func TestGivenProgramsAreChecked(t *testing.T) {
	folder := t.TempDir()
	t.Setenv(Given, folder)
	program(t, filepath.Join(folder, "kube-scheduler"), "Kubernetes v1.29.1")
	program(t, filepath.Join(folder, "etcd"), "something else")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(folder, "karpenter")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		target
		want string
	}{
		"too old":         {target{"kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"}, "version v1.29.1 is not between 1.33 and 1.37"},
		"no version":      {target{"etcd", "kubernetes", "go.etcd.io/etcd/server/v3"}, "no version in"},
		"another program": {target{"karpenter", "karpenter", "github.com/aws/karpenter-provider-aws/cmd/controller"}, "and not github.com/aws/karpenter-provider-aws/cmd/controller"},
	} {
		if _, _, err := c.given(); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), Given) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if path, _, err := (target{name: "kwok"}).given(); path != "" || err != nil {
		t.Errorf("a program that is not there: %s, %v", path, err)
	}
}
