package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/manifests"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
	"karve.sh/karve/test/harness/karve"
)

// The names of the objects in examples/.
const (
	examplePool       = "gpu-shared"
	exampleClass      = "gpu-shared"
	exampleDeployment = "inference"
)

// poolExamples are the files of examples/ that make the pool.
var poolExamples = []string{"nodeclass.yaml", "gpunodeclass.yaml", "nodepool.yaml"}

// nodeDelay is how long a machine takes from running to being a Node. It is long enough to be seen, and shorter than the minute of a real machine.
const nodeDelay = 3 * time.Second

// errEnded means that a component of the cluster ended unexpectedly.
var errEnded = errors.New("ended unasked")

type demo struct {
	*story
	root string
	// page says to serve the web page, and to leave the cluster up until Ctrl-C.
	page bool
	// dra says to give the GPUNodeClass backend DRA.
	dra bool
	// logs is the folder with the logs of a failed demo.
	logs string

	cluster   *cluster.Cluster
	client    client.Client
	watcher   *watcher
	types     []catalog.InstanceType
	prices    prices
	resource  corev1.ResourceName
	idleAfter string
}

func (d *demo) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go untilOrphaned(ctx, cancel)
	var err error
	if d.root, err = cluster.Root(); err != nil {
		return err
	}
	// Remove the figures of an earlier demo, so that they are not taken for those of one that fails.
	result := filepath.Join(d.root, "_output", "demo.json")
	if err := os.Remove(result); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing old figures: %w", err)
	}
	if err := d.readTypes(); err != nil {
		return err
	}
	if err := d.planAhead(ctx); err != nil {
		return err
	}
	if err := d.build(ctx); err != nil {
		return err
	}
	err = d.onCluster(ctx, cancel, func(ours, alone figures) error {
		if err := save(result, ours, alone); err != nil {
			return err
		}
		fmt.Fprintln(d.out)
		table(d.out, ours, alone)
		fmt.Fprintf(d.out, "\n%s\n", saving(ours, alone))
		if d.page {
			return d.stay(ctx, ours.pods)
		}
		return nil
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			return cause // the cause is that this ended
		}
		return err
	}
	fmt.Fprintln(d.out, "The figures are in _output/demo.json; nothing else is left.")
	return nil
}

func (d *demo) readTypes() (err error) {
	if d.types, err = builtin.InstanceTypes(); err != nil {
		return err
	}
	d.prices = pricesOf(d.types)
	return nil
}

// planAhead prints what Karve plans for the examples, as `kubectl karve plan -f examples/` does. It needs no cluster.
func (d *demo) planAhead(ctx context.Context) error {
	var files []manifests.File
	for _, name := range append([]string{"deployment.yaml"}, poolExamples...) {
		content, err := d.example(name)
		if err != nil {
			return err
		}
		files = append(files, manifests.File{Name: name, Content: content})
	}
	planned, _, err := manifests.Read(ctx, files)
	if err != nil {
		return err
	}
	planned.UseInstanceTypes(d.types)
	q, err := quote.Of(planned, func() solve.Solver { return solve.Solver{} })
	if err != nil {
		return err
	}
	d.chapter("What Karve plans for examples/, as `kubectl karve plan -f examples/` prints it\n")
	if _, err := io.WriteString(d.out, q.Text(false)); err != nil {
		return err
	}
	d.chapter("What happens on a real control plane with Karpenter")
	return nil
}

func (d *demo) build(ctx context.Context) error {
	stale, err := builder.Stale(d.root, builder.Demo)
	if err != nil {
		return err
	}
	if len(stale) > 0 {
		d.print("building a cluster's binaries from their sources, once: this takes some minutes")
	}
	p := &progress{story: d.story}
	if err := d.whileStill(p.doing, func() error { return builder.Build(ctx, d.root, p, builder.Demo) }); err != nil {
		return err
	}
	err = d.building("Karve's controller", func() error {
		_, err := karve.Build(ctx)
		return err
	})
	if err != nil || !d.page {
		return err
	}
	return d.building("kubectl karve", func() error { return d.buildPage(ctx) })
}

