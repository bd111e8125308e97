// Package builder makes the binaries of the local cluster from the Go modules below test/harness/cluster/build. Each of them
// pins versions that the product's own go.mod must not carry.
package builder

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// target is a binary to build.
type target struct {
	name, module, pkg string
}

// module is how the binaries of a Go module below test/harness/cluster/build are built.
type module struct {
	ldflags, tags string
	static        bool   // without cgo
	takes         string // all of it the first time, on two cores
}

// Go's cache serves modules that agree on the versions of what they share. So kwok, helm and the scheduler's filters are built with the libraries of
// Kubernetes, and Karpenter and NVIDIA's plugin with those of Karve; test/suites/arch compares them.
var modules = map[string]module{
	"kubernetes": {
		takes: "5 minutes",
		// Without the version the API server calls itself v0.0.0-master, which newer clients refuse. The cluster of `helm template` is of helm's version.
		ldflags: "-X k8s.io/component-base/version.gitVersion=v1.36.3" +
			" -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36" +
			" -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=36",
	},
	// Without the version Karpenter says "unspecified" in its logs and to AWS.
	"karpenter": {takes: "1 minute", ldflags: "-X sigs.k8s.io/karpenter/pkg/operator.Version=1.14.1"},
	"runc":      {takes: "15 seconds"},
	// What is left out needs libraries or is of no use here.
	"containerd": {takes: "1 minute", tags: "no_btrfs,no_devmapper,no_rdt,no_tracing,no_zfs", static: true},
	// The flags are those of the plugin's own Makefile. The library with the driver's functions is not there when it is linked.
	"nvidia": {
		takes: "half a minute",
		ldflags: "-extldflags=-Wl,--export-dynamic,--unresolved-symbols=ignore-in-object-files" +
			" -X github.com/NVIDIA/k8s-device-plugin/internal/info.version=v0.19.0",
	},
}

// Set is the binaries that are needed together.
type Set []target

// Cluster is what the local cluster runs, and helm, which renders the charts that are installed there.
var Cluster = Set{
	{"kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"},
	{"kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"},
	{"kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"},
	{"kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl"},
	{"etcd", "kubernetes", "go.etcd.io/etcd/server/v3"},
	{"kwok", "kubernetes", "sigs.k8s.io/kwok/cmd/kwok"},
	helm,
	{"karpenter", "karpenter", "github.com/aws/karpenter-provider-aws/cmd/controller"},
}

// Helm is what renders charts.
var Helm = Set{helm}

var helm = target{"helm", "kubernetes", "helm.sh/helm/v3/cmd/helm"}

