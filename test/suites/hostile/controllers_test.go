package hostile_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/crds"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/controllers/launch"
	"karve.sh/karve/pkg/controllers/pool"
	"karve.sh/karve/pkg/controllers/readiness"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/test/harness/hostile"
)

// server is an API server for the controllers. It validates and stores writes of the status of NodePools and GPUNodeClasses, deletes NodeClaims, and ignores
// all other writes.
type server struct {
	client.Client // No other method is called.
	t             *testing.T
	cluster       *facts.Cluster
	events        []corev1.Event
}

func (s *server) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	c := s.cluster
	switch list := list.(type) {
	case *corev1.PodList:
		list.Items = c.Pods
	case *corev1.NodeList:
		list.Items = c.Nodes
	case *corev1.EventList:
		list.Items = s.events
	case *karpv1.NodePoolList:
		list.Items = c.NodePools
	case *karpv1.NodeClaimList:
		list.Items = slices.Clone(c.NodeClaims)
	case *v1alpha1.GPUNodeClassList:
		list.Items = c.GPUNodeClasses
	}
	return nil
}

func (s *server) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	found := false
	switch o := o.(type) {
	case *karpv1.NodePool:
		found = get(s.cluster.NodePools, key.Name, o)
	case *karpv1.NodeClaim:
		found = get(s.cluster.NodeClaims, key.Name, o)
	case *v1alpha1.GPUNodeClass:
		found = get(s.cluster.GPUNodeClasses, key.Name, o)
	case *corev1.Node:
		found = get(s.cluster.Nodes, key.Name, o)
	case *unstructured.Unstructured: // A node class of the cloud.
		found = key.Name == snapshottest.NodeClassRef.Name
		o.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}
	}
	if !found {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	return nil
}

func get[T any, P interface {
	*T
	client.Object
	DeepCopyInto(*T)
}](all []T, name string, o P) bool {
	i := slices.IndexFunc(all, func(is T) bool { return P(&is).GetName() == name })
	if i >= 0 {
		P(&all[i]).DeepCopyInto(o)
	}
	return i >= 0
}

func (s *server) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	s.cluster.NodeClaims = slices.DeleteFunc(slices.Clone(s.cluster.NodeClaims), func(c karpv1.NodeClaim) bool { return c.Name == o.GetName() })
	return nil
}

func (s *server) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return nil
}

func (s *server) Status() client.SubResourceWriter { return statuses{s: s} }

type statuses struct {
	client.SubResourceWriter
	s *server
}

func (s statuses) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	switch o := o.(type) {
	case *karpv1.NodePool:
		s.s.valid(o, o.Status, schemas()[0])
		set(s.s.cluster.NodePools, o.Name, *o)
	case *v1alpha1.GPUNodeClass:
		s.s.valid(o, o.Status, schemas()[1])
		set(s.s.cluster.GPUNodeClasses, o.Name, *o)
	}
	return nil
}

func set[T any, P interface {
	*T
	client.Object
}](all []T, name string, is T) {
	for i := range all {
		if P(&all[i]).GetName() == name {
			all[i] = is
		}
	}
}

// valid fails the test if the API server would reject a status. A controller whose status is rejected can no longer report anything.
func (s *server) valid(o client.Object, status any, v validation.SchemaValidator) {
	s.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, err := range validation.ValidateCustomResource(nil, content, v) {
		s.t.Errorf("the status of %T %s is rejected: %.500s", o, o.GetName(), err)
	}
}

// schemas are the status schemas of NodePools and GPUNodeClasses.
var schemas = sync.OnceValue(func() [2]validation.SchemaValidator {
	ours, err := crds.FS.ReadFile("karve.sh_gpunodeclasses.yaml")
	if err != nil {
		panic(err)
	}
	var both [2]validation.SchemaValidator
	for i, text := range [][]byte{apis.NodePoolCRD, ours} {
		var crd apiextensionsv1.CustomResourceDefinition
		var all apiextensions.JSONSchemaProps
		if err := yaml.Unmarshal(text, &crd); err != nil {
			panic(err)
		}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &all, nil); err != nil {
			panic(err)
		}
		status := all.Properties["status"]
		if both[i], _, err = validation.NewSchemaValidator(&status); err != nil {
			panic(err)
		}
	}
	return both
})

