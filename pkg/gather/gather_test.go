package gather

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// store is a cache made of client-go's indexers, as informers use them. It counts reads.
type store struct {
	// mu is locked while a kind is listed.
	mu    sync.Mutex
	kinds map[string]toolscache.Indexer
	// lists has how often each kind was listed.
	lists map[string]int
	// listing is called for each list. It may be nil.
	listing func(client.ObjectList)
	// broken makes every read fail.
	broken bool
	// getting is called for each Get. It may be nil.
	getting func()
}

func (s *store) kind(name string) toolscache.Indexer {
	if s.kinds[name] == nil {
		s.kinds[name] = toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{})
	}
	return s.kinds[name]
}

// nameOf returns the name of an object's kind, with the suffix "List" for a list. Unstructured objects have caches of their own.
func nameOf(o runtime.Object) string {
	if u, ok := o.(runtime.Unstructured); ok {
		return "unstructured " + u.GetObjectKind().GroupVersionKind().Kind
	}
	return reflect.TypeOf(o).Elem().Name()
}

func (s *store) IndexField(_ context.Context, o client.Object, field string, extract client.IndexerFunc) error {
	return s.kind(nameOf(o)).AddIndexers(toolscache.Indexers{field: func(o any) ([]string, error) { return extract(o.(client.Object)), nil }})
}

func (s *store) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := nameOf(list)
	s.lists[name]++
	if s.listing != nil {
		s.listing(list)
	}
	var all []runtime.Object
	for _, o := range s.kind(name[:len(name)-len("List")]).List() {
		all = append(all, o.(runtime.Object).DeepCopyObject())
	}
	slices.SortFunc(all, func(a, b runtime.Object) int {
		return strings.Compare(a.(client.Object).GetName(), b.(client.Object).GetName())
	})
	return meta.SetList(list, all)
}

// Get finds an object. Every node class of the cloud exists.
func (s *store) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	s.lists["get "+nameOf(o)]++
	kind := s.kind(nameOf(o))
	s.mu.Unlock()
	if s.broken {
		return errors.New("broken")
	}
	if s.getting != nil {
		s.getting()
	}
	if _, ok := o.(runtime.Unstructured); ok {
		return nil
	}
	found, ok, err := kind.GetByKey(nameOfKey(key))
	if err != nil || !ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: nameOf(o)}, key.Name)
	}
	reflect.ValueOf(o).Elem().Set(reflect.ValueOf(found.(runtime.Object).DeepCopyObject()).Elem())
	return nil
}

// GetInformer returns an informer that only has a store.
func (s *store) GetInformer(_ context.Context, o client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	return informer{store: s.kind(nameOf(o))}, nil
}

type informer struct {
	cache.Informer
	store toolscache.Store
}

func (i informer) GetStore() toolscache.Store { return i.store }

func (s *store) remove(o client.Object) {
	if err := s.kind(nameOf(o)).Delete(o); err != nil {
		panic(err)
	}
}

func (s *store) set(objects ...client.Object) {
	for _, o := range objects {
		if err := s.kind(nameOf(o)).Update(o); err != nil {
			panic(err)
		}
	}
}

// counts returns how often each kind was read since the last call.
func (s *store) counts() map[string]int {
	defer clear(s.lists)
	return maps.Clone(s.lists)
}

func newStore() *store {
	return &store{kinds: map[string]toolscache.Indexer{}, lists: map[string]int{}}
}

type testbed struct {
	*Gatherer
	cached, live *store
	clock        *clocktesting.FakeClock
}

