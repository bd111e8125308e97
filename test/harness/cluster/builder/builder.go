// Package builder builds the binaries of the local cluster from the Go modules below test/harness/cluster/build. Each module pins versions that must not
// be in the product's own go.mod.
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
	dir           string // from the root; below test/harness/cluster/build if empty
	ldflags, tags string
	flags         []string
	static        bool   // without cgo
	takes         string // duration of the first build, on two cores
}

// KubernetesFlag compiles the packages that only the builds of Kubernetes itself use without debug information. That takes a seventh less time. With the flag for
// all of k8s.io, client-go and the API types would be compiled a second time, for Karve, which takes two minutes of processor time.
const KubernetesFlag = "-gcflags=k8s.io/kubernetes/...=-dwarf=false"

// Modules that agree on the versions of shared dependencies share Go's build cache. So kwok, helm and the scheduler's filters are built with the
// Kubernetes libraries of the control plane, and Karpenter and NVIDIA's plugin with those of Karve. test/suites/arch compares the versions.
var modules = map[string]module{
	"kubernetes": {
		takes: "5 minutes",
		flags: []string{KubernetesFlag},
		// Without the version the API server reports v0.0.0-master, which newer clients refuse. `helm template` assumes the Kubernetes version that helm
		// was built with.
		ldflags: "-X k8s.io/component-base/version.gitVersion=v1.37.2" +
			" -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=37" +
			" -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=37",
	},
	// Without the version Karpenter reports "unspecified" in its logs and to AWS.
	"karpenter": {takes: "1 minute", ldflags: "-X sigs.k8s.io/karpenter/pkg/operator.Version=1.15.0"},
	"runc":      {takes: "15 seconds"},
	// The tags leave out what needs C libraries or is not used here.
	"containerd": {takes: "1 minute", tags: "no_btrfs,no_devmapper,no_rdt,no_tracing,no_zfs", static: true},
	// The tags leave out service discovery, which needs the clients of all clouds.
	"prometheus": {takes: "2 minutes", tags: "remove_all_sd"},
	// It does not compile with newer Kubernetes libraries than its own.
	"gpu-operator": {takes: "3 minutes", ldflags: "-s -w", static: true},
	"kueue":        {takes: "10 minutes"},
	// They share the Kubernetes libraries of the scheduler of scheduler-plugins, which does not compile with newer ones than its own.
	"jobs": {takes: "10 minutes"},
	// The flags are those of the plugin's own Makefile. The driver's library is missing at link time.
	"nvidia": {
		dir:   filepath.Join("test", "suites", "nvidia"),
		takes: "half a minute",
		ldflags: "-extldflags=-Wl,--export-dynamic,--unresolved-symbols=ignore-in-object-files" +
			" -X github.com/NVIDIA/k8s-device-plugin/internal/info.version=v0.19.0",
	},
}

// Set is a set of binaries that are used together.
type Set []target

// Demo holds the binaries of the local cluster, and helm, which renders the charts that are installed there.
var Demo = Set{
	{"kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"},
	{"kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"},
	{"kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"},
	{"etcd", "kubernetes", "go.etcd.io/etcd/server/v3"},
	{"kwok", "kubernetes", "sigs.k8s.io/kwok/cmd/kwok"},
	helm,
	{"karpenter", "karpenter", "github.com/aws/karpenter-provider-aws/cmd/controller"},
}

// Cluster holds the binaries of the local cluster, and kubectl for tests and people.
var Cluster = append(slices.Clone(Demo), target{"kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl"})

// Helm holds the binary that renders charts.
var Helm = Set{helm}

var helm = target{"helm", "kubernetes", "helm.sh/helm/v3/cmd/helm"}

