// Package builder makes the binaries of the local cluster from the Go modules below test/cluster/build. Each of them
// pins versions that the product's own go.mod must not carry.
package builder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// target is a binary to build. What it is called and where it comes from is all that differs.
type target struct {
	name    string
	module  string // folder below test/cluster/build
	pkg     string
	ldflags string
	takes   string // the first time, on two cores
}

// Without the version the API server calls itself v0.0.0-master, which newer clients refuse.
const kubernetesFlags = "-X k8s.io/component-base/version.gitVersion=v1.36.3"

// Without the version Karpenter says "unspecified" in its logs and to AWS.
const karpenterFlags = "-X sigs.k8s.io/karpenter/pkg/operator.Version=1.14.1"

var targets = []target{
	{"kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", kubernetesFlags, "4 minutes"},
	{"kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", kubernetesFlags, "half a minute"},
	{"kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", kubernetesFlags, "a minute"},
	{"kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl", kubernetesFlags, "half a minute"},
	{"kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet", kubernetesFlags, "a minute"},
	{"etcd", "kubernetes", "go.etcd.io/etcd/server/v3", "", "15 seconds"},
	{"kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", "", "a minute"},
	{"karpenter", "karpenter", "github.com/aws/karpenter-provider-aws/cmd/controller", karpenterFlags, "two and a half minutes"},
}

// Build makes what is missing or stale in root/_output/bin and says on progress what it does. Two builds at once wait
// for each other.
func Build(ctx context.Context, root string, progress io.Writer) error {
	bin := filepath.Join(root, "_output", "bin")
	if err := os.MkdirAll(filepath.Join(bin, stampDir), 0o755); err != nil { //nolint:gosec // binaries for everybody
		return fmt.Errorf("building the cluster: %w", err)
	}
	unlock, err := lock(filepath.Join(bin, stampDir, "lock"), progress)
	if err != nil {
		return fmt.Errorf("building the cluster: %w", err)
	}
	defer unlock()
	stale, err := staleTargets(root, bin)
	if err != nil {
		return err
	}
	for i, t := range stale {
		_, _ = fmt.Fprintf(progress, "building %s (%d of %d), about %s the first time\n", t.name, i+1, len(stale), t.takes)
		began := time.Now()
		if err := t.build(ctx, root, bin); err != nil {
			return fmt.Errorf("building %s: %w", t.name, err)
		}
		_, _ = fmt.Fprintf(progress, "  built in %s\n", time.Since(began).Round(time.Second))
	}
	return nil
}

// Stale names the binaries that are missing or were built from other versions than are pinned now. It reads a few small
// files and builds nothing.
func Stale(root string) ([]string, error) {
	stale, err := staleTargets(root, filepath.Join(root, "_output", "bin"))
	var names []string
	for _, t := range stale {
		names = append(names, t.name)
	}
	return names, err
}

func staleTargets(root, bin string) ([]target, error) {
	var stale []target
	for _, t := range targets {
		fresh, err := t.fresh(root, bin)
		if err != nil {
			return nil, err
		}
		if !fresh {
			stale = append(stale, t)
		}
	}
	return stale, nil
}

const stampDir = ".stamps"

// stamp says of what the binary was made: the pinned modules and how it is built.
func (t target) stamp(root string) (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, t.pkg, t.ldflags)
	for _, file := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(t.dir(root), file))
		if err != nil {
			return "", fmt.Errorf("building %s: %w", t.name, err)
		}
		_, _ = h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (t target) dir(root string) string {
	return filepath.Join(root, "test", "cluster", "build", t.module)
}

func (t target) fresh(root, bin string) (bool, error) {
	want, err := t.stamp(root)
	if err != nil {
		return false, err
	}
	if _, err := os.Stat(filepath.Join(bin, t.name)); err != nil {
		return false, nil //nolint:nilerr // missing
	}
	got, err := os.ReadFile(filepath.Join(bin, stampDir, t.name))
	return err == nil && string(got) == want, nil
}

func (t target) build(ctx context.Context, root, bin string) error {
	stamp, err := t.stamp(root)
	if err != nil {
		return err
	}
	if t.name == "karpenter" {
		if err := copyCRDs(ctx, root, bin); err != nil {
			return err
		}
	}
	// Moved into place when it is done: an old one may be running, and half a binary must not look like one.
	fresh := filepath.Join(bin, stampDir, t.name+".new")
	// Without -s -w the eight of them take twice the disk. With -trimpath what the product uses too, above all the clients of AWS, would be compiled a
	// second time.
	_, err = command(ctx, t.dir(root), "go", "build", "-ldflags", strings.TrimSpace("-s -w "+t.ldflags), "-o", fresh, t.pkg)
	if err != nil {
		return err
	}
	if err := os.Rename(fresh, filepath.Join(bin, t.name)); err != nil {
		return err
	}
	// The stamp too: the files may be links to those of another checkout.
	if err := os.WriteFile(fresh, []byte(stamp), 0o600); err != nil {
		return err
	}
	return os.Rename(fresh, filepath.Join(bin, stampDir, t.name))
}

// copyCRDs puts the CRDs of Karpenter and of its AWS provider beside the binaries, so that a cluster starts without the module cache. They belong
// to the version that is pinned for the binary, and no other is left: the folder is moved into place as a whole.
func copyCRDs(ctx context.Context, root, bin string) error {
	module := target{module: "karpenter"}.dir(root)
	out, err := command(ctx, module, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/aws/karpenter-provider-aws")
	if err != nil {
		return fmt.Errorf("finding its CRDs: %w", err)
	}
	// The AWS provider's own copies of Karpenter's CRDs: they know the labels that are AWS's.
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "pkg", "apis", "crds", "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("copying its CRDs: none in %s", out)
	}
	fresh, into := filepath.Join(bin, stampDir, "crds.new"), filepath.Join(bin, "crds")
	if err := errors.Join(os.RemoveAll(fresh), os.MkdirAll(fresh, 0o755)); err != nil { //nolint:gosec // files for everybody
		return fmt.Errorf("copying its CRDs: %w", err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("copying its CRDs: %w", err)
		}
		if err := os.WriteFile(filepath.Join(fresh, filepath.Base(file)), content, 0o644); err != nil { //nolint:gosec // not secret
			return fmt.Errorf("copying its CRDs: %w", err)
		}
	}
	if err := errors.Join(os.RemoveAll(into), os.Rename(fresh, into)); err != nil {
		return fmt.Errorf("copying its CRDs: %w", err)
	}
	return nil
}

// command runs at low priority: a build takes all cores for minutes, and somebody works on this machine.
func command(ctx context.Context, dir string, args ...string) ([]byte, error) {
	if nice, err := exec.LookPath("nice"); err == nil {
		args = append([]string{nice, "-n", "10"}, args...)
	}
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // go
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, errs.String())
	}
	return []byte(out.String()), nil
}

// lock holds off other builds into the same folder.
func lock(path string, progress io.Writer) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	fd := int(f.Fd())
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_, _ = fmt.Fprintln(progress, "waiting for another build")
		if err := syscall.Flock(fd, syscall.LOCK_EX); err != nil {
			return nil, err
		}
	}
	return func() { _ = f.Close() }, nil
}
