package provisioning

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// tick is the interval at which all components act.
const tick = 20 * time.Millisecond

// pace has the times from a NodeClaim to each state of its machine, from the removal of the startup taint to the initialization, and the durations of a plan and
// of writing a nomination.
type pace struct{ launches, registers, exposes, initializes, plans, nominates time.Duration }

// Machines in the cloud take most of a minute to start, those of the local cluster seconds.
var (
	asInCloud = pace{launches: 3 * time.Second, registers: 30 * time.Second, exposes: 40 * time.Second, initializes: 2 * time.Second, plans: 500 * time.Millisecond}
	asLocal   = pace{launches: 2 * time.Second, registers: 3 * time.Second, exposes: 4 * time.Second, initializes: 2 * time.Second, plans: 500 * time.Millisecond}
)

// fakeCluster is an in-memory cluster whose clock the test controls. It is the controller's client, starts machines, and schedules pods like the default scheduler.
type fakeCluster struct {
	client.Client // methods that are not implemented here are not called
	t             *testing.T
	clock         *clocktesting.FakeClock
	controller    *Controller
	types         []catalog.InstanceType
	pools         []karpv1.NodePool
	classes       []v1alpha1.GPUNodeClass
	claims        []*karpv1.NodeClaim
	nodes         map[string]*corev1.Node
	free          map[string]*vector // of nodes that have started
	pods          []*corev1.Pod
	byName        map[string]*corev1.Pod
	due           time.Time // when the controller runs next
	unanswered    error     // the error that nominations return
	mu            sync.Mutex
	pace          pace
	batches       []plantest.Batch // by the plan that first included them
	inBatch       map[string]bool
	opened        map[string]time.Time // when each node lost its startup taint
	exposed       map[string]bool
	named         map[string]bool // NodeClaims by name, including those that are still being written
	scheduler     *kubeScheduler  // nil means a scheduler that never fails and never forgets
	busy          time.Time       // the controller is planning until then
	writes        []func()        // what it writes then
	patched       bool            // it has changed a NodeClaim since its plan began
	untried       bool            // pods come without a verdict of the scheduler's
	readAhead     bool            // plans include such pods
	timers        []timer
	nominating    map[types.UID]string // nominations that are being written
	opens         map[string]time.Time // when the nominations for a node are complete
}

// timer is something that happens later.
type timer struct {
	at time.Time
	do func()
}

// later delays a write of the controller until its plan is complete.
func (w *fakeCluster) later(write func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = append(w.writes, write)
}

// podChanged notifies the controller of a pod.
func (w *fakeCluster) podChanged(pod *corev1.Pod) {
	if len(w.controller.BatchPod(w.t.Context(), pod)) > 0 {
		w.due = w.clock.Now()
	}
}

// tried notifies the controller of a pod that the scheduler has tried.
func (w *fakeCluster) tried(before, after *corev1.Pod) {
	if w.readAhead {
		w.controller.Planner.ReadAhead.Saw(before, after, w.clock.Now())
	}
	w.podChanged(after)
}

// vector has the resources of a node or a pod that the scheduler considers.
type vector struct{ milliCPU, memory, pods, replicas int64 }

func (v *vector) holds(o vector) bool {
	return v.milliCPU >= o.milliCPU && v.memory >= o.memory && v.pods >= o.pods && v.replicas >= o.replicas
}

func (v *vector) add(o vector, n int64) {
	v.milliCPU, v.memory, v.pods, v.replicas = v.milliCPU+n*o.milliCPU, v.memory+n*o.memory, v.pods+n*o.pods, v.replicas+n*o.replicas
}

func vectorOf(r corev1.ResourceList) vector {
	replicas := r[v1alpha1.ResourceGPUShared]
	return vector{r.Cpu().MilliValue(), r.Memory().Value(), r.Pods().Value(), replicas.Value()}
}

func asked(pod *corev1.Pod) vector {
	v := vectorOf(pod.Spec.Containers[0].Resources.Requests)
	v.pods = 1
	return v
}

func newFakeCluster(t *testing.T, families ...string) *fakeCluster {
	return newFakeClusterWith(t, func(*fakeCluster) {}, families...)
}

func newFakeClusterWith(t *testing.T, edit func(*fakeCluster), families ...string) *fakeCluster {
	t.Helper()
	machines, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	w := &fakeCluster{
		t: t, pace: asInCloud, nominating: map[types.UID]string{}, opens: map[string]time.Time{}, opened: map[string]time.Time{}, exposed: map[string]bool{}, named: map[string]bool{}, inBatch: map[string]bool{}, clock: clocktesting.NewFakeClock(Now), types: machines, nodes: map[string]*corev1.Node{}, free: map[string]*vector{}, byName: map[string]*corev1.Pod{},
		classes: []v1alpha1.GPUNodeClass{Class("gpu-shared", 10)},
		pools: []karpv1.NodePool{Pool("gpu-shared", "gpu-shared", Tainted(v1alpha1.ResourceGPUShared),
			Requiring("karpenter.k8s.aws/instance-family", corev1.NodeSelectorOpIn, families...),
			Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, karpv1.CapacityTypeOnDemand))},
	}
	edit(w)
	w.restart()
	return w
}