// Containers is what a node with a real kubelet and real containers runs, and NVIDIA's device plugin.
var Containers = Set{
	{"kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet"},
	{"runc", "runc", "github.com/opencontainers/runc"},
	{"containerd", "containerd", "github.com/containerd/containerd/v2/cmd/containerd"},
	{"containerd-shim-runc-v2", "containerd", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
	{"ctr", "containerd", "github.com/containerd/containerd/v2/cmd/ctr"},
	{"ptp", "containerd", "github.com/containernetworking/plugins/plugins/main/ptp"},
	{"host-local", "containerd", "github.com/containernetworking/plugins/plugins/ipam/host-local"},
	{"nvidia-device-plugin", "nvidia", "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin"},
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
	for len(stale) > 0 {
		name := stale[0].module
		together := slices.DeleteFunc(slices.Clone(stale), func(t target) bool { return t.module != name })
		stale = slices.DeleteFunc(stale, func(t target) bool { return t.module == name })
		_, _ = fmt.Fprintf(progress, "building %s (at most %s on two cores, the first time)\n", strings.Join(together.names(), ", "), modules[name].takes)
		began := time.Now()
		if err := together.build(ctx, root, bin, progress); err != nil {
			return fmt.Errorf("building %s: %w", strings.Join(together.names(), ", "), err)
		}
		_, _ = fmt.Fprintf(progress, "  built in %s\n", time.Since(began).Round(time.Second))
	}
	return nil
}

// Stale names the binaries that are missing or were built from other versions than are pinned now. It reads a few small
// files and builds nothing.
func Stale(root string, of Set) ([]string, error) {
	stale, err := of.stale(root, filepath.Join(root, "_output", "bin"))
	return stale.names(), err
}

func (s Set) names() []string {
	var names []string
	for _, t := range s {
		names = append(names, t.name)
	}
	return names
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
	m := modules[t.module]
	_, _ = fmt.Fprintln(h, t.pkg, m.ldflags, m.tags, m.static)
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
	return filepath.Join(root, "test", "harness", "cluster", "build", t.module)
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

// build builds the binaries of one module together: it is read once, and they are linked side by side.
func (s Set) build(ctx context.Context, root, bin string, progress io.Writer) error {
	m := modules[s[0].module]
	if s[0].module == "karpenter" {
		if err := copyCRDs(ctx, root, bin); err != nil {
			return err
		}
	}
	// Moved into place when it is done: an old one may be running, and half a binary must not look like one.
	fresh := filepath.Join(bin, stampDir, "new")
	if err := errors.Join(os.RemoveAll(fresh), os.MkdirAll(fresh, 0o755)); err != nil { //nolint:gosec // binaries for everybody
		return err
	}
	// Without -s -w they take twice the disk. With -trimpath what another build uses too would be compiled a second time.
	args := []string{"go", "build", "-v", "-tags", m.tags, "-ldflags", strings.TrimSpace("-s -w " + m.ldflags), "-o", fresh}
	for _, t := range s {
		args = append(args, t.pkg)
	}
	environment := os.Environ()
	if m.static {
		environment = append(environment, "CGO_ENABLED=0")
	}
	compiled := &packages{}
	stop := compiled.tell(progress)
	_, err := command(ctx, s[0].dir(root), environment, compiled, args...)
	stop()
	if err != nil {
		return err
	}
	for _, t := range s {
		if err := t.install(root, bin, filepath.Join(fresh, executable(t.pkg))); err != nil {
			return err
		}
	}
	return os.RemoveAll(fresh)
}

// install moves a binary into place, and its stamp: both may be links to those of another checkout.
func (t target) install(root, bin, built string) error {
	if err := os.Rename(built, filepath.Join(bin, t.name)); err != nil {
		return err
	}
	stamp, err := t.stamp(root)
	if err != nil {
		return err
	}
	if err := os.WriteFile(built, []byte(stamp), 0o600); err != nil {
		return err
	}
	return os.Rename(built, filepath.Join(bin, stampDir, t.name))
}

// executable is what go build calls the program of a package.
func executable(pkg string) string {
	if dir, last := path.Split(pkg); len(last) == 2 && last[0] == 'v' {
		pkg = path.Clean(dir)
	}
	return path.Base(pkg)
}

// packages counts those that go build -v names as it compiles them.
type packages struct{ compiled atomic.Int64 }

func (p *packages) Write(b []byte) (int, error) {
	p.compiled.Add(int64(bytes.Count(b, []byte("\n"))))
	return len(b), nil
}

// tell says every few seconds how far it is, until it is stopped.
func (p *packages) tell(progress io.Writer) (stop func()) {
	done, began := make(chan struct{}), time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(8 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				_, _ = fmt.Fprintf(progress, "  %d packages compiled after %s\n", p.compiled.Load(), time.Since(began).Round(time.Second))
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// copyCRDs puts the CRDs of Karpenter and of its AWS provider beside the binaries, so that a cluster starts without the module cache. They belong
// to the version that is pinned for the binary, and no other is left: the folder is moved into place as a whole.
func copyCRDs(ctx context.Context, root, bin string) error {
	module := target{module: "karpenter"}.dir(root)
	out, err := command(ctx, module, os.Environ(), io.Discard, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/aws/karpenter-provider-aws")
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

// command runs a command and returns what it writes. What it says goes to progress, and into the error when it fails.
func command(ctx context.Context, dir string, environment []string, progress io.Writer, args ...string) ([]byte, error) {
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // go
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, environment, &out, io.MultiWriter(&errs, progress)
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, errs.String())
	}
	return []byte(out.String()), nil
}

// Alone runs a build of one of the repository's own programs while nobody else runs one: test packages run side by side, and need the same ones.
func Alone(root string, build func() error) error {
	bin := filepath.Join(root, "_output", "bin")
	if err := os.MkdirAll(filepath.Join(bin, stampDir), 0o755); err != nil { //nolint:gosec // binaries for everybody
		return err
	}
	unlock, err := lock(filepath.Join(bin, stampDir, "own"), io.Discard)
	if err != nil {
		return err
	}
	defer unlock()
	return build()
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
