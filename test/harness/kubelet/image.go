package kubelet

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"karve.sh/karve/test/harness/cluster/builder"
)

// Image is the only image. Its program prints its environment as JSON and waits.
const Image = "karve.test/pod:1"

// program builds one of the commands of this package into _output/bin, statically, and returns its path. A second build is fast thanks to Go's cache.
func program(ctx context.Context, root, name string) (string, error) {
	path := filepath.Join(root, "_output", "bin", "kubelet-"+name)
	return path, builder.Alone(root, func() error {
		cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", path, "./harness/kubelet/cmd/"+name)
		cmd.Dir = filepath.Join(root, "test")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", name, err, out)
		}
		return nil
	})
}

// MPSControl builds a fake nvidia-cuda-mps-control and returns its path.
func MPSControl(ctx context.Context, root string) (string, error) {
	return program(ctx, root, "mps-control")
}

// writeImage writes an image with one program, in the format of `docker save`.
func writeImage(path, program string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("making the image: %w", err)
	}
	layer, err := archive(file{"pod", 0o755, binary})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/pod"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return fmt.Errorf("making the image: %w", err)
	}
	manifest, err := json.Marshal([]any{map[string]any{
		"Config": "config.json", "RepoTags": []string{Image}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return fmt.Errorf("making the image: %w", err)
	}
	image, err := archive(file{"manifest.json", 0o644, manifest}, file{"config.json", 0o644, config}, file{"layer.tar", 0o644, layer})
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, image, 0o600); err != nil {
		return fmt.Errorf("making the image: %w", err)
	}
	return nil
}

type file struct {
	name    string
	mode    int64
	content []byte
}

func archive(files ...file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content))}); err != nil {
			return nil, fmt.Errorf("making the image: %w", err)
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, fmt.Errorf("making the image: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("making the image: %w", err)
	}
	return out.Bytes(), nil
}
