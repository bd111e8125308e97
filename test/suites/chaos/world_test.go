// Package chaos injects all kinds of faults, by a script drawn from a seed, while workloads come, go and grow. It checks invariants all the time through
// watches, and the final state once the cluster has settled. An adversary creates hostile objects, and agents lie. `make chaos` runs it for a quarter of an
// hour.
package chaos

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/simulator"
	"karve.sh/karve/test/harness/karve"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // The watches' messages about broken connections are expected.
	os.Exit(m.Run())
}

const (
	clock     = "15:04:05.000"
	namespace = "chaos"
)

// pools are the NodePools, with their capacity types and instance families. Each has a GPUNodeClass, an EC2NodeClass and a taint of its name.
var pools = []struct {
	name, capacityType string
	families           []string
}{
	{steady, karpv1.CapacityTypeOnDemand, []string{"g4dn", "g5"}},
	{spot, karpv1.CapacityTypeSpot, []string{"g4dn", "g5", "g6"}},
}

const (
	steady = "steady"
	spot   = "spot"
)

// world is a cluster with a record of what was done to it and what was seen of it.
type world struct {
	*cluster.Cluster
	t *testing.T
	// api reads and writes directly at the API server, which may be down: see insist.
	api client.Client
	// seen is the cache that the watches fill.
	seen  cache.Cache
	guard *guard
	// long says that the script is long.
	long bool
	// controllers are the replicas of the controller.
	controllers []*karve.Controller
	// lives is held while a controller is started or killed.
	lives sync.Mutex
	began time.Time
	// gangs is how many groups of pods were created.
	gangs int

	mu       sync.Mutex
	timeline []string
	quiet    bool // no more lines are logged
	claims   map[types.UID]string
	names    map[types.UID]string
	rules    map[string]string
	// waited are the pods that have been bound. wait is the longest time that a pod was pending, and longest says which pod that was.
	waited  map[types.UID]bool
	wait    time.Duration
	longest string
}

// newWorld starts the cluster. A long script gets two controllers that elect a leader; a short one gets a single controller that need not wait for a lease.
func newWorld(t *testing.T, long bool) *world {
	t.Helper()
	w := &world{t: t, claims: map[types.UID]string{}, names: map[types.UID]string{}, rules: map[string]string{}, waited: map[types.UID]bool{}, began: time.Now(), long: long}
	w.guard = newGuard(budgets(), w.runs, w.logf)
	w.Cluster = cluster.ForTest(t, cluster.Config{
		Components: cluster.Everything(),
		// The scheduler knows groups of pods only with a feature gate.
		KubernetesGates: "GenericWorkload=true", APIs: "scheduling.k8s.io/v1beta1=true",
		AWS:    aws.Config{LaunchTime: time.Second, ShutdownTime: 2 * time.Second},
		OnExit: w.restarts,
	})
	var err error
	if w.api, err = karve.Client(w.Cluster); err != nil {
		t.Fatal(err)
	}
	if err := w.watch(t.Context()); err != nil {
		t.Fatal(err)
	}
	replicas := []string{""}
	if long {
		replicas = []string{"-a", "-b"}
	}
	for _, replica := range replicas {
		k, err := karve.Start(t.Context(), w.Cluster, karve.Options{
			Replica: replica, Alone: !long, ReplicasTimeout: replicasTimeout, Settle: 2 * time.Second, LaunchTimeout: 20 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		w.controllers = append(w.controllers, k)
	}
	return w
}

// runs reports whether the machine of a Node runs.
func (w *world) runs(node string) bool {
	return slices.ContainsFunc(w.AWS().Instances(), func(i aws.Instance) bool { return i.PrivateDNS == node && i.State == aws.Running })
}

// restarts restarts a component that has ended, as a kubelet does. For instance, the controller ends if it cannot renew its lease.
func (w *world) restarts(c cluster.Component, err error) {
	w.logf("%s ended by itself (%v) and is started again", c, err)
	w.lives.Lock()
	defer w.lives.Unlock()
	if err := w.insist(context.WithoutCancel(w.t.Context()), func(ctx context.Context) error { return w.StartComponent(ctx, c) }); err != nil {
		w.logf("%s does not start: %v", c, err)
	}
}

// logf adds a line to the timeline.
func (w *world) logf(format string, args ...any) {
	line := fmt.Sprintf("%s %6.1fs  ", time.Now().Format(clock), time.Since(w.began).Seconds()) + fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quiet {
		return
	}
	w.timeline = append(w.timeline, line)
	w.t.Log(line)
}

// patience bounds the retries of calls that fail while the API server is down.
const patience = 5 * time.Minute

// insist retries do until it succeeds.
func (w *world) insist(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := do(ctx)
		if err == nil || apierrors.IsInvalid(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// create creates an object unless it exists.
func (w *world) create(ctx context.Context, o client.Object) error {
	return w.insist(ctx, func(ctx context.Context) error {
		if err := w.api.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
		}
		return nil
	})
}

// patch patches an object unless it is gone.
func (w *world) patch(ctx context.Context, o client.Object, patch string) error {
	return w.insist(ctx, func(ctx context.Context) error {
		if err := w.api.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch))); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("patching %T %s: %w", o, o.GetName(), err)
		}
		return nil
	})
}