// Containers holds the binaries of a node with a real kubelet and real containers, and NVIDIA's device plugin and GPU Operator.
var Containers = Set{
	{"kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet"},
	{"runc", "runc", "github.com/opencontainers/runc"},
	{"containerd", "containerd", "github.com/containerd/containerd/v2/cmd/containerd"},
	{"containerd-shim-runc-v2", "containerd", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
	{"ctr", "containerd", "github.com/containerd/containerd/v2/cmd/ctr"},
	{"ptp", "containerd", "github.com/containernetworking/plugins/plugins/main/ptp"},
	{"host-local", "containerd", "github.com/containernetworking/plugins/plugins/ipam/host-local"},
	{"nvidia-device-plugin", "nvidia", "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin"},
	{"gpu-operator", "gpu-operator", "github.com/NVIDIA/gpu-operator/cmd/gpu-operator"},
}

// Prometheus holds a Prometheus server, and the tool that tests its rules.
var Prometheus = Set{
	{"prometheus", "prometheus", "github.com/prometheus/prometheus/cmd/prometheus"},
	{"promtool", "prometheus", "github.com/prometheus/prometheus/cmd/promtool"},
}

// Kueue holds Kueue's controller.
var Kueue = Set{{"kueue", "kueue", "sigs.k8s.io/kueue/cmd/kueue"}}

// Coscheduling holds the scheduler of scheduler-plugins.
var Coscheduling = Set{{"coscheduling", "jobs", "./coscheduling"}}

// Jobs holds the controllers of JobSets, PyTorchJobs and RayClusters.
var Jobs = Set{
	{"jobset", "jobs", "sigs.k8s.io/jobset"},
	{"training-operator", "jobs", "github.com/kubeflow/training-operator/cmd/training-operator.v1"},
	{"ray-operator", "jobs", "github.com/ray-project/kuberay/ray-operator"},
}

// Build builds missing and stale binaries into root/_output/bin and writes its progress to progress. It links those that Given names. A second build waits
// for the first.
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
	if stale, err = stale.take(ctx, root, bin); err != nil {
		return fmt.Errorf("building the cluster: %w", err)
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

// Stale returns the names of the binaries that are missing or were built from other versions than are pinned now. It reads a few small files and builds
// nothing.
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

// stamp returns a hash of what the binary is built from: the pinned modules and the build flags. For a given program, it returns its path and version.
func (t target) stamp(root string) (string, error) {
	if path, version, err := t.given(); path != "" || err != nil {
		return path + " " + version, err
	}
	h := sha256.New()
	m := modules[t.module]
	_, _ = fmt.Fprintln(h, t.pkg, m.ldflags, m.tags, m.flags, m.static)
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
	if dir := modules[t.module].dir; dir != "" {
		return filepath.Join(root, dir)
	}
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

// build builds the binaries of one module together, so that the module is loaded once and the binaries are linked in parallel.
func (s Set) build(ctx context.Context, root, bin string, progress io.Writer) error {
	m := modules[s[0].module]
	if s[0].module == "karpenter" {
		if err := copyCRDs(ctx, root, bin); err != nil {
			return err
		}
	}
	// Build into a new folder and move the binaries when they are complete: an old binary may be running, and a partial one must not look complete.
	fresh := filepath.Join(bin, stampDir, "new")
	if err := errors.Join(os.RemoveAll(fresh), os.MkdirAll(fresh, 0o755)); err != nil { //nolint:gosec // binaries for everybody
		return err
	}
	// Without -s -w the binaries need twice the disk space. With -trimpath, packages that other builds use too would be compiled a second time.
	args := []string{"go", "build", "-v", "-tags", m.tags, "-ldflags", strings.TrimSpace("-s -w " + m.ldflags), "-o", fresh}
	args = append(args, m.flags...)
	for _, t := range s {
		args = append(args, t.pkg)
	}
	environment := Environment()
	if m.static {
		environment = append(environment, "CGO_ENABLED=0")
	}
	compiled := &packages{}
	stop := compiled.reportProgress(progress)
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

// Environment returns the environment for a large build. The compiler collects its garbage less often, which takes an eighth less time.
func Environment() []string { return append(os.Environ(), "GOGC=400") }

// install moves a binary and its stamp into place. Both may be links to those of another checkout.
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

// executable returns the name that go build gives to the program of a package.
func executable(pkg string) string {
	if dir, last := path.Split(pkg); len(last) == 2 && last[0] == 'v' {
		pkg = path.Clean(dir)
	}
	return path.Base(pkg)
}

// packages counts the packages that go build -v prints as it compiles them.
type packages struct{ compiled atomic.Int64 }

func (p *packages) Write(b []byte) (int, error) {
	p.compiled.Add(int64(bytes.Count(b, []byte("\n"))))
	return len(b), nil
}

// reportProgress prints the progress every few seconds until stop is called.
func (p *packages) reportProgress(progress io.Writer) (stop func()) {
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

// copyCRDs copies the CRDs of Karpenter and its AWS provider next to the binaries, so that a cluster starts without the module cache. They belong to the
// pinned version of the binary. The folder is replaced as a whole, so no other CRD remains.
func copyCRDs(ctx context.Context, root, bin string) error {
	module := target{module: "karpenter"}.dir(root)
	out, err := command(ctx, module, os.Environ(), io.Discard, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/aws/karpenter-provider-aws")
	if err != nil {
		return fmt.Errorf("finding its CRDs: %w", err)
	}
	// Use the AWS provider's copies of Karpenter's CRDs. They know the AWS labels.
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "pkg", "apis", "crds", "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("copying its CRDs: none in %s", out)
	}
	return replaceCRDs(bin, files)
}

func replaceCRDs(bin string, files []string) error {
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

// command runs a command and returns its output. Its stderr goes to progress and, if the command fails, into the error.
func command(ctx context.Context, dir string, environment []string, progress io.Writer, args ...string) ([]byte, error) {
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, environment, &out, io.MultiWriter(&errs, progress)
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, errs.String())
	}
	return []byte(out.String()), nil
}

// Alone runs build, a build of one of the repository's own programs, while no other process runs one. Test packages run in parallel and need the same
// programs.
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

// lock locks a file, so that only one build writes to the folder.
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
