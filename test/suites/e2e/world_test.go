// Package e2e tests Karve on a whole cluster. The API server, the scheduler, the controller manager and Karpenter's AWS controller are real, on a local AWS
// with simulated machines. The controller's own binary runs under its service account with the generated role.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilwait "k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/batch"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/simulator"
	"karve.sh/karve/test/harness/karve"
)

// world is a cluster with a running controller, and a record of what was seen since the start.
type world struct {
	*cluster.Cluster
	karve *karve.Controller
	// api writes, and reads objects that are not watched.
	api client.Client
	// seen reads objects that are watched.
	seen    cache.Cache
	history *history
	// groups is how pods are made members of groups.
	groups groupAPI

	// ended has the metrics of the controllers before the present one.
	ended endedMetrics

	mu    sync.Mutex
	rules map[string]string
}

// settings are the options of the shared cluster's controller: the defaults, but with shorter timeouts. On two busy CPUs, a node that starts as it should
// has its replicas after 15 seconds.
//
// The tests of the shared cluster start together. Nodes of both backends are in it.
var settings = karve.Options{DRA: true, ReplicasTimeout: 40 * time.Second, Settle: 5 * time.Second, Values: ownPrices}

// shared is the cluster of the tests that can run next to others.
var shared = struct {
	once  sync.Once
	world *world
	dir   string
	stop  context.CancelFunc
	err   error
}{}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	// The tests mostly wait for clusters rather than use the CPU, so more of them run in parallel than there are CPUs.
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctrl.SetLogger(logr.Discard()) // The watches' messages about broken connections are expected.
	code := m.Run()
	if shared.world == nil {
		return code
	}
	shared.stop()
	if err := shared.world.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code != 0 {
		fmt.Fprintln(os.Stderr, "The logs of the shared cluster are in", shared.dir)
		return code
	}
	if err := os.RemoveAll(shared.dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// sharedWorld starts the shared cluster for the first test that needs it. It has all of Karpenter's features enabled, also for ResourceClaims; other
// clusters have its defaults.
func sharedWorld(t *testing.T) *world {
	t.Helper()
	cluster.Require(t)
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "karve-e2e-"); shared.err != nil { //nolint:usetesting // It outlives the test that happens to be first.
			return
		}
		crd, err := batch.ProvisioningRequests(t.Context())
		if err != nil {
			shared.err = err
			return
		}
		// The cluster outlives it too.
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		shared.stop = stop
		w := &world{}
		if w.Cluster, shared.err = cluster.Start(ctx, cluster.Config{
			Dir: shared.dir, CRDs: []string{crd}, Components: cluster.Everything(), FeatureGates: allGates(), OnExit: w.restarts,
			KarpenterEnv: []string{fmt.Sprintf("IGNORE_DRA_REQUESTS=%t", !servesDRA()), awsGates},
		}); shared.err != nil {
			return
		}
		shared.world = w
		if shared.err = w.begin(ctx, settings); shared.err == nil {
			go utilwait.UntilWithContext(ctx, func(ctx context.Context) { w.ended.read(ctx, w.karve.MetricsURL) }, time.Second)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.world
}

// restarts restarts the controller as a kubelet does. The controller ends if it cannot renew its lease, which may happen on a busy computer.
func (w *world) restarts(name cluster.Component, why error) {
	fmt.Fprintf(os.Stderr, "%s ended by itself (%v)\n", name, why)
	if name != karve.Component {
		return
	}
	w.ended.end()
	if err := w.StartComponent(context.Background(), name); err != nil {
		fmt.Fprintf(os.Stderr, "%s does not start again: %v\n", name, err)
	}
}

// own bounds how many clusters of single tests run next to the shared one. Each keeps a CPU busy while it starts.
var own = make(chan struct{}, 2)

// ownWorld starts a cluster for one test.
func ownWorld(t *testing.T, config cluster.Config, o karve.Options) *world {
	t.Helper()
	own <- struct{}{}
	t.Cleanup(func() { <-own })
	config.Components = cluster.Everything()
	w := &world{Cluster: cluster.ForTest(t, config)}
	if err := w.begin(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return w
}

// begin starts the watches and then the controller.
func (w *world) begin(ctx context.Context, o karve.Options) error {
	w.rules, o.DRA = map[string]string{}, (o.DRA || draMode) && servesDRA()
	if o.DRA {
		o.Values = append(o.Values, "node.dra.resources={nvidia.com/gpu.shared,nvidia.com/mig-1g.5gb,nvidia.com/mig-2g.10gb,nvidia.com/mig-3g.20gb,nvidia.com/mig-1g.10gb,nvidia.com/mig-3g.40gb}")
	}
	scheme, err := karve.Scheme()
	if err != nil {
		return err
	}
	if w.api, err = karve.Client(w.Cluster); err != nil {
		return err
	}
	if w.seen, err = cache.New(w.RESTConfig(), cache.Options{Scheme: scheme}); err != nil {
		return err
	}
	w.history = newHistory()
	if err := w.history.watch(ctx, w.seen); err != nil {
		return err
	}
	for _, o := range []client.Object{&karpv1.NodePool{}, &v1alpha1.GPUNodeClass{}, &eventsv1.Event{}} {
		if _, err := w.seen.GetInformer(ctx, o); err != nil {
			return fmt.Errorf("watching %T: %w", o, err)
		}
	}
	go w.seen.Start(ctx) // If it does not start, its readers fail.
	if !w.seen.WaitForCacheSync(ctx) {
		return ctx.Err()
	}
	// This is the lowest price of all zones. The prices of the zones are made up.
	w.AWS().SetSpotPrice(cheapest, "us-east-1a", 0.1578)
	w.karve, err = karve.Start(ctx, w.Cluster, o)
	return err
}

// rule sets how the simulated device plugin behaves on the nodes of a NodePool; "" removes the rule.
func (w *world) rule(t *testing.T, pool, rule string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules[pool] = rule
	if rule == "" {
		delete(w.rules, pool)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: simulator.ConfigMapNamespace, Name: simulator.ConfigMapName}, Data: w.rules}
	err := w.api.Update(t.Context(), cm)
	if apierrors.IsNotFound(err) {
		cm.ResourceVersion = ""
		err = w.api.Create(t.Context(), cm)
	}
	if err != nil {
		t.Fatal(err)
	}
}