// onCluster starts a cluster, measures both sides on it, concludes and stops it. On failure it keeps the logs.
func (d *demo) onCluster(ctx context.Context, cancel context.CancelCauseFunc, conclude func(ours, alone figures) error) (err error) {
	dir, err := os.MkdirTemp("", "karve-demo-")
	if err != nil {
		return fmt.Errorf("making the cluster's folder: %w", err)
	}
	interrupted := func() bool { return ctx.Err() != nil && !errors.Is(context.Cause(ctx), errEnded) }
	defer func() {
		if err == nil || interrupted() {
			_ = os.RemoveAll(dir)
			return
		}
		d.logs = dir
		onlyLogs(dir)
	}()
	closeLog, err := quiet(filepath.Join(dir, "demo.log"))
	if err != nil {
		return err
	}
	defer closeLog()
	d.print("starting etcd, kube-apiserver, kube-scheduler, kube-controller-manager, Karpenter with a local AWS, and kwok, which plays the machines")
	const goingOn = "going on"
	err = d.whileStill(func() string { return goingOn }, func() (err error) {
		d.cluster, err = cluster.Start(ctx, cluster.Config{
			Dir: dir, Components: cluster.Everything(), FeatureGates: "NodeOverlay=true", NodeDelay: nodeDelay,
			OnExit: func(name cluster.Component, err error) { cancel(fmt.Errorf("%s %w: %w", name, errEnded, err)) },
		})
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.cluster.Stop()) }()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var ours, alone figures
	err = d.whileStill(func() string { return goingOn }, func() (err error) {
		ours, alone, err = d.compare(watching)
		return err
	})
	if err == nil {
		err = conclude(ours, alone)
	}
	if err != nil && !interrupted() {
		d.snapshot(ctx, filepath.Join(dir, "objects.yaml"))
	}
	return err
}

func (d *demo) compare(ctx context.Context) (ours, alone figures, err error) {
	if d.client, err = karve.Client(d.cluster); err != nil {
		return ours, alone, err
	}
	d.print("the cluster is up; starting Karve's controller beside Karpenter")
	if _, err := karve.Start(ctx, d.cluster, karve.Options{DRA: d.dra}); err != nil {
		return ours, alone, err
	}
	if err := d.prepare(ctx); err != nil {
		return ours, alone, err
	}
	if d.page {
		if err := d.servePage(ctx); err != nil {
			return ours, alone, err
		}
	}
	d.chapter("Karve")
	example := &appsv1.Deployment{}
	ours, err = d.measure(ctx, side{
		name: "Karve", pool: examplePool, deployment: exampleDeployment,
		create: func(ctx context.Context) error {
			if err := d.apply(ctx, "deployment.yaml"); err != nil {
				return err
			}
			return d.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: exampleDeployment}, example)
		},
	})
	if err != nil {
		return ours, alone, err
	}
	d.chapter("Karpenter alone, the same pods")
	alone, err = d.measure(ctx, side{
		name: "Karpenter", pool: alonePool, deployment: alonePool,
		create: func(ctx context.Context) error { return d.client.Create(ctx, aloneDeployment(example)) },
	})
	if err != nil {
		return ours, alone, err
	}
	return ours, alone, compared(ours, alone, d.watcher.all().present())
}

