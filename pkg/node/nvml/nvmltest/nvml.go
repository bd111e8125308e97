// Package nvmltest builds a fake libnvidia-ml.so.1 in C, and writes the state file that describes its GPUs. The same binary that reads real GPUs runs
// on it: set LD_LIBRARY_PATH to the directory of the path that Build returns, and Env to the path of the state file. A test may rewrite the file at any
// time, even while the library is in use.
package nvmltest

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Env is the environment variable that names the state file.
const Env = "KARVE_FAKE_NVML"

// Name is the file name of the library, the same as that of the real one.
const Name = "libnvidia-ml.so.1"

//go:embed lib
var source embed.FS

// sources are the files of the library. The first includes the others.
var sources = []string{"nvml.c", "mig.h", "mig.c", "gpm.c"}

// Build compiles the library once for each version of its source and returns its path. It skips the test if there is no C compiler.
func Build(t testing.TB) string {
	t.Helper()
	path, err := BuildIn(t.Context(), outputFolder())
	if errors.Is(err, exec.ErrNotFound) {
		t.Skipf("no C compiler to build %s with: %v", Name, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// BuildIn compiles the library into a directory below dir that is named after the hash of its source, and returns its path.
func BuildIn(ctx context.Context, dir string) (string, error) {
	sum := sha256.New()
	for _, name := range sources {
		text, err := source.ReadFile("lib/" + name)
		if err != nil {
			return "", fmt.Errorf("building %s: %w", Name, err)
		}
		sum.Write(text)
	}
	folder := filepath.Join(dir, "nvml-"+hex.EncodeToString(sum.Sum(nil)[:6]))
	path := filepath.Join(folder, Name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		compiler, err = exec.LookPath("cc")
	}
	if err != nil {
		return "", fmt.Errorf("building %s: %w", Name, err)
	}
	// Packages are tested concurrently. Each builds its own file, and the last rename wins.
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // Build output, as _output/bin.
		return "", fmt.Errorf("building %s: %w", Name, err)
	}
	work, err := os.MkdirTemp(folder, "build-")
	if err != nil {
		return "", fmt.Errorf("building %s: %w", Name, err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	input, output := filepath.Join(work, sources[0]), filepath.Join(work, Name)
	for _, name := range sources {
		text, err := source.ReadFile("lib/" + name)
		if err == nil {
			err = os.WriteFile(filepath.Join(work, name), text, 0o600)
		}
		if err != nil {
			return "", fmt.Errorf("building %s: %w", Name, err)
		}
	}
	//nolint:gosec // The compiler is gcc or cc, as found in PATH.
	cmd := exec.CommandContext(ctx, compiler, "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread",
		"-Wl,-soname,"+Name, "-o", output, input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", Name, err, out)
	}
	if err := os.Rename(output, path); err != nil {
		return "", fmt.Errorf("building %s: %w", Name, err)
	}
	return path, nil
}

// outputFolder returns _output/lib of the repository, or a temporary directory outside of it.
func outputFolder() string {
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "pkg", "node", "nvml")); missing == nil {
			return filepath.Join(dir, "_output", "lib")
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			break
		}
		dir = parent
	}
	return filepath.Join(os.TempDir(), "karve-lib")
}

// Use is like [New], and points this process at the state file.
func Use(t *testing.T, profile State) (string, *Machine) {
	t.Helper()
	path, m := New(t, profile)
	t.Setenv(Env, m.Path)
	return path, m
}

// New builds the library, and returns its path and a machine of the test, whose state file is already written.
func New(t *testing.T, profile State) (string, *Machine) {
	t.Helper()
	m := &Machine{Path: filepath.Join(t.TempDir(), "gpus"), State: profile}
	m.Write(t)
	return Build(t), m
}