func newTestbed() testbed {
	cached, live, clock := newStore(), newStore(), clocktesting.NewFakeClock(snapshottest.Now)
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: snapshottest.NodeClassRef.Group, Version: "v1"}})
	mapper.Add(schema.GroupVersionKind{Group: snapshottest.NodeClassRef.Group, Version: "v1", Kind: snapshottest.NodeClassRef.Kind}, meta.RESTScopeRoot)
	c := snapshottest.Shared()
	for i := range c.NodePools {
		cached.set(&c.NodePools[i], asItIs(&c.NodePools[i], nodePool))
	}
	for i := range c.GPUNodeClasses {
		cached.set(&c.GPUNodeClasses[i], asItIs(&c.GPUNodeClasses[i], gpuNodeClass))
	}
	return testbed{&Gatherer{
		Cached: cached, Live: live, Mapper: mapper, Catalog: cloud.SameForAll(snapshottest.Types()), Ledger: launching.NewLedger(), Clock: clock,
		Kinds: Kinds{NodeOverlays: true, ImageRollouts: true},
	}, cached, live, clock}
}

func asItIs(o client.Object, gvk schema.GroupVersionKind) *unstructured.Unstructured {
	o = o.DeepCopyObject().(client.Object)
	o.GetObjectKind().SetGroupVersionKind(gvk)
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(text); err != nil {
		panic(err)
	}
	return u
}

func pod(name string) *corev1.Pod {
	p := snapshottest.Pod(name)
	return &p
}

func (b testbed) look(t testing.TB) *facts.Cluster {
	t.Helper()
	c, err := b.Cluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (b testbed) follow(t testing.TB) {
	t.Helper()
	if err := b.Follow(t.Context(), b.cached); err != nil {
		t.Fatal(err)
	}
}

func TestClusterReadsOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	few := map[string]int{
		"NodePoolList": 1, "GPUNodeClassList": 1, "DaemonSetList": 1, "NamespaceList": 1, "StorageClassList": 1, "NodeOverlayList": 1, "GPUImageRolloutList": 1,
		"unstructured NodePoolList": 1, "unstructured GPUNodeClassList": 1,
	}
	all := maps.Clone(few)
	for _, many := range []string{"NodeList", "PodList", "PersistentVolumeList", "PersistentVolumeClaimList", "CSINodeList"} {
		all[many] = 1
	}
	looks := func(when string, cached, live map[string]int) {
		t.Helper()
		b.look(t)
		if diff := cmp.Diff(cached, b.cached.counts()); diff != "" {
			t.Errorf("%s, read from the caches (-want +got):\n%s", when, diff)
		}
		if diff := cmp.Diff(live, b.live.counts()); diff != "" {
			t.Errorf("%s, read live (-want +got):\n%s", when, diff)
		}
	}
	class, nothing := map[string]int{"get unstructured EC2NodeClass": 1}, map[string]int{}
	both := map[string]int{"NodeClaimList": 1, "get unstructured EC2NodeClass": 1}
	looks("where changes are not followed", all, both)
	looks("where changes are still not followed", all, both)
	b.follow(t)
	looks("the first time", few, map[string]int{"NodeClaimList": 1})
	looks("when nothing has changed", nothing, nothing)
	b.cached.set(pod("a"), &corev1.Node{}, &karpv1.NodeClaim{})
	looks("when objects came of which there are many", nothing, nothing)
	b.cached.remove(pod("a"))
	looks("when one went", nothing, nothing)
	b.cached.set(asItIs(&karpv1.NodePool{}, nodePool))
	looks("when a field that may not be known changed", map[string]int{"unstructured NodePoolList": 1, "unstructured GPUNodeClassList": 1}, nothing)
	b.clock.Step(reuseTime + time.Nanosecond)
	looks("after a while", nothing, class)
}