// prepare creates both pools and starts to watch. Both exist all the time, so that it shows if one side serves the pods of the other.
func (d *demo) prepare(ctx context.Context) error {
	if err := d.apply(ctx, poolExamples...); err != nil {
		return err
	}
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: examplePool}}
	if err := d.untilReady(ctx, pool, func() []status.Condition { return pool.Status.Conditions }); err != nil {
		return err
	}
	class := &v1alpha1.GPUNodeClass{}
	if err := d.client.Get(ctx, client.ObjectKey{Name: exampleClass}, class); err != nil {
		return fmt.Errorf("reading the GPUNodeClass: %w", err)
	}
	d.resource, d.idleAfter = corev1.ResourceName(class.Spec.Sharing.Resource()), class.Spec.Consolidation.IdleAfter
	d.print("applied examples/: NodePool %s is Ready; its GPUs are shared by %d pods each", pool.Name, *class.Spec.Sharing.Replicas)
	if class.Spec.Sharing.UsesDRA() {
		d.print("its backend is DRA: agents publish ResourceSlices, and kube-scheduler gives each pod a ResourceClaim. The pods stay as they are")
	}
	if err := d.createKarpenterPool(ctx, pool, class); err != nil {
		return err
	}
	var err error
	d.watcher, err = newWatcher(ctx, d.cluster.RESTConfig(), d.resource)
	return err
}

// example returns a file of examples/, with backend DRA in the GPUNodeClass if the demo is of that.
func (d *demo) example(name string) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(d.root, "examples", name))
	if err != nil {
		return nil, fmt.Errorf("reading an example: %w", err)
	}
	if !d.dra || name != "gpunodeclass.yaml" {
		return content, nil
	}
	const strategy = "    strategy: TimeSlicing\n"
	if !bytes.Contains(content, []byte(strategy)) {
		return nil, errors.New("examples/gpunodeclass.yaml has no strategy to write the backend below")
	}
	return bytes.Replace(content, []byte(strategy), []byte(strategy+"    backend: DRA\n"), 1), nil
}

// apply creates the objects of files of examples/, with the strict validation that kubectl asks for.
func (d *demo) apply(ctx context.Context, files ...string) error {
	strict := client.WithFieldValidation(d.client, metav1.FieldValidationStrict)
	for _, file := range files {
		content, err := d.example(file)
		if err != nil {
			return err
		}
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
				return fmt.Errorf("reading examples/%s: %w", file, err)
			}
			if len(o.Object) == 0 {
				continue // only comments
			}
			if o.GetNamespace() == "" {
				o.SetNamespace(metav1.NamespaceDefault) // the API server ignores it for objects without a namespace
			}
			if err := strict.Create(ctx, o); err != nil {
				return fmt.Errorf("applying examples/%s: %w", file, err)
			}
		}
	}
	return nil
}

// snapshot saves the objects that explain a failure, as far as the cluster still serves them.
func (d *demo) snapshot(ctx context.Context, path string) {
	// The context may have ended with the failure.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	var out bytes.Buffer
	for _, list := range []client.ObjectList{
		&v1alpha1.GPUNodeClassList{}, &karpv1.NodePoolList{}, &karpv1alpha1.NodeOverlayList{}, &karpv1.NodeClaimList{}, &corev1.NodeList{},
		&appsv1.DeploymentList{}, &corev1.PodList{}, &eventsv1.EventList{},
	} {
		err := d.client.List(ctx, list)
		content, _ := yaml.Marshal(list) // what was read of API types can be written
		fmt.Fprintf(&out, "--- # %T\n%s", list, content)
		if err != nil {
			fmt.Fprintf(&out, "# %v\n", err)
		}
	}
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		d.print("the objects could not be kept: %v", err)
	}
}

// onlyLogs removes everything but the logs of a stopped cluster.
func onlyLogs(dir string) {
	entries, _ := os.ReadDir(dir) // what cannot be read cannot be removed either
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext != ".log" && ext != ".yaml" {
			_ = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
}

// quiet sends the logs of the Kubernetes libraries to a file.
func quiet(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making a log: %w", err)
	}
	log := logr.FromSlogHandler(slog.NewTextHandler(f, nil))
	klog.SetLogger(log)
	ctrl.SetLogger(log)
	return func() { _ = f.Close() }, nil
}

// poll calls is until it reports done, for at most patience.
func poll(ctx context.Context, is func() (done bool, sofar string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		done, sofar, err := is()
		if err != nil || done {
			return err
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("after %s %s", patience, sofar)
			}
			return err
		}
	}
}
