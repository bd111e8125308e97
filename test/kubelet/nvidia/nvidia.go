// Package nvidia builds NVIDIA's device plugin from its Go module, pinned in test/kubelet/build/nvidia, to be run and measured beside
// Karve's agent.
package nvidia

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Version is the one that is pinned.
const Version = "v0.19.0"

// flags are those of the plugin's own Makefile. The library with the driver's functions is not there when it is linked.
const flags = "-s -w -extldflags=-Wl,--export-dynamic,--unresolved-symbols=ignore-in-object-files" +
	" -X github.com/NVIDIA/k8s-device-plugin/internal/info.version=" + Version

// Build builds the plugin into _output/bin, below the repository's root, and returns its path. Go's cache makes the second time quick;
// the first takes a minute and a C compiler.
func Build(ctx context.Context, root string) (string, error) {
	path := filepath.Join(root, "_output", "bin", "nvidia-device-plugin")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", flags, "-o", path, //nolint:gosec // go
		"github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin")
	cmd.Dir = filepath.Join(root, "test", "kubelet", "build", "nvidia")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building NVIDIA's device plugin: %w\n%s", err, out)
	}
	return path, nil
}