// change draws a change of the caches and returns a function that makes it.
func (b testbed) change(t *rapid.T) func() {
	name := fmt.Sprint("p", rapid.IntRange(0, 3).Draw(t, "name"))
	version := fmt.Sprint(rapid.IntRange(0, 1000).Draw(t, "version"))
	pool := snapshottest.Pool("gpu-shared", "gpu-shared", snapshottest.Tainted(v1alpha1.ResourceGPUShared))
	claim := snapshottest.Claim(name, &pool, snapshottest.TypeNamed("g4dn.xlarge"), snapshottest.Initialized(snapshottest.Now))
	node := snapshottest.Node(&claim, snapshottest.TypeNamed("g4dn.xlarge"), 10)
	kinds := map[string]client.Object{"pod": pod(name), "node": &node, "claim": &claim, "pool": &pool, "namespace": &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}}
	if rapid.Bool().Draw(t, "bound") {
		p := snapshottest.Pod(name, snapshottest.Running(fmt.Sprint("p", rapid.IntRange(0, 3).Draw(t, "node"))))
		kinds["pod"] = &p
	}
	o := kinds[rapid.SampledFrom(slices.Sorted(maps.Keys(kinds))).Draw(t, "kind")]
	o.SetResourceVersion(version)
	stores := []*store{b.cached}
	if _, ok := o.(*karpv1.NodeClaim); ok {
		stores = append(stores, b.live)
	}
	gone := rapid.IntRange(0, 3).Draw(t, "gone") == 0
	return func() {
		for _, s := range stores {
			if gone {
				s.remove(o)
			} else {
				s.set(o)
			}
		}
	}
}

// TestClusterIsNeverOlderThanCaches checks that a reader that was woken by a change sees it: a look that follows the caches returns the same as one that reads
// everything.
func TestClusterIsNeverOlderThanCaches(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := newTestbed()
		plain := &Gatherer{
			Cached: b.cached, Live: b.live, Mapper: b.Mapper, Catalog: b.Catalog, Ledger: b.Ledger, Clock: b.Clock, Kinds: Kinds{NodeOverlays: true, ImageRollouts: true},
		}
		b.follow(t)
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			b.change(rt)()
			switch rapid.IntRange(0, 9).Draw(rt, "then") {
			case 0:
				b.clock.Step(time.Minute)
			case 1:
				b.followed.pods.names = nil // This is the state after too many changes.
			case 2:
				change := b.change(rt)
				b.cached.listing = func(client.ObjectList) { b.cached.listing = nil; change() }
				b.look(t)
				b.cached.listing = nil // A look that listed nothing left it, and the next reads must agree.
			}
			want, err := plain.Cluster(t.Context())
			if err != nil {
				rt.Fatal(err)
			}
			got := b.look(t)
			names := func(c *facts.Cluster) map[string]string {
				all := map[string]string{}
				for _, pod := range c.Indexed().Pending() {
					all["pod "+pod.Name] = pod.ResourceVersion
				}
				for name, claim := range c.Indexed().NodeClaims() {
					all["claim "+name] = claim.ResourceVersion
				}
				for node := range c.Indexed().AllNodes() {
					_, pods := c.Indexed().Node(node.Name)
					all["node "+node.Name] = node.ResourceVersion
					for _, pod := range pods {
						all["pod "+pod.Name] = pod.ResourceVersion
					}
				}
				for i := range c.Namespaces {
					all["namespace "+c.Namespaces[i].Name] = c.Namespaces[i].ResourceVersion
				}
				return all
			}
			if diff := cmp.Diff(names(want), names(got)); diff != "" {
				rt.Fatalf("a look differs from the caches (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(snapshot.Build(want).Snapshot, snapshot.Build(got).Snapshot); diff != "" {
				rt.Fatalf("its view differs (-want +got):\n%s", diff)
			}
		}
	})
}

