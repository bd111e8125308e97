package builder

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestBinaryIsStaleIfMissingOrModuleChanged(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	bin := filepath.Join(root, "_output", "bin")
	all := make([]string, 0, len(Cluster))
	for _, target := range Cluster {
		all = append(all, target.name)
		write(t, filepath.Join(target.dir(root), "go.mod"), target.module)
		write(t, filepath.Join(target.dir(root), "go.sum"), "")
	}
	expect(t, root, all...)

	for _, target := range Cluster {
		stamp, err := target.stamp(root)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(bin, target.name), "binary")
		write(t, filepath.Join(bin, stampDir, target.name), stamp)
	}
	expect(t, root)

	write(t, filepath.Join(root, "test", "harness", "cluster", "build", "karpenter", "go.sum"), "another version")
	expect(t, root, "karpenter")

	if err := os.Remove(filepath.Join(bin, "etcd")); err != nil {
		t.Fatal(err)
	}
	expect(t, root, "etcd", "karpenter")
}

func expect(t *testing.T, root string, want ...string) {
	t.Helper()
	got, err := Stale(root, Cluster)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("stale are %q, want %q", got, want)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
