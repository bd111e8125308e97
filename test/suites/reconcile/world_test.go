// Package reconcile drives each reconciler by hand on a real API server. The clock only moves when a test moves it.
package reconcile

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/test/harness/cluster"
)

// There are two API servers, because each of them with its tests keeps one CPU busy.
var one, other *cluster.Cluster

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	os.Exit(cluster.RunWithAPIServer(m, &one, &other))
}

// idle holds the API servers that no test uses.
var idle = sync.OnceValue(func() chan *cluster.Cluster {
	servers := make(chan *cluster.Cluster, 2)
	servers <- one
	servers <- other
	return servers
})

// replicasTimeout is how long nodes may go without their replicas in all tests.
const replicasTimeout = 10 * time.Minute

var innerClass = v1alpha1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "gpu"}

// world is an API server with only the objects that the test creates. No other test uses it meanwhile, because the controllers read all objects.
type world struct {
	client.WithWatch
	t        *testing.T
	server   *cluster.Cluster
	clock    *clocktesting.FakeClock
	recorder *events.FakeRecorder
	ledger   *launching.Ledger
	metrics  *metrics.Metrics
	registry *prometheus.Registry
	gatherer *gather.Gatherer
	planner  *planning.Planner
	// requests reports whether controllers read ProvisioningRequests.
	requests bool
}

// newWorld returns a world with only the cloud's node class, which is ready. The test has it to itself until it ends. Another test with the other API server
// runs in parallel, so a test whose subtests create worlds must not have one itself.
func newWorld(t *testing.T) *world {
	t.Helper()
	cluster.Require(t)
	t.Parallel()
	server := <-idle()
	t.Cleanup(func() { idle() <- server })
	scheme, err := gather.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(server.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{WithWatch: c, t: t, server: server}
	w.reset()
	return w
}

// reset resets the world.
func (w *world) reset() {
	w.t.Helper()
	// The clock starts at the current time, because the API server sets creation times. It has whole seconds, as the API server does.
	w.clock = clocktesting.NewFakeClock(clock.RealClock{}.Now().Truncate(time.Second))
	w.recorder = events.NewFakeRecorder(1000)
	w.restart()
	w.empty()
	inner := w.inner("gpu", nil)
	said := inner.Object["status"]
	w.create(inner)
	inner.Object["status"] = said
	w.updateStatus(inner)
}

// restart drops everything that a controller keeps in memory.
func (w *world) restart() {
	w.ledger, w.registry = launching.NewLedger(), prometheus.NewRegistry()
	w.metrics = metrics.New(w.registry)
	w.gatherer = w.gathering(w.WithWatch, w.ledger)
	w.planner = w.planning()
}

func (w *world) planning() *planning.Planner {
	return &planning.Planner{Clock: w.clock, Metrics: w.metrics, Budget: time.Second}
}

func (w *world) gathering(live client.Reader, ledger *launching.Ledger) *gather.Gatherer {
	return &gather.Gatherer{
		Cached: untouched{w.WithWatch, w.t}, Live: untouched{live, w.t}, Mapper: w.RESTMapper(), Catalog: cloud.SameForAll(snapshottest.Types()), Ledger: ledger, Clock: w.clock, Metrics: w.metrics,
		ReplicasTimeout: replicasTimeout, Kinds: gather.Kinds{NodeOverlays: true, ProvisioningRequests: w.requests},
	}
}

func (w *world) empty() {
	w.t.Helper()
	inner := &unstructured.Unstructured{}
	inner.SetAPIVersion("karpenter.k8s.aws/v1")
	inner.SetKind("EC2NodeClass")
	var claims karpv1.NodeClaimList
	if err := w.List(w.t.Context(), &claims); err != nil {
		w.t.Fatal(err)
	}
	for i := range claims.Items {
		w.release(&claims.Items[i])
	}
	if w.requests {
		w.emptyRequests(w.t.Context())
	}
	for _, o := range []client.Object{&karpv1.NodeClaim{}, &karpv1.NodePool{}, &v1alpha1.GPUNodeClass{}, inner, &corev1.Node{}} {
		if err := w.DeleteAllOf(w.t.Context(), o); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, o := range []client.Object{&corev1.Event{}, &corev1.Pod{}, &policyv1.PodDisruptionBudget{}, &appsv1.DaemonSet{}} {
		if err := w.DeleteAllOf(w.t.Context(), o, client.InNamespace("default"), client.GracePeriodSeconds(0)); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	o.SetUID("")
	o.SetResourceVersion("")
	o.SetGeneration(0)
	if err := w.Create(w.t.Context(), o); err != nil {
		w.t.Fatalf("creating %T %s: %v", o, o.GetName(), err)
	}
}

func (w *world) update(o client.Object) {
	w.t.Helper()
	if err := w.Update(w.t.Context(), o); err != nil {
		w.t.Fatalf("updating %T %s: %v", o, o.GetName(), err)
	}
}

func (w *world) updateStatus(o client.Object) {
	w.t.Helper()
	if err := w.Status().Update(w.t.Context(), o); err != nil {
		w.t.Fatalf("updating the status of %T %s: %v", o, o.GetName(), err)
	}
}

func (w *world) delete(o client.Object, options ...client.DeleteOption) {
	w.t.Helper()
	if err := w.Delete(w.t.Context(), o, options...); err != nil {
		w.t.Fatalf("deleting %T %s: %v", o, o.GetName(), err)
	}
}

// read reads the object again, and reports whether it exists.
func (w *world) read(o client.Object) bool {
	w.t.Helper()
	err := w.Get(w.t.Context(), client.ObjectKeyFromObject(o), o)
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
	return err == nil
}

// inner returns the cloud's node class with the conditions; nil stands for Ready.
func (w *world) inner(name string, conditions []any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"role": "node", "amiSelectorTerms": []any{map[string]any{"alias": "al2023@latest"}},
			"subnetSelectorTerms": []any{map[string]any{"id": "subnet-1"}}, "securityGroupSelectorTerms": []any{map[string]any{"id": "sg-1"}},
		},
	}}
	if conditions == nil {
		conditions = []any{condition("True", 0)}
	}
	u.Object["status"] = map[string]any{"conditions": conditions}
	return u
}

