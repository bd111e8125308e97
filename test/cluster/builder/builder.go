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
	name   string
	module string // folder below test/cluster/build
	pkg    string
	takes  string // the first time, on two cores
	options
}

type options struct {
	ldflags, tags string
	static        bool // without cgo
}

// Set is the binaries that are needed together.
type Set []target

// Without the version the API server calls itself v0.0.0-master, which newer clients refuse.
var kubernetes = options{ldflags: "-X k8s.io/component-base/version.gitVersion=v1.36.3"}

// Without the version Karpenter says "unspecified" in its logs and to AWS.
var karpenter = options{ldflags: "-X sigs.k8s.io/karpenter/pkg/operator.Version=1.14.1"}

// What is left out needs libraries or is of no use here.
var containerd = options{tags: "no_btrfs,no_devmapper,no_rdt,no_tracing,no_zfs", static: true}

// Cluster is what the local cluster runs.
var Cluster = Set{
	{"kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", "4 minutes", kubernetes},
	{"kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", "half a minute", kubernetes},
	{"kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", "a minute", kubernetes},
	{"kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl", "half a minute", kubernetes},
	{"etcd", "kubernetes", "go.etcd.io/etcd/server/v3", "15 seconds", options{}},
	{"kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", "a minute", options{}},
	{"karpenter", "karpenter", "github.com/aws/karpenter-provider-aws/cmd/controller", "two and a half minutes", karpenter},
}

// Containers is what a node with a real kubelet and real containers runs.
var Containers = Set{
	{"kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet", "a minute", kubernetes},
	{"runc", "runc", "github.com/opencontainers/runc", "15 seconds", options{}},
	{"containerd", "containerd", "github.com/containerd/containerd/v2/cmd/containerd", "a minute", containerd},
	{"containerd-shim-runc-v2", "containerd", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", "5 seconds", containerd},
	{"ctr", "containerd", "github.com/containerd/containerd/v2/cmd/ctr", "15 seconds", containerd},
	{"ptp", "containerd", "github.com/containernetworking/plugins/plugins/main/ptp", "5 seconds", containerd},
	{"host-local", "containerd", "github.com/containernetworking/plugins/plugins/ipam/host-local", "5 seconds", containerd},
}

// Build makes what is missing or stale in root/_output/bin and says on progress what it does. Two builds at once wait
// for each other.
func Build(ctx context.Context, root string, progress io.Writer, wanted Set) error {
	bin := filepath.Join(root, "_output", "bin")
	if err := os.MkdirAll(filepath.Join(bin, stampDir), 0o755); err != nil { //nolint:gosec // binaries for everybody
		return fmt.Errorf("building the cluster: %w", err)
	}
	unlock, err := lock(filepath.Join(bin, stampDir, "lock"), progress)
	if err != nil {
		return fmt.Errorf("building the cluster: %w", err)
	}
	defer unlock()
	stale, err := wanted.stale(root, bin)
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
func Stale(root string, of Set) ([]string, error) {
	stale, err := of.stale(root, filepath.Join(root, "_output", "bin"))
	var names []string
	for _, t := range stale {
		names = append(names, t.name)
	}
	return names, err
}

func (s Set) stale(root, bin string) (Set, error) {
	var stale Set
	for _, t := range s {
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
	if t.tags != "" {
		_, _ = fmt.Fprintln(h, t.tags)
	}
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
	// Without -s -w they take twice the disk. With -trimpath what the product uses too, above all the clients of AWS, would be compiled a
	// second time.
	_, err = command(ctx, t.dir(root), t.environment(), "go", "build", "-tags", t.tags, "-ldflags", strings.TrimSpace("-s -w "+t.ldflags), "-o", fresh, t.pkg)
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

func (t target) environment() []string {
	if t.static {
		return append(os.Environ(), "CGO_ENABLED=0")
	}
	return os.Environ()
}

// copyCRDs puts the CRDs of Karpenter and of its AWS provider beside the binaries, so that a cluster starts without the module cache. They belong
// to the version that is pinned for the binary, and no other is left: the folder is moved into place as a whole.
func copyCRDs(ctx context.Context, root, bin string) error {
	module := target{module: "karpenter"}.dir(root)
	out, err := command(ctx, module, os.Environ(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/aws/karpenter-provider-aws")
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
func command(ctx context.Context, dir string, environment []string, args ...string) ([]byte, error) {
	if nice, err := exec.LookPath("nice"); err == nil {
		args = append([]string{nice, "-n", "10"}, args...)
	}
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // go
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, environment, &out, &errs
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