// restart replaces the controller with a new one without memory.
func (w *fakeCluster) restart() {
	version := schema.GroupVersion{Group: NodeClassRef.Group, Version: "v1"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{version})
	mapper.Add(version.WithKind(NodeClassRef.Kind), meta.RESTScopeRoot)
	ledger, all := launching.NewLedger(), metrics.New(prometheus.NewRegistry())
	w.controller = New(Config{
		Client: w, Ledger: ledger, Metrics: all, Recorder: &events.FakeRecorder{}, Clock: w.clock,
		Gatherer: &gather.Gatherer{
			Cached: w, Live: w, Mapper: mapper, Catalog: cloud.SameForAll(w.types), Ledger: ledger, Clock: w.clock, ReplicasTimeout: 10 * time.Minute,
		},
		BatchIdle: time.Second, BatchMax: 10 * time.Second, MaxUnlaunched: 250, Nominations: true,
		Planner: &planning.Planner{Clock: w.clock, Metrics: all, Budget: time.Second},
	})
	if w.readAhead {
		w.controller.Planner.ReadAhead = &planning.ReadAhead{}
	}
	for _, pod := range w.pods {
		w.controller.BatchPod(w.t.Context(), pod)
	}
	w.due = w.clock.Now()
}

// List lists what the controller reads.
func (w *fakeCluster) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch list := list.(type) {
	case *karpv1.NodePoolList:
		list.Items = slices.Clone(w.pools)
	case *v1alpha1.GPUNodeClassList:
		list.Items = slices.Clone(w.classes)
	case *karpv1.NodeClaimList:
		for _, claim := range w.claims {
			list.Items = append(list.Items, *claim.DeepCopy())
		}
	case *corev1.NodeList:
		for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
			list.Items = append(list.Items, *w.nodes[name])
		}
	case *corev1.PodList:
		for _, pod := range w.pods {
			list.Items = append(list.Items, *pod)
		}
	}
	return nil
}

// Get returns a NodePool or the cloud's node class.
func (w *fakeCluster) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if np, ok := o.(*karpv1.NodePool); ok {
		for i := range w.pools {
			if w.pools[i].Name == key.Name {
				*np = w.pools[i]
				return nil
			}
		}
		return apierrors.NewNotFound(schema.GroupResource{Group: "karpenter.sh", Resource: "nodepools"}, key.Name)
	}
	u := o.(*unstructured.Unstructured)
	u.SetName(key.Name)
	u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}
	return nil
}

// Create creates a NodeClaim.
func (w *fakeCluster) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	claim := o.(*karpv1.NodeClaim)
	w.mu.Lock()
	known := w.named[claim.Name]
	w.named[claim.Name] = true
	if w.patched {
		w.t.Errorf("NodeClaim %s was created after other NodeClaims were changed: launches come first", claim.Name)
	}
	w.mu.Unlock()
	if known {
		return apierrors.NewAlreadyExists(schema.GroupResource{Group: "karpenter.sh", Resource: "nodeclaims"}, claim.Name)
	}
	claim.UID = types.UID(claim.Name)
	claim = claim.DeepCopy()
	w.later(func() {
		claim.CreationTimestamp = metav1.NewTime(w.clock.Now())
		w.claims = append(w.claims, claim)
		w.due = w.clock.Now()
	})
	return nil
}

// Patch updates a NodeClaim's annotations.
func (w *fakeCluster) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	w.mu.Lock()
	w.patched = true
	w.mu.Unlock()
	w.later(func() {
		for _, claim := range w.claims {
			if claim.Name == o.GetName() {
				claim.Annotations = o.GetAnnotations()
			}
		}
		w.due = w.clock.Now()
	})
	return nil
}

// Status returns a writer for nominations.
func (w *fakeCluster) Status() client.SubResourceWriter { return nominating{w: w} }

type nominating struct {
	client.SubResourceWriter
	w *fakeCluster
}

func (n nominating) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	if n.w.unanswered != nil {
		return n.w.unanswered
	}
	node := o.(*corev1.Pod).Status.NominatedNodeName
	n.w.later(func() { n.w.nominate(o.GetName(), node) })
	return nil
}