func (w *world) watch(ctx context.Context) error {
	var err error
	if w.seen, err = cache.New(w.RESTConfig(), cache.Options{Scheme: w.api.Scheme()}); err != nil {
		return fmt.Errorf("watching: %w", err)
	}
	notes := map[client.Object]func(o any, gone bool){
		&corev1.Pod{}: w.notePod, &karpv1.NodeClaim{}: w.noteClaim, &corev1.Node{}: nil, &eventsv1.Event{}: nil,
		&appsv1.Deployment{}: nil, &appsv1.StatefulSet{}: nil, &batchv1.Job{}: nil, &karpv1.NodePool{}: nil,
		object("karpenter.k8s.aws/v1", "EC2NodeClass", "", nil): nil,
	}
	for object, note := range notes {
		informer, err := w.seen.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		if note == nil {
			continue
		}
		_, err = informer.AddEventHandler(cluster.Notes(note, func(o any) {
			if pod, ok := o.(*corev1.Pod); ok {
				w.guard.misses(pod, time.Now())
				return
			}
			note(o, true)
		}))
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
	}
	go w.seen.Start(ctx) // If it does not start, its readers fail.
	if !w.seen.WaitForCacheSync(ctx) {
		return ctx.Err()
	}
	return nil
}

func (w *world) notePod(o any, gone bool) {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.Namespace != namespace {
		return
	}
	w.guard.note(pod, gone, time.Now())
	w.mu.Lock()
	defer w.mu.Unlock()
	if pod.Spec.NodeName == "" || w.waited[pod.UID] {
		return
	}
	w.waited[pod.UID] = true
	if wait := time.Since(pod.CreationTimestamp.Time); wait > w.wait {
		w.wait, w.longest = wait, pod.Name
	}
}

// noteClaim logs the creation of claims and what becomes of them.
func (w *world) noteClaim(o any, gone bool) {
	c, ok := o.(*karpv1.NodeClaim)
	if !ok || isAdversarial(c) {
		return
	}
	state := "made"
	switch {
	case gone:
		state = "gone"
	case !c.DeletionTimestamp.IsZero():
		state = "being deleted"
	case c.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue():
		state = "started"
	case c.Status.NodeName != "":
		state = "registered"
	case c.Status.ProviderID != "":
		state = "launched"
	}
	w.mu.Lock()
	was := w.claims[c.UID]
	w.claims[c.UID], w.names[c.UID] = state, c.Name
	w.mu.Unlock()
	if was != state {
		w.logf("  %s is %s: %s %s %s", c.Name, state, c.Labels[corev1.LabelInstanceTypeStable], c.Labels[karpv1.CapacityTypeLabelKey], c.Status.NodeName)
	}
}

// picture returns the state that the watches and the local AWS report.
func (w *world) picture(ctx context.Context) (*picture, error) {
	p := &picture{instances: w.AWS().Instances(), seen: map[string]int{}}
	w.mu.Lock()
	for _, name := range w.names {
		p.seen[name]++
	}
	w.mu.Unlock()
	var (
		pods         corev1.PodList
		deployments  appsv1.DeploymentList
		statefulSets appsv1.StatefulSetList
		jobs         batchv1.JobList
		nodes        corev1.NodeList
		claims       karpv1.NodeClaimList
	)
	for _, list := range []client.ObjectList{&pods, &deployments, &statefulSets, &jobs, &nodes, &claims} {
		if err := w.seen.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing %T: %w", list, err)
		}
	}
	p.pods, p.deployments, p.statefulSets, p.jobs, p.nodes, p.claims = pods.Items, deployments.Items, statefulSets.Items, jobs.Items, nodes.Items, claims.Items
	p.nodes = slices.DeleteFunc(p.nodes, func(n corev1.Node) bool { return isAdversarial(&n) })
	p.claims = slices.DeleteFunc(p.claims, func(c karpv1.NodeClaim) bool { return isAdversarial(&c) })
	if err := w.wanted(ctx, p); err != nil {
		return nil, err
	}
	slices.SortFunc(p.nodes, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return p, nil
}

