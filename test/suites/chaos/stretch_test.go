package chaos

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/records"
)

// growth is how many pods are added to the first app of each pool once the cluster has settled. The machines do not have room for all of them.
const growth = 14

// grows adds pods to an app of each pool while there are no faults and no machine is removed. It compares the launched machines with a plan for these pods: no
// new machine may stay empty, and if all are launched at once, they may cost no more than the plan.
func (w *world) grows(t *testing.T, machines cloud.Catalog, atOnce bool) {
	t.Helper()
	ctx := t.Context()
	for _, p := range pools {
		class := &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
		if err := w.patch(ctx, class, fmt.Sprintf(`{"spec":{"consolidation":{"idleAfter":%q}}}`, v1alpha1.IdleNever)); err != nil {
			t.Fatal(err)
		}
	}
	// While launches are paused, as after an outage, the planner has no offerings.
	w.settles(t, "as to what can be launched", calm, 0, func(ctx context.Context) ([]problem, error) { return w.unpriced(ctx, machines), nil })
	c, err := w.gather(ctx, machines)
	if err != nil {
		t.Fatal(err)
	}
	before := sets.New[types.UID]()
	for i := range c.NodeClaims {
		before.Insert(c.NodeClaims[i].UID)
	}
	more := map[string]int32{}
	for _, p := range pools {
		a := apps[slices.IndexFunc(apps, func(a app) bool { return a.pool == p.name })]
		one := slices.IndexFunc(c.Pods, func(pod corev1.Pod) bool { return pod.Labels["app"] == a.name && pod.Namespace == namespace })
		for i := range growth {
			c.Pods = append(c.Pods, waiting(&c.Pods[one], fmt.Sprintf("%s-more-%d", a.name, i)))
		}
		for i := range c.Pods {
			if c.Pods[i].Labels["app"] == a.name && c.Pods[i].Namespace == namespace {
				more[a.name]++
			}
		}
	}
	for i := range c.NodePools {
		closeBreaker(&c.NodePools[i])
	}
	s := snapshot.Build(c).Snapshot
	plan := solve.Plan(s)
	if len(plan.Unplaced) > 0 {
		t.Fatalf("a plan for more pods has no place for %v", plan.Unplaced[0])
	}
	began := time.Now()
	for _, a := range apps {
		if n := more[a.name]; n > 0 {
			if err := w.patch(ctx, a.owner(), fmt.Sprintf(`{"spec":{"replicas":%d}}`, n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.settles(t, "after more pods were asked for", calm, time.Second, func(ctx context.Context) ([]problem, error) {
		found, err := w.problems(ctx)
		if err != nil {
			return nil, err
		}
		for _, a := range apps {
			found = append(found, w.fewer(ctx, a, more[a.name])...)
		}
		return append(found, w.openBreakers(ctx)...), nil
	})
	if c, err = w.gather(ctx, machines); err != nil {
		t.Fatal(err)
	}
	var price planner.MicroUSD
	var launched, planned []string
	for i := range c.NodeClaims {
		claim := &c.NodeClaims[i]
		if before.Has(claim.UID) {
			continue
		}
		costs, err := priceOf(claim, c)
		if err != nil {
			t.Fatal(err)
		}
		price += costs
		instanceType, zone, capacityType := records.ShapeOf(claim)
		launched = append(launched, machine(instanceType, zone, capacityType, costs))
	}
	for _, l := range plan.Launches {
		o := s.Offerings[l.Offering]
		planned = append(planned, machine(o.InstanceType, o.Zone, o.CapacityType, o.Price))
	}
	slices.Sort(launched)
	slices.Sort(planned)
	w.logf("%d more pods run after %s; launched were %q, planned %q", 2*growth, time.Since(began).Round(time.Second), launched, planned)
	if atOnce && price*100 > plan.Price*(100+dear) {
		t.Errorf("for %d more pods machines of %d micro-USD an hour were launched, planned are %d:\nlaunched %q\nplanned  %q", 2*growth, price, plan.Price, launched, planned)
	}
}

// waiting returns a pending copy of a running pod of an app.
func waiting(as *corev1.Pod, name string) corev1.Pod {
	pod := *as.DeepCopy()
	pod.Name, pod.UID, pod.Spec.NodeName = name, types.UID(name), ""
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
	}}
	return pod
}

// fewer returns an error if an app does not have n ready pods yet.
func (w *world) fewer(ctx context.Context, a app, n int32) []problem {
	if n == 0 {
		return nil
	}
	var pods corev1.PodList
	if err := w.seen.List(ctx, &pods); err != nil {
		return []problem{{"App", a.name, err.Error()}}
	}
	var ready int32
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Namespace == namespace && p.Labels["app"] == a.name && healthy(p) {
			ready++
		}
	}
	if ready < n {
		return []problem{{"App", a.name, fmt.Sprintf("has %d healthy pods, wants %d", ready, n)}}
	}
	return nil
}

// openBreakers returns the pools whose breaker has not closed although their new machines work.
func (w *world) openBreakers(ctx context.Context) []problem {
	var all []problem
	for _, p := range pools {
		np := &karpv1.NodePool{}
		if err := w.api.Get(ctx, types.NamespacedName{Name: p.name}, np); err != nil {
			return []problem{{"NodePool", p.name, err.Error()}}
		}
		if c := np.StatusConditions().Get(v1alpha1.ConditionReplicasHealthy); c != nil && !c.IsTrue() {
			all = append(all, problem{"NodePool", p.name, fmt.Sprintf("says that %s is %s: %s", c.Type, c.Status, c.Message)})
		}
	}
	return all
}