func condition(s string, observed int64) map[string]any {
	c := map[string]any{"type": "Ready", "status": s, "reason": "Said", "message": "words of Karpenter", "lastTransitionTime": "2026-01-01T00:00:00Z"}
	if observed > 0 {
		c["observedGeneration"] = observed
	}
	return c
}

// class creates a GPUNodeClass that shares each GPU into ten replicas.
func (w *world) class(name string, edits ...func(*v1alpha1.GPUNodeClass)) *v1alpha1.GPUNodeClass {
	w.t.Helper()
	class := snapshottest.Class(name, 10, append([]func(*v1alpha1.GPUNodeClass){func(c *v1alpha1.GPUNodeClass) { c.Spec.NodeClassRef = innerClass }}, edits...)...)
	w.create(&class)
	return &class
}

// pool creates a tainted NodePool for the class of the same name. It has no requirement for capacity types.
func (w *world) pool(name string, edits ...func(*karpv1.NodePool)) *karpv1.NodePool {
	w.t.Helper()
	standard := []func(*karpv1.NodePool){
		snapshottest.Tainted(v1alpha1.ResourceGPUShared),
		snapshottest.Requiring(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "amd64"),
		budget("100%"),
	}
	np := snapshottest.Pool(name, name, append(standard, edits...)...)
	w.create(&np)
	return &np
}

func budget(nodes string) func(*karpv1.NodePool) {
	return func(np *karpv1.NodePool) {
		np.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: nodes}}
		np.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("0s")
	}
}

// shared creates a class and a pool with the same name.
func (w *world) shared(name string, edits ...func(*karpv1.NodePool)) *karpv1.NodePool {
	w.t.Helper()
	w.class(name)
	return w.pool(name, edits...)
}

// pods creates n pending pods.
func (w *world) pods(prefix string, n int, edits ...func(*corev1.Pod)) {
	w.t.Helper()
	pods := snapshottest.Pods(prefix, n, edits...)
	for i := range pods {
		w.pod(&pods[i])
	}
}

// pod creates a pod with its status.
func (w *world) pod(pod *corev1.Pod) {
	w.t.Helper()
	s, c := pod.Status, &pod.Spec.Containers[0]
	c.Image = "app"
	for name, quantity := range c.Resources.Requests {
		if strings.Contains(string(name), "/") { // Extended resources need a limit.
			if c.Resources.Limits == nil {
				c.Resources.Limits = corev1.ResourceList{}
			}
			c.Resources.Limits[name] = quantity
		}
	}
	for i := range pod.OwnerReferences {
		pod.OwnerReferences[i].UID = "owner"
	}
	w.create(pod)
	pod.Status = s
	w.updateStatus(pod)
}