// wanted sets what machines should be made from.
func (w *world) wanted(ctx context.Context, p *picture) error {
	p.wanted, p.versions = map[string]made{}, map[string]string{}
	for _, i := range w.AWS().Images() {
		p.versions[i.ID] = i.Version
	}
	for _, pool := range pools {
		np := &karpv1.NodePool{}
		class := object("karpenter.k8s.aws/v1", "EC2NodeClass", pool.name, nil)
		if err := w.seen.Get(ctx, client.ObjectKey{Name: pool.name}, np); err != nil {
			return fmt.Errorf("reading NodePool %s: %w", pool.name, err)
		}
		if err := w.seen.Get(ctx, client.ObjectKey{Name: pool.name}, class); err != nil {
			return fmt.Errorf("reading EC2NodeClass %s: %w", pool.name, err)
		}
		terms, _, _ := unstructured.NestedSlice(class.Object, "spec", "amiSelectorTerms")
		alias, _, _ := unstructured.NestedString(terms[0].(map[string]any), "alias")
		_, version, _ := strings.Cut(alias, "@")
		p.wanted[pool.name] = made{np.Spec.Template.Labels[generationLabel], version}
	}
	return nil
}

// eventsOf returns the events about an object, the latest last.
func (w *world) eventsOf(ctx context.Context, name string) string {
	var list eventsv1.EventList
	if err := w.seen.List(ctx, &list); err != nil {
		return err.Error()
	}
	slices.SortFunc(list.Items, func(a, b eventsv1.Event) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	var b strings.Builder
	for i := range list.Items {
		if e := &list.Items[i]; e.Regarding.Name == name {
			fmt.Fprintf(&b, "    %s %s %s: %s\n", e.CreationTimestamp.Format(clock), e.ReportingController, e.Reason, e.Note)
		}
	}
	return b.String()
}

// prepare creates the pools and their classes.
func (w *world) prepare(ctx context.Context) error {
	if err := w.create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	for _, p := range pools {
		for _, o := range []client.Object{nodeClass(p.name), gpuClass(p.name), nodePool(p.name, p.capacityType, p.families)} {
			if err := w.create(ctx, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// stayPut makes all classes stop moving pods.
func (w *world) stayPut(ctx context.Context) error {
	for _, p := range pools {
		class := &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
		if err := w.patch(ctx, class, fmt.Sprintf(`{"spec":{"consolidation":{"policy":%q}}}`, v1alpha1.ConsolidateWhenIdle)); err != nil {
			return err
		}
	}
	return nil
}

// counts says how many machines were launched, how many are left and what happened to them.
func (w *world) counts() string {
	instances := w.AWS().Instances()
	running := 0
	for _, i := range instances {
		if i.State == aws.Running {
			running++
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("%d machines were launched, %d are there; %s waited the longest for its place, %s", len(instances), running, w.longest, w.wait.Round(time.Second))
}

func nodeClass(name string) client.Object {
	ours := []any{map[string]any{"tags": map[string]any{"karpenter.sh/discovery": "karve"}}}
	return object("karpenter.k8s.aws/v1", "EC2NodeClass", name, map[string]any{
		"amiSelectorTerms": []any{map[string]any{"alias": images[0]}}, "role": "KarpenterNodeRole-karve", "subnetSelectorTerms": ours, "securityGroupSelectorTerms": ours,
	})
}

func gpuClass(name string) client.Object {
	return &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GPUNodeClassSpec{
		NodeClassRef:  v1alpha1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: name},
		Sharing:       v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(usualReplicas))},
		Consolidation: v1alpha1.Consolidation{IdleAfter: usualIdle, RestartCost: "0.0005"},
	}}
}

func nodePool(name, capacityType string, families []string) client.Object {
	in := func(key string, values ...string) any {
		all := make([]any, len(values))
		for i := range values {
			all[i] = values[i]
		}
		return map[string]any{"key": key, "operator": "In", "values": all}
	}
	return object("karpenter.sh/v1", "NodePool", name, map[string]any{
		"disruption": map[string]any{
			"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s", "budgets": []any{map[string]any{"nodes": usualBudget}},
		},
		"template": map[string]any{
			"metadata": map[string]any{"labels": map[string]any{generationLabel: "0"}},
			"spec": map[string]any{
				"nodeClassRef": map[string]any{"group": v1alpha1.Group, "kind": v1alpha1.Kind, "name": name},
				"requirements": []any{in("karpenter.k8s.aws/instance-family", families...), in(karpv1.CapacityTypeLabelKey, capacityType)},
				"taints":       []any{map[string]any{"key": v1alpha1.ResourceGPUShared, "value": name, "effect": "NoSchedule"}},
				// The simulated agent of another vendor removes it.
				"startupTaints": []any{map[string]any{"key": simulator.StartupTaintKey, "effect": "NoSchedule"}},
			},
		},
	})
}

func object(apiVersion, kind, name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetName(name)
	return u
}