var (
	measured = sync.OnceValue(func() *metrics.Metrics { return metrics.New(prometheus.NewRegistry()) })
	kinds    = sync.OnceValue(func() meta.RESTMapper {
		group := schema.GroupVersion{Group: snapshottest.NodeClassRef.Group, Version: "v1"}
		m := meta.NewDefaultRESTMapper([]schema.GroupVersion{group})
		m.Add(group.WithKind(snapshottest.NodeClassRef.Kind), meta.RESTScopeRoot)
		return m
	})
)

// report runs the controllers that watch machines and report on pools. Some NodeClaims are given up, some are gone, and the others take too long. No controller
// may panic, return an error or write an invalid status.
func report(t *testing.T, c *facts.Cluster, events []corev1.Event) {
	t.Helper()
	const timeout = 10 * time.Minute
	cluster := *c
	cluster.NodePools, cluster.GPUNodeClasses, cluster.NodeClaims = slices.Clone(c.NodePools), slices.Clone(c.GPUNodeClasses), slices.Clone(c.NodeClaims)
	api, clk, ledger := &server{t: t, cluster: &cluster, events: events}, clocktesting.NewFakeClock(c.Now), launching.NewLedger()
	gatherer := &gather.Gatherer{
		Cached: api, Live: api, Mapper: kinds(), Catalog: cloud.SameForAll(snapshottest.Types()), Ledger: ledger, Clock: clk, ReplicasTimeout: timeout,
	}
	ahead := &planning.ReadAhead{}
	each := []reconcile.Reconciler{
		&launch.Controller{Config: launch.Config{
			Client: api, NodeClass: gatherer.NodeClass, Ledger: ledger, Metrics: measured(), Recorder: silent{}, Clock: clk, Timeout: time.Minute,
		}},
		readiness.New(readiness.Config{Client: api, Gatherer: gatherer, Metrics: measured(), Recorder: silent{}, Clock: clk, Nominations: true, Planned: ahead.Planned, Timeout: timeout}),
	}
	pools := &pool.Controller{Config: pool.Config{
		Client: api, Gatherer: gatherer, Planner: &planning.Planner{Clock: clk, Metrics: measured(), ReadAhead: ahead}, Metrics: measured(), Recorder: silent{}, Clock: clk,
		Tolerations: repair.Tolerations{NotReady: 30 * time.Minute, GPUFault: 10 * time.Minute, Replicas: timeout},
	}}
	ctx := log.IntoContext(t.Context(), logr.Discard())
	run := func(r reconcile.Reconciler, name string) {
		if _, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}); err != nil {
			t.Errorf("%T of %q: %v", r, name, err)
		}
	}
	for pass := range 3 {
		for i := range c.NodeClaims {
			for _, r := range each {
				run(r, c.NodeClaims[i].Name)
			}
		}
		run(pools, "")
		if pass > 0 {
			clk.Step(timeout + time.Second)
			continue
		}
		for i := range cluster.NodeClaims { // Karpenter gives some of them up; those without its finalizer are gone at once.
			if claim := &cluster.NodeClaims[i]; claim.Name != hostile.SaneMachine && i%3 > 0 {
				claim.DeletionTimestamp = new(metav1.NewTime(clk.Now()))
			}
		}
		for i := range c.NodeClaims {
			if i%3 == 2 && c.NodeClaims[i].Name != hostile.SaneMachine {
				_ = api.Delete(ctx, &c.NodeClaims[i])
			}
		}
		clk.Step(time.Second)
	}
	i := slices.IndexFunc(cluster.NodePools, func(np karpv1.NodePool) bool { return np.Name == "sane" })
	if valid := facts.Condition(cluster.NodePools[i].Status.Conditions, karpv1.ConditionTypeValidationSucceeded); !valid.IsTrue() {
		t.Errorf("the sane NodePool is told %+v", valid)
	}
}

// silent is an event recorder that discards all events.
type silent struct{ events.EventRecorder }

func (silent) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}
