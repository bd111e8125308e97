package model

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/controllers/disruption"
	"karve.sh/karve/pkg/controllers/launch"
	"karve.sh/karve/pkg/controllers/pool"
	"karve.sh/karve/pkg/controllers/provisioning"
	"karve.sh/karve/pkg/controllers/readiness"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// The controller's settings, the same as the chart's defaults.
const (
	replicasTimeout = 10 * time.Minute
	settle          = 10 * time.Second
	idleAfter       = 5 * time.Minute
)

var tolerations = repair.Tolerations{NotReady: 30 * time.Minute, GPUFault: 10 * time.Minute, Replicas: replicasTimeout}

// karve is one process of the controller: everything that it keeps in memory.
type karve struct {
	controllers map[string]reconcile.Reconciler
	// claims are the claims that the controller's watch has seen.
	claims map[string]bool
}

// parts are the reconcilers, in the order in which a turn runs them.
var parts = []string{"launch", "readiness", "pool", "disruption", "provisioning"}

var (
	measured = sync.OnceValue(func() *metrics.Metrics { return metrics.New(prometheus.NewRegistry()) })
	kinds    = sync.OnceValue(func() meta.RESTMapper {
		m := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: "karpenter.k8s.aws", Version: "v1"}})
		m.Add(schema.GroupVersionKind{Group: "karpenter.k8s.aws", Version: "v1", Kind: "EC2NodeClass"}, meta.RESTScopeRoot)
		return m
	})
)

// innerClass is the cloud's node class.
var innerClass = sync.OnceValue(func() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": map[string]any{"name": "gpu"},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": "2026-01-01T00:00:00Z"}}},
	}}
})

// silent is an event recorder that discards all events.
type silent struct{}

func (silent) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// begin restarts the controller.
func (w *world) begin() {
	all, ledger := measured(), launching.NewLedger()
	gatherer := &gather.Gatherer{
		Cached: w.store, Live: w.store, Mapper: kinds(), Catalog: w.catalog, Ledger: ledger, Clock: w.clock, ReplicasTimeout: replicasTimeout,
		Kinds: gather.Kinds{PodGroups: podGroupKinds},
	}
	plans := &planning.Planner{Clock: w.clock, Metrics: all, Budget: time.Second}
	if w.readAhead {
		plans.ReadAhead = &planning.ReadAhead{}
	}
	pods := provisioning.New(provisioning.Config{
		Client: w.store, Gatherer: gatherer, Planner: plans, Ledger: ledger, Metrics: all, Recorder: silent{}, Clock: w.clock, BatchIdle: time.Second, BatchMax: 10 * time.Second,
		MaxUnlaunched: 10, Nominations: w.readAhead,
	})
	w.watched = func(before, after *corev1.Pod) {
		if before != nil {
			pods.PodChanged(context.Background(), before, after)
		}
		pods.BatchPod(context.Background(), after)
	}
	for _, pod := range w.pods() {
		w.watched(nil, pod)
	}
	w.karve = karve{claims: map[string]bool{}, controllers: map[string]reconcile.Reconciler{
		"launch": &launch.Controller{Config: launch.Config{
			Client: w.store, NodeClass: gatherer.NodeClass, Ledger: ledger, Metrics: all, Recorder: silent{}, Clock: w.clock, Timeout: time.Minute,
		}},
		"readiness": readiness.New(readiness.Config{Client: w.store, Gatherer: gatherer, Metrics: all, Recorder: silent{}, Clock: w.clock, Timeout: replicasTimeout, Planned: plans.ReadAhead.Planned, Nominations: w.readAhead, Groups: &plans.Groups}),
		"pool": &pool.Controller{Config: pool.Config{
			Client: w.store, Gatherer: gatherer, Planner: plans, Metrics: all, Recorder: silent{}, Clock: w.clock, Tolerations: tolerations,
		}},
		"disruption":   disruption.New(disruption.Config{Client: w.store, Gatherer: gatherer, Planner: plans, Metrics: all, Recorder: silent{}, Clock: w.clock, Settle: settle, Tolerations: tolerations}),
		"provisioning": pods,
	}}
}

// runs runs a reconciler and checks the invariants.
func (w *world) runs(part string) {
	if part == "disruption" {
		w.reconcilesDisruption(func() time.Duration { return w.reconciles(part) })
		return
	}
	if part == "provisioning" {
		w.launchesOnce(func() { w.reconciles(part) })
		w.remembers()
		return
	}
	if part == "readiness" {
		w.opensTogether(func() { w.reconciles(part) })
		return
	}
	w.reconciles(part)
}

// reconciles runs a reconciler and returns when to requeue. A reconciler of claims runs for each claim, and for deleted claims where it watches them.
func (w *world) reconciles(part string) (again time.Duration) {
	names := []string{""}
	if part == "launch" || part == "readiness" {
		names = nil
		for _, claim := range all[*karpv1.NodeClaim](w.store) {
			names = append(names, claim.Name)
		}
	}
	if part == "launch" {
		for name := range w.karve.claims {
			if find[*karpv1.NodeClaim](w.store, "", name) == nil {
				names = append(names, name)
			}
		}
		for _, name := range names {
			w.karve.claims[name] = true
		}
	}
	for _, name := range names {
		w.acting = part
		result, err := w.karve.controllers[part].Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
		w.acting = ""
		if err != nil {
			w.failf("%s of %q: %v", part, name, err)
		}
		again = result.RequeueAfter
	}
	return again
}

// catalogOf returns the types that can be launched: the cheaper one has room for four replicas, the other one has more CPU.
func catalogOf() cloud.SameForAll {
	small := *snapshottest.TypeNamed("g4dn.xlarge")
	large := *snapshottest.TypeNamed("g4dn.2xlarge")
	types := cloud.SameForAll{small, large}
	for i := range types {
		types[i].Offerings = types[i].Offerings[:1:1]
	}
	return types
}

func (w *world) failf(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf(format, args...)
	}
}
