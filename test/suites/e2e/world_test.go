// Package e2e tests Karve on a whole cluster: real API server, scheduler, controller manager and Karpenter's AWS controller on a local AWS, simulated machines, and the
// controller's own binary under its service account with the generated role.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/simulator"
	"karve.sh/karve/test/harness/karve"
)

// allGates are Karpenter's features that could touch Karve's nodes and are off by default.
const allGates = "NodeRepair=true,SpotToSpotConsolidation=true,NodeOverlay=true,StaticCapacity=true,CapacityBuffer=true"

// world is a cluster with a controller that runs, and all that was seen of it since it started.
type world struct {
	*cluster.Cluster
	karve *karve.Controller
	// api writes, and reads what is not watched.
	api client.Client
	// seen reads what is watched.
	seen    cache.Cache
	history *history

	mu    sync.Mutex
	rules map[string]string
}

// settings are how the shared cluster's controller runs: the defaults, but for waits that a test would have to sit out.
//
// The tests of the shared cluster begin together, and what one waits for is not to wait for the launches of all others.
var settings = karve.Options{ReplicasTimeout: 20 * time.Second, BreakerRetry: 15 * time.Second, Settle: 5 * time.Second, MaxUnlaunched: 30}

// shared is the cluster of the tests that can stand others beside them.
var shared = struct {
	once  sync.Once
	world *world
	dir   string
	stop  context.CancelFunc
	err   error
}{}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	// The tests wait for clusters rather than for processors, of which there may be few.
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctrl.SetLogger(logr.Discard()) // What the watches say about broken connections is no news.
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

// theSharedWorld starts the shared cluster when the first test asks for it. All of Karpenter's features are on there; the other clusters have its defaults.
func theSharedWorld(t *testing.T) *world {
	t.Helper()
	cluster.Require(t)
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "karve-e2e-"); shared.err != nil { //nolint:usetesting // It outlives the test that happens to be first.
			return
		}
		// So does the cluster.
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		shared.stop = stop
		w := &world{}
		if w.Cluster, shared.err = cluster.Start(ctx, cluster.Config{
			Dir: shared.dir, Components: cluster.Everything(), FeatureGates: allGates, OnExit: w.restarts,
		}); shared.err != nil {
			return
		}
		shared.world = w
		shared.err = w.begin(ctx, settings)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.world
}

// restarts starts the controller again, as a kubelet would: it ends when it cannot renew its lease, for which a machine that runs much else is reason enough.
func (w *world) restarts(name cluster.Component, why error) {
	fmt.Fprintf(os.Stderr, "%s ended by itself (%v)\n", name, why)
	if name != karve.Component {
		return
	}
	if err := w.StartComponent(context.Background(), name); err != nil {
		fmt.Fprintf(os.Stderr, "%s does not start again: %v\n", name, err)
	}
}

// own holds as many clusters of single tests as may run at once beside the shared one: each takes a processor's worth while it starts.
var own = make(chan struct{}, 2)

// ownWorld is a cluster of the test's own.
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

// begin starts to watch, then starts the controller.
func (w *world) begin(ctx context.Context, o karve.Options) error {
	w.rules = map[string]string{}
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
	go w.seen.Start(ctx) // That it does not start is seen by whoever reads from it.
	if !w.seen.WaitForCacheSync(ctx) {
		return ctx.Err()
	}
	// The lowest of the zones, whose prices are made up.
	w.AWS().SetSpotPrice(cheapest, "us-east-1a", 0.1578)
	w.karve, err = karve.Start(ctx, w.Cluster, o)
	return err
}

// rule tells the simulator how the plugin behaves on the nodes of a NodePool; "" as it should.
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

// metric is the sum of the series of a metric that carry all the labels, as in `nodepool="a"`; -1 when there is none.
func (w *world) metric(t *testing.T, of *karve.Controller, name string, labels ...string) float64 {
	t.Helper()
	sum, found := 0.0, false
	for line := range strings.Lines(get(t, of.MetricsURL)) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		all := true
		for _, l := range labels {
			all = all && strings.Contains(series, l)
		}
		n, err := strconv.ParseFloat(value, 64)
		if all && err == nil {
			sum, found = sum+n, true
		}
	}
	if !found {
		return -1
	}
	return sum
}

// get is the body that a URL answers with 200.
func get(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s: %s", url, res.Status, body)
	}
	return string(body)
}