func TestReadsOfUnchangedObjectsShareGeneration(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	if first, next := b.look(t).Generation, b.look(t).Generation; first == next || first == 0 {
		t.Errorf("where changes are not followed, reads are of generations %d and %d", first, next)
	}
	b.follow(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(b.clock.Now())}}
	b.cached.set(node, pod("a"))
	last := b.look(t)
	generation := func(when string, same bool) {
		t.Helper()
		c := b.look(t)
		if (c.Generation == last.Generation) != same {
			t.Errorf("%s, the generation is %d after %d", when, c.Generation, last.Generation)
		}
		last = c
	}
	generation("when nothing has changed", true)
	heard := node.DeepCopy()
	heard.ResourceVersion, heard.Status.Conditions[0].LastHeartbeatTime = "2", metav1.NewTime(b.clock.Now().Add(time.Minute))
	b.cached.set(heard)
	generation("after a heartbeat", true)
	if now, _ := last.Indexed().Node("a"); now.ResourceVersion != "2" || !last.Indexed().LastHeartbeat().Equal(b.clock.Now().Add(time.Minute)) {
		t.Errorf("the look shows version %s of the Node", now.ResourceVersion)
	}
	unready := heard.DeepCopy()
	unready.Status.Conditions[0].Status = corev1.ConditionFalse
	b.cached.set(unready)
	generation("when a Node is not ready", false)
	b.cached.remove(pod("a"))
	generation("when a pod went", false)
	b.cached.set(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	generation("when a namespace came", false)
	b.clock.Step(reuseTime)
	generation("within two seconds", true)
	b.clock.Step(time.Nanosecond)
	generation("after two seconds, since plans depend on the time", false)
}

// A read that fails halfway must not hide from the next read what it has already seen.
func TestChangeStartsNewGenerationAfterFailedRead(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	b.follow(t)
	before := b.look(t)
	for name, change := range map[string]client.Object{"a pod": pod("a"), "a namespace": &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}} {
		b.cached.set(change)
		b.clock.Step(time.Millisecond)
		b.written.begin("lost")
		b.live.broken = true
		if _, err := b.Cluster(t.Context()); err == nil {
			t.Fatal("a read succeeds although the API server is gone")
		}
		b.live.broken = false
		b.written = writes{}
		after := b.look(t)
		if after.Generation == before.Generation {
			t.Errorf("%s came, and the generation is %d as before", name, after.Generation)
		}
		before = after
	}
}

// Looks share objects, but each has the current time and the current refusals.
func TestClusterHasCurrentTimeAndRefusals(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	b.follow(t)
	before := b.look(t)
	b.clock.Step(time.Second)
	b.Ledger.Learn("gpu-shared", []v1alpha1.RefusedOffering{{InstanceType: "g4dn.xlarge", Zone: v1alpha1.Any, CapacityType: v1alpha1.Any, Failures: 1}}, b.clock.Now())
	delete(before.NodeClasses, snapshottest.NodeClassRef)
	after := b.look(t)
	if !after.Now.Equal(b.clock.Now()) || len(after.Refused["gpu-shared"]) != 1 || len(after.NodeClasses) != 1 || &before.NodePools[0] != &after.NodePools[0] {
		t.Errorf("at %s, %d are refused, %d node classes", after.Now, len(after.Refused["gpu-shared"]), len(after.NodeClasses))
	}
}

// A cluster with many pools must not wait for one node class after the other when the API server is slow.
func TestNodeClassesAreReadTogether(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	for _, name := range []string{"b", "c"} {
		class := snapshottest.Shared().GPUNodeClasses[0]
		class.Name, class.Spec.NodeClassRef.Name = name, name
		b.cached.set(&class, asItIs(&class, gpuNodeClass))
	}
	var all sync.WaitGroup
	all.Add(3)
	b.live.getting = func() { all.Done(); all.Wait() }
	b.look(t)
}

// Otherwise each look reads the node classes again while reading them takes longer than two seconds.
func TestNodeClassesThatTookLongToReadAreKept(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	b.follow(t)
	b.live.getting = func() { b.clock.Step(reuseTime + time.Second) }
	b.look(t)
	b.live.counts()
	b.look(t)
	if n := b.live.counts()["get unstructured "+snapshottest.NodeClassRef.Kind]; n != 0 {
		t.Errorf("the node class was read %d times more", n)
	}
}
