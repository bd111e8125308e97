package gather

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/controllers/launch"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// store is a cache made of client-go's own indexers, as informers have them. It counts what is read of it.
type store struct {
	kinds map[string]toolscache.Indexer
	// lists is how often each kind was listed.
	lists map[string]int
	// listing is called with each list; it may be nil.
	listing func(client.ObjectList)
}

func (s *store) kind(name string) toolscache.Indexer {
	if s.kinds[name] == nil {
		s.kinds[name] = toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{})
	}
	return s.kinds[name]
}

// nameOf is that of the kind of an object, or of its list with "List" after it. Objects as they are have caches of their own.
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

func (s *store) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	s.lists["get "+nameOf(o)]++
	return nil
}

func (s *store) set(objects ...client.Object) {
	for _, o := range objects {
		if err := s.kind(nameOf(o)).Update(o); err != nil {
			panic(err)
		}
	}
}

// counts takes how often each kind was read since the last time.
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
		Cached: cached, Live: live, Mapper: mapper, Catalog: cloud.SameForAll(snapshottest.Types()), Ledger: launch.NewLedger(), Clock: clock,
		NodeOverlays: true, ImageRollouts: true,
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

func (b testbed) look(t *testing.T, read func(context.Context) (*snapshot.Cluster, error)) *snapshot.Cluster {
	t.Helper()
	c, err := read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestALookListsWhatHasChanged(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	all := map[string]int{
		"NodePoolList": 1, "GPUNodeClassList": 1, "NodeList": 1, "PodList": 1, "DaemonSetList": 1, "NamespaceList": 1, "PersistentVolumeList": 1,
		"PersistentVolumeClaimList": 1, "StorageClassList": 1, "CSINodeList": 1, "NodeOverlayList": 1, "GPUImageRolloutList": 1,
		"unstructured NodePoolList": 1, "unstructured GPUNodeClassList": 1,
	}
	live := map[string]int{"NodeClaimList": 1, "get unstructured EC2NodeClass": 1}
	looks := func(when string, cached, live map[string]int) {
		t.Helper()
		b.look(t, b.Cluster)
		if diff := cmp.Diff(cached, b.cached.counts()); diff != "" {
			t.Errorf("%s, read from the caches (-want +got):\n%s", when, diff)
		}
		if diff := cmp.Diff(live, b.live.counts()); diff != "" {
			t.Errorf("%s, read live (-want +got):\n%s", when, diff)
		}
	}
	looks("where changes are not counted", all, live)
	looks("where changes are still not counted", all, live)
	if err := b.CountChanges(t.Context(), b.cached); err != nil {
		t.Fatal(err)
	}
	looks("the first time", all, live)
	looks("when nothing has changed", map[string]int{}, live)
	b.cached.set(pod("a"))
	looks("when a pod came", map[string]int{"PodList": 1}, live)
	b.cached.set(&corev1.Node{}, pod("a"))
	looks("when a Node came and a pod changed", map[string]int{"PodList": 1, "NodeList": 1}, live)
	if err := b.cached.kind("Pod").Delete(pod("a")); err != nil {
		t.Fatal(err)
	}
	looks("when a pod went", map[string]int{"PodList": 1}, live)
	b.cached.set(asItIs(&karpv1.NodePool{}, nodePool))
	looks("when a field that may not be known changed", map[string]int{"unstructured NodePoolList": 1, "unstructured GPUNodeClassList": 1}, live)
	b.cached.set(&karpv1.NodeClaim{})
	looks("when a NodeClaim came, which is read live", map[string]int{}, live)
}

// Whoever was woken by a change must see it, whatever was kept.
func TestALookIsNeverOlderThanTheCaches(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := newTestbed()
		if err := b.CountChanges(t.Context(), b.cached); err != nil {
			rt.Fatal(err)
		}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			name := fmt.Sprint("p", rapid.IntRange(0, 3).Draw(rt, "pod"))
			switch rapid.SampledFrom([]string{"set", "delete", "look", "recent", "while looking"}).Draw(rt, "step") {
			case "set":
				p := pod(name)
				p.ResourceVersion = fmt.Sprint(rapid.IntRange(0, 1000).Draw(rt, "version"))
				b.cached.set(p)
			case "delete":
				if err := b.cached.kind("Pod").Delete(pod(name)); err != nil {
					rt.Fatal(err)
				}
			case "while looking":
				b.cached.listing = func(client.ObjectList) { b.cached.listing = nil; b.cached.set(pod(name)) }
				b.look(t, b.Cluster)
			case "look":
				b.clock.Step(time.Minute)
			}
			for how, read := range map[string]func(context.Context) (*snapshot.Cluster, error){"a look": b.Cluster, "a recent look": b.Recent} {
				var want corev1.PodList
				if err := b.cached.List(t.Context(), &want); err != nil {
					rt.Fatal(err)
				}
				if diff := cmp.Diff(want.Items, b.look(t, read).Pods); diff != "" {
					rt.Fatalf("%s differs from the caches (-want +got):\n%s", how, diff)
				}
			}
		}
	})
}

func TestWhoAsksBeforeALookBeginsSharesItAndWhoAsksLaterDoesNot(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	first, takes := b.join()
	if !takes {
		t.Fatal("nobody takes the first look")
	}
	if same, takes := b.join(); same != first || takes {
		t.Error("two looks are taken for two who ask before either begins")
	}
	var later *look
	b.live.listing = func(client.ObjectList) {
		if later == nil {
			later, takes = b.join()
		}
	}
	b.take(t.Context(), first)
	if later == nil || later == first || !takes {
		t.Error("who asks while a look is taken gets that one, which may have missed what he has seen")
	}
	if c, err := b.hand(first); err != nil || len(c.NodePools) == 0 {
		t.Errorf("%d NodePools: %v", len(c.NodePools), err)
	}
}

func TestARecentLookIsSharedUntilSomethingChanges(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	looks := func(when string, want int) {
		t.Helper()
		b.look(t, b.Recent)
		if got := b.live.counts()["NodeClaimList"]; got != want {
			t.Errorf("%s, NodeClaims are listed %d times, want %d", when, got, want)
		}
	}
	looks("at first", 1)
	looks("where changes are not counted", 1)
	if err := b.CountChanges(t.Context(), b.cached); err != nil {
		t.Fatal(err)
	}
	looks("for the first time with changes counted", 1)
	looks("when nothing has changed", 0)
	b.cached.set(&karpv1.NodeClaim{})
	looks("when a NodeClaim changed", 1)
	looks("when nothing else has changed", 0)
	b.clock.Step(recent + time.Nanosecond)
	looks("after a while", 1)
}

// Looks share their objects, and each has the time and the refusals as they are.
func TestASharedLookIsAsOfNow(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	if err := b.CountChanges(t.Context(), b.cached); err != nil {
		t.Fatal(err)
	}
	before := b.look(t, b.Recent)
	b.clock.Step(time.Second)
	b.Ledger.Learn("gpu-shared", []v1alpha1.RefusedOffering{{InstanceType: "g4dn.xlarge", Zone: v1alpha1.Any, CapacityType: v1alpha1.Any, Failures: 1}}, b.clock.Now())
	delete(before.NodeClasses, snapshottest.NodeClassRef)
	after := b.look(t, b.Recent)
	if !after.Now.Equal(b.clock.Now()) || len(after.Refused["gpu-shared"]) != 1 || len(after.NodeClasses) != 1 || &before.NodePools[0] != &after.NodePools[0] {
		t.Errorf("at %s, %d are refused, %d node classes", after.Now, len(after.Refused["gpu-shared"]), len(after.NodeClasses))
	}
}