// come adds a pod.
func (w *fakeCluster) come(pod corev1.Pod) {
	pod.CreationTimestamp = metav1.NewTime(w.clock.Now().Truncate(time.Second))
	if w.untried {
		pod.Status.Conditions = nil
	}
	w.pods = append(w.pods, &pod)
	w.byName[pod.Name] = &pod
	if w.scheduler != nil {
		w.scheduler.podCame(&pod)
	}
	w.podChanged(&pod)
}

// step advances the clock by a tick: machines start, the scheduler binds pods, and the controller plans when it is due.
func (w *fakeCluster) step() {
	w.t.Helper()
	w.clock.Step(tick)
	now := w.clock.Now()
	if !now.Before(w.busy) {
		for _, write := range w.writes {
			write()
		}
		w.writes = nil
	}
	w.timers = slices.DeleteFunc(w.timers, func(t timer) bool {
		if t.at.After(now) {
			return false
		}
		t.do()
		return true
	})
	if w.scheduler != nil {
		w.scheduler.run(now)
	} else {
		w.schedule()
	}
	for _, claim := range w.claims {
		if w.advance(claim) && w.controller.pending.Load() {
			w.due = now
		}
	}
	if now.Before(w.due) || now.Before(w.busy) {
		return
	}
	w.due, w.patched = now.Add(time.Hour), false
	result, err := w.controller.Reconcile(w.t.Context(), reconcile.Request{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.noteBatch(false)
	if again := now.Add(result.RequeueAfter); result.RequeueAfter > 0 && again.Before(w.due) {
		w.due = again
	}
	if len(w.writes) > 0 {
		w.busy = now.Add(w.pace.plans)
	}
}

// noteBatch records the pods that the latest plan included first, and those that were bound before. With end, it records all that are left.
func (w *fakeCluster) noteBatch(end bool) {
	var batch plantest.Batch
	for _, pod := range w.pods {
		switch name := facts.PodName(pod); {
		case w.inBatch[name]:
		case w.controller.batch.seen[pod.UID]:
			batch.Planned = append(batch.Planned, name)
		case pod.Spec.NodeName != "":
			batch.Early = append(batch.Early, name)
		}
	}
	if len(batch.Planned) == 0 && !end {
		return
	}
	for _, name := range slices.Concat(batch.Planned, batch.Early) {
		w.inBatch[name] = true
	}
	w.batches = append(w.batches, batch)
}

// advance moves a machine to its next state if that is due, and reports whether the controller is notified.
func (w *fakeCluster) advance(claim *karpv1.NodeClaim) bool {
	now := w.clock.Now()
	age := now.Sub(claim.CreationTimestamp.Time)
	openedAt, open := w.opened[claim.Name]
	switch had := len(claim.Status.Conditions); {
	case age >= w.pace.launches && had == 0:
		for _, key := range []string{corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone, karpv1.CapacityTypeLabelKey} {
			claim.Labels[key] = w.chosen(claim)[key]
		}
		Launched(now)(claim)
	case age >= w.pace.registers && had == 1:
		w.node(claim, Registered)
		if w.scheduler != nil {
			w.scheduler.nodeCame(w.nodes[claim.Name])
		}
	case age >= w.pace.exposes && had == 2 && !w.exposed[claim.Name]:
		w.exposed[claim.Name] = true
		if w.scheduler != nil {
			w.scheduler.nodeExposes(claim.Name)
		}
	case w.exposed[claim.Name] && !open:
		if _, seated := w.opens[claim.Name]; !seated {
			w.opens[claim.Name] = now.Add(w.seat(claim))
		}
		if now.Before(w.opens[claim.Name]) {
			return false
		}
		w.opened[claim.Name] = now
		node := w.nodes[claim.Name]
		node.Spec.Taints = slices.Clone(claim.Spec.Taints)
		free := vectorOf(node.Status.Allocatable)
		w.free[node.Name] = &free
		if w.scheduler != nil {
			w.scheduler.nodeOpens(claim.Name)
		}
		return false // The controller does not watch Nodes for this.
	case open && now.Sub(openedAt) >= w.pace.initializes && had == 2:
		w.node(claim, Initialized)
	default:
		return false
	}
	return true
}

// seat nominates the pods that a machine was launched for, as the readiness controller does. It returns how long that takes.
func (w *fakeCluster) seat(claim *karpv1.NodeClaim) time.Duration {
	m := &records.Machine{Claim: claim, Node: w.nodes[claim.Name], Promise: facts.PromiseOf(claim.Annotations)}
	var pods corev1.PodList
	if err := w.List(w.t.Context(), &pods); err != nil {
		w.t.Fatal(err)
	}
	var takes time.Duration
	for i, n := range snapshot.NewSeating(pointers(pods.Items), w.controller.Planner.ReadAhead.Planned).Seats(m, nil, w.nominating) {
		if w.pace.nominates == 0 {
			w.nominate(n.Pod.Name, n.Node)
			continue
		}
		takes = w.pace.nominates * time.Duration(i/nominatedAtOnce+1)
		w.nominating[n.Pod.UID] = n.Node
		w.timers = append(w.timers, timer{w.clock.Now().Add(takes), func() {
			w.nominate(n.Pod.Name, n.Node)
			delete(w.nominating, n.Pod.UID)
		}})
	}
	return takes
}

// nominatedAtOnce is how many nominations are written concurrently.
const nominatedAtOnce = 16

func pointers(pods []corev1.Pod) []*corev1.Pod {
	all := make([]*corev1.Pod, len(pods))
	for i := range pods {
		all[i] = &pods[i]
	}
	return all
}

// nominate writes a nomination.
func (w *fakeCluster) nominate(name, node string) {
	switch pod := w.byName[name]; {
	case pod == nil || pod.Spec.NodeName != "":
	case w.scheduler != nil:
		w.scheduler.nominate(w.scheduler.pods[name], node)
	default:
		pod.Status.NominatedNodeName = node
	}
}

// chosen returns the labels of the offering for which a NodeClaim was created.
func (w *fakeCluster) chosen(claim *karpv1.NodeClaim) map[string]string {
	instanceType, zone, capacityType := records.ShapeOf(claim)
	return map[string]string{corev1.LabelInstanceTypeStable: instanceType, corev1.LabelTopologyZone: zone, karpv1.CapacityTypeLabelKey: capacityType}
}

// node creates or updates the Node of a NodeClaim after a step.
func (w *fakeCluster) node(claim *karpv1.NodeClaim, after func(time.Time) func(*karpv1.NodeClaim)) {
	claim.Status.Conditions = nil
	after(w.clock.Now())(claim)
	at := slices.IndexFunc(w.types, func(t catalog.InstanceType) bool { return t.Name == claim.Labels[corev1.LabelInstanceTypeStable] })
	node := Node(claim, &w.types[at], facts.PromiseOf(claim.Annotations).Replicas())
	maps.Copy(node.Labels, w.chosen(claim))
	w.nodes[node.Name] = &node
}

// schedule binds pods as the default scheduler does, in order of arrival: to the node for which a pod is nominated, or else to the least used one. It does not
// use room that is reserved for nominated pods.
func (w *fakeCluster) schedule() {
	held := map[string]*vector{}
	for _, pod := range w.pods {
		if node := pod.Status.NominatedNodeName; pod.Spec.NodeName == "" && node != "" && w.free[node] != nil {
			if held[node] == nil {
				held[node] = &vector{}
			}
			held[node].add(asked(pod), 1)
		}
	}
	for _, pod := range w.pods {
		if pod.Spec.NodeName != "" {
			continue
		}
		best, most := "", int64(-1)
		for _, name := range slices.Sorted(maps.Keys(w.free)) {
			free := *w.free[name]
			if nominee := pod.Status.NominatedNodeName; nominee == name && free.holds(asked(pod)) {
				best = name
				break
			}
			if others := held[name]; others != nil {
				free.add(*others, -1)
			}
			if left := 1000 * free.milliCPU / w.nodes[name].Status.Allocatable.Cpu().MilliValue(); free.holds(asked(pod)) && left > most {
				best, most = name, left
			}
		}
		if best == "" {
			continue
		}
		if held[best] != nil && pod.Status.NominatedNodeName == best {
			held[best].add(asked(pod), -1)
		}
		w.free[best].add(asked(pod), -1)
		pod.Spec.NodeName, pod.Status = best, corev1.PodStatus{Phase: corev1.PodRunning}
		w.controller.BatchPod(w.t.Context(), pod)
	}
}

// waiting returns the number of unbound pods.
func (w *fakeCluster) waiting() int {
	n := 0
	for _, pod := range w.pods {
		if pod.Spec.NodeName == "" {
			n++
		}
	}
	return n
}

// bill returns the cost of all launched machines in micro-dollars per hour.
func (w *fakeCluster) bill() int64 {
	var sum int64
	for _, claim := range w.claims {
		n, err := strconv.ParseInt(claim.Annotations[v1alpha1.PriceAnnotation], 10, 64)
		if err != nil {
			w.t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// machines returns how many machines of each type were launched.
func (w *fakeCluster) machines() string {
	count := map[string]int{}
	for _, claim := range w.claims {
		instanceType, _, _ := records.ShapeOf(claim)
		count[instanceType]++
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		out = append(out, strconv.Itoa(count[name])+" × "+name)
	}
	return strings.Join(out, ", ")
}
