package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	runtimemetrics "runtime/metrics"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/explain"
	"karve.sh/karve/pkg/fleet/booking"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/test/harness/hostile"
)

// effort limits the search, so that equal clusters have equal plans.
const effort = 200

// everything makes the decisions of the controller about a cluster, and answers questions about the cluster and one of its pods. It returns the places of the pods and what the ProvisioningRequests
// are told, and a function that answers a question about another pod.
func everything(ctx context.Context, api *cache) (map[string]place, func(pod client.ObjectKey) error, error) {
	clk := clocktesting.NewFakeClock(snapshottest.Now)
	gatherer := &gather.Gatherer{
		Cached: api, Live: api, Mapper: kinds(), Catalog: cloud.SameForAll(snapshottest.Types()), Ledger: launching.NewLedger(), Clock: clk, Kinds: gather.Kinds{DRA: true, CapacityBuffers: true, PodGroups: podGroupKinds, ProvisioningRequests: true},
		ReplicasTimeout: 10 * time.Minute,
	}
	c, err := gatherer.Cluster(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the cluster: %w", err)
	}
	plan, headroom := checked.Suppose(snapshot.Build(c), effort)
	places := placesOf(&plan)
	for _, f := range booking.Observe(&plan, checked.WithEffort(effort)) {
		for _, condition := range booking.Next(f) {
			places[f.Request.String()] = place{nowhere, fmt.Sprintf("%s=%s %s: %s", condition.Type, condition.Status, condition.Reason, condition.Message)}
		}
	}
	overview.Build(c)
	_, unquoted := quote.Of(c, func() solve.Solver { return solve.Solver{Effort: effort} })
	x := explain.New(c, explain.NewSettings(published.DefaultSettings()))
	explained := func(pod client.ObjectKey) error { _, err := x.Pod(pod.Namespace, pod.Name); return err }
	err = errors.Join(plan.Err, headroom.Err, unquoted, explained(client.ObjectKey{Namespace: "default", Name: "sane-plain-000"}))
	return places, explained, err
}

func placesOf(plan *checked.Plan) map[string]place {
	places := map[string]place{}
	for _, p := range plan.Placements {
		for _, pod := range p.Pods {
			places[pod] = place{placed, plan.View.Nodes[p.Node].Name}
		}
	}
	for _, l := range plan.Launches {
		for _, pod := range l.Pods {
			places[pod] = place{launched, ""}
		}
	}
	for _, u := range plan.Unplaced {
		places[u.Pod] = place{nowhere, u.Message}
	}
	return places
}

// cache has what the controller's caches have of a cluster.
type cache struct {
	client.Client // No other method is called.
	objects       map[reflect.Type][]client.Object
}

