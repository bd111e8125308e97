package kubelet

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"karve.sh/karve/test/harness/cluster/builder"
)

// Image is the image that each node has. Its program prints its environment as JSON and waits.
const Image = "karve.test/pod:1"

// AddImage adds an image to the node. Its program is entrypoint. The keys of files are paths in the image, without a leading slash, and the values paths here.
func (n *Node) AddImage(ctx context.Context, name, entrypoint string, files map[string]string) error {
	content := make([]file, 0, len(files))
	for _, path := range slices.Sorted(maps.Keys(files)) {
		data, err := os.ReadFile(files[path])
		if err != nil {
			return fmt.Errorf("making the image %s: %w", name, err)
		}
		content = append(content, file{path, 0o755, data})
	}
	archive := n.path("image.tar")
	if err := writeImage(archive, name, entrypoint, content...); err != nil {
		return err
	}
	return n.wait(ctx, "containerd has the image "+name, n.containerd, func(ctx context.Context) error {
		if _, err := os.Stat(n.path("containerd.sock")); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		ctr := exec.CommandContext(ctx, n.bin("ctr"), "--address="+n.path("containerd.sock"), "--namespace=k8s.io",
			"image", "import", "--local", "--snapshotter="+snapshotter, archive)
		if out, err := ctr.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

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

// writeImage writes an image in the format of `docker save`.
func writeImage(path, name, entrypoint string, files ...file) error {
	layer, err := archive(files...)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{entrypoint}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return fmt.Errorf("making the image: %w", err)
	}
	manifest, err := json.Marshal([]any{map[string]any{
		"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"},
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