// claim creates a claim with its status and Karpenter's finalizer, so that it is gone only once the test releases it.
func (w *world) claim(name string, pool *karpv1.NodePool, edits ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	w.t.Helper()
	claim := snapshottest.Claim(name, pool, snapshottest.TypeNamed("g4dn.xlarge"), edits...)
	s := claim.Status
	claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: innerClass.Group, Kind: innerClass.Kind, Name: innerClass.Name}
	claim.Finalizers = []string{"karpenter.sh/termination"}
	claim.CreationTimestamp = metav1.Time{}
	w.create(&claim)
	claim.Status = s
	w.updateStatus(&claim)
	return &claim
}

// release removes the finalizer of a claim that is being deleted, as Karpenter does once the machine is gone.
func (w *world) release(claim *karpv1.NodeClaim) {
	w.t.Helper()
	claim.Finalizers = nil
	if err := w.Patch(w.t.Context(), claim, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
}

// node creates the claim's Node with the given number of replicas.
func (w *world) node(claim *karpv1.NodeClaim, replicas int64) *corev1.Node {
	w.t.Helper()
	node := snapshottest.Node(claim, snapshottest.TypeNamed("g4dn.xlarge"), replicas)
	taints, s := node.Spec.Taints, node.Status
	w.create(&node)
	node.Spec.Taints = taints // This removes the API server's not-ready taint.
	w.update(&node)
	node.Status = s
	w.updateStatus(&node)
	return &node
}

// machine creates a claim and its Node, initialized, healthy and empty.
func (w *world) machine(name string, pool *karpv1.NodePool) (*karpv1.NodeClaim, *corev1.Node) {
	w.t.Helper()
	claim := w.claim(name, pool, snapshottest.Initialized(w.clock.Now()))
	return claim, w.node(claim, 10)
}

// launched marks the claim as launched.
func (w *world) launched(claim *karpv1.NodeClaim) {
	w.t.Helper()
	w.setClaimCondition(claim, status.Condition{Type: karpv1.ConditionTypeLaunched, Status: metav1.ConditionTrue, Reason: "Launched"})
}

func (w *world) setClaimCondition(claim *karpv1.NodeClaim, c status.Condition) {
	w.t.Helper()
	c.LastTransitionTime = metav1.NewTime(w.clock.Now())
	claim.Status.Conditions = append(slices.DeleteFunc(claim.Status.Conditions, func(o status.Condition) bool { return o.Type == c.Type }), c)
	w.updateStatus(claim)
}

// claims returns all NodeClaims, sorted by name.
func (w *world) claims() []karpv1.NodeClaim {
	w.t.Helper()
	var list karpv1.NodeClaimList
	if err := w.List(w.t.Context(), &list); err != nil {
		w.t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b karpv1.NodeClaim) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

func (w *world) wantClaims(n int) []karpv1.NodeClaim {
	w.t.Helper()
	claims := w.claims()
	if len(claims) != n {
		w.t.Fatalf("there are %d NodeClaims, want %d", len(claims), n)
	}
	return claims
}

// events returns the events since the last call.
func (w *world) events() []string {
	var all []string
	for {
		select {
		case e := <-w.recorder.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// wantEvents checks that exactly n of the events since the last call contain the text.
func (w *world) wantEvents(n int, text string) {
	w.t.Helper()
	all, got := w.events(), 0
	for _, e := range all {
		if strings.Contains(e, text) {
			got++
		}
	}
	if got != n {
		w.t.Errorf("%d events hold %q, want %d: %q", got, text, n, all)
	}
}

// reconciles runs a reconciler for an object and expects no error.
func (w *world) reconciles(r reconcile.Reconciler, name string) reconcile.Result {
	w.t.Helper()
	result, err := r.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

// counted returns the sum of a metric over its labels.
func (w *world) counted(name string) float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func tainted(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

func poolCondition(np *karpv1.NodePool, conditionType string) status.Condition {
	if c := facts.Condition(np.Status.Conditions, conditionType); c != nil {
		return *c
	}
	return status.Condition{}
}

// cleanup returns a context for cleanups: the test's own context is canceled before they run.
func cleanup(t *testing.T) context.Context {
	t.Helper()
	return context.WithoutCancel(t.Context())
}