func decode(objects [][]byte) ([]client.Object, error) {
	all := make([]client.Object, len(objects))
	for i := range objects {
		var err error
		if all[i], err = hostile.Decode(objects[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// trimmed returns the caches with objects.
func trimmed(all []client.Object) (*cache, error) {
	c, trim := &cache{objects: map[reflect.Type][]client.Object{}}, gather.Trim()
	for _, o := range all {
		if _, err := trim(o); err != nil {
			return nil, err
		}
		c.objects[reflect.TypeOf(o).Elem()] = append(c.objects[reflect.TypeOf(o).Elem()], o)
	}
	return c, nil
}

func (c *cache) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	var all []kruntime.Object
	_, loose := list.(*unstructured.UnstructuredList)
	for _, o := range c.objects[reflect.ValueOf(list).Elem().FieldByName("Items").Type().Elem()] {
		if !loose || o.GetObjectKind().GroupVersionKind().Kind+"List" == list.GetObjectKind().GroupVersionKind().Kind && o.GetObjectKind().GroupVersionKind().Group == list.GetObjectKind().GroupVersionKind().Group {
			all = append(all, o)
		}
	}
	return meta.SetList(list, all)
}

func (c *cache) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	for _, is := range c.objects[reflect.TypeOf(o).Elem()] {
		if client.ObjectKeyFromObject(is) == key {
			reflect.ValueOf(o).Elem().Set(reflect.ValueOf(is).Elem())
			return nil
		}
	}
	return (&server{cluster: &facts.Cluster{}}).Get(ctx, key, o, options...) // It has the node classes of the cloud.
}

// cost is what a round takes: CPU time, which other processes of a busy machine do not affect, and memory.
type cost struct {
	// decode and trim are for reading the objects once, answer is for a question of the tenant, and round is for everything else.
	decode, trim, answer, round time.Duration
	// peak is the most memory during the round, and kept that of the caches.
	peak, kept int64
}

func (c cost) String() string {
	const unit = time.Millisecond
	return fmt.Sprintf("%s after %s of decoding and %s of trimming, an answer to the tenant %s, %d MiB at most and %d MiB in the caches",
		c.round.Round(unit), c.decode.Round(unit), c.trim.Round(unit), c.answer.Round(unit), c.peak>>20, c.kept>>20)
}

// endless is how much CPU time a round may take until it counts as one that never ends.
const endless = 20 * time.Second

var errEndless = errors.New("a round does not end")

// observe makes all decisions about the encoded objects of a tenant among others, and answers a question about one of the tenant's pods. It returns what that costs.
func observe(ctx context.Context, objects [][]byte, own client.ObjectKey) (places map[string]place, c cost, err error) {
	before, began := heapAfterGC(), used()
	all, err := decode(objects)
	if err != nil {
		return nil, c, err
	}
	c.decode = used() - began
	places, kept, err := watch(ctx, all, own, before)
	kept.decode = c.decode
	runtime.KeepAlive(objects)
	return places, kept, err
}

// watch is observe for objects that are not encoded. before is how much memory was used without them.
func watch(ctx context.Context, all []client.Object, own client.ObjectKey, before int64) (places map[string]place, c cost, err error) {
	all = append(all, hostile.Stage()...)
	var api *cache
	if c.trim, _, err = gauge(func() (err error) { api, err = trimmed(all); return err }); err != nil {
		return nil, c, err
	}
	all = nil
	c.kept = heapAfterGC() - before
	var explained func(pod client.ObjectKey) error
	c.round, c.peak, err = gauge(func() (err error) { places, explained, err = everything(ctx, api); return err })
	c.peak += c.kept
	if err == nil && own.Name != "" {
		c.answer, _, err = gauge(func() error { return explained(own) })
	}
	runtime.KeepAlive(api)
	return places, c, err
}

// gauge returns the CPU time and the most memory that a function takes. It returns an error if the function panics or does not end.
func gauge(f func() error) (took time.Duration, peak int64, err error) {
	before, began, done := heapAfterGC(), used(), make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Errorf("panic: %v\n%s", r, stacks(false))
			}
		}()
		err := f()
		done <- err
	}()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			return used() - began, peak, err
		case <-ticker.C:
			peak = max(peak, heap()-before)
			if used()-began > endless {
				return 0, peak, fmt.Errorf("%w after %s of CPU time:\n%s", errEndless, endless, stacks(true))
			}
		}
	}
}

// stacks returns the stack of this goroutine, or that of the one that gauge started.
func stacks(all bool) string {
	buf := make([]byte, 1<<20)
	text := string(buf[:runtime.Stack(buf, all)])
	for stack := range strings.SplitSeq(text, "\n\n") {
		if strings.Contains(stack, "hostile_test.gauge.func") {
			text = stack
		}
	}
	return fmt.Sprintf("%.4000s", text)
}

// heap returns how many bytes objects take, with those that are not collected yet.
func heap() int64 {
	sample := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	runtimemetrics.Read(sample)
	return int64(sample[0].Value.Uint64()) //nolint:gosec // It fits.
}

func heapAfterGC() int64 {
	runtime.GC()
	return heap()
}

// used returns the CPU time of the process.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
