package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/test/harness/cluster"
)

// claim is what was seen of a NodeClaim, with times of this computer's clock. A zero time means that the event was not seen.
type claim struct {
	name, pool, instanceType, capacityType string
	price                                  int64
	ours                                   bool
	first, deleting, gone                  time.Time
}

func (c *claim) String() string {
	s := fmt.Sprintf("%s: %s %s, %d micro-USD, seen %s", c.name, c.instanceType, c.capacityType, c.price, c.first.Format(clock))
	if !c.deleting.IsZero() {
		s += ", deleting " + c.deleting.Format(clock)
	}
	if !c.gone.IsZero() {
		s += ", gone " + c.gone.Format(clock)
	}
	return s
}

const clock = "15:04:05.000"

// lifetime records when a pod existed and was bound.
type lifetime struct {
	name               string
	first, bound, gone time.Time
	// homeless says that the scheduler once reported the pod unschedulable.
	homeless bool
	node     string
}

// history records which objects came and went, so that tests can check that something never happened.
type history struct {
	mu     sync.Mutex
	claims map[types.UID]*claim
	// pods are by namespace.
	pods map[string]map[types.UID]*lifetime
	// leaving are the nodes that Karve has ever tainted in order to remove them.
	leaving map[string]time.Time
	// opened is when nodes of Karve lost their startup taint.
	opened map[string]time.Time
	// early are the nodes that admitted pods before they had the promised replicas, by pool.
	early map[string][]string
}

func newHistory() *history {
	return &history{
		claims: map[types.UID]*claim{}, pods: map[string]map[types.UID]*lifetime{}, leaving: map[string]time.Time{}, opened: map[string]time.Time{}, early: map[string][]string{},
	}
}

func (h *history) watch(ctx context.Context, c cache.Cache) error {
	for object, note := range map[client.Object]func(any, bool){&karpv1.NodeClaim{}: h.claim, &corev1.Pod{}: h.pod, &corev1.Node{}: h.node} {
		informer, err := c.GetInformer(ctx, object)
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		_, err = informer.AddEventHandler(cluster.Notes(note, func(o any) { note(o, true) }))
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
	}
	return nil
}

func (h *history) claim(o any, gone bool) {
	nc, ok := o.(*karpv1.NodeClaim)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.claims[nc.UID]
	if c == nil {
		c = &claim{
			name: nc.Name, pool: nc.Labels[karpv1.NodePoolLabelKey], ours: facts.IsOurClaim(nc), first: time.Now(),
			price: facts.PromiseOf(nc.Annotations).MicroUSDPerHour,
		}
		c.instanceType, _, c.capacityType = records.ShapeOf(nc)
		h.claims[nc.UID] = c
	}
	if c.deleting.IsZero() && (gone || !nc.DeletionTimestamp.IsZero()) {
		c.deleting = time.Now()
	}
	if gone {
		c.gone = time.Now()
	}
}

func (h *history) pod(o any, gone bool) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pods[pod.Namespace] == nil {
		h.pods[pod.Namespace] = map[types.UID]*lifetime{}
	}
	l := h.pods[pod.Namespace][pod.UID]
	if l == nil {
		l = &lifetime{name: pod.Name, first: time.Now()}
		h.pods[pod.Namespace][pod.UID] = l
	}
	if l.bound.IsZero() && pod.Spec.NodeName != "" {
		l.bound, l.node = time.Now(), pod.Spec.NodeName
	}
	l.homeless = l.homeless || slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
	})
	if gone {
		l.gone = time.Now()
	}
}

func (h *history) node(o any, gone bool) {
	node, ok := o.(*corev1.Node)
	if !ok || gone {
		return
	}
	promise := facts.PromiseOf(node.Annotations)
	if promise.Resource == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if tainted(node, v1alpha1.DisruptingTaintKey) && h.leaving[node.Name].IsZero() {
		h.leaving[node.Name] = time.Now()
	}
	open := node.Labels[karpv1.NodeRegisteredLabelKey] == "true" && !tainted(node, v1alpha1.ReplicasNotReadyTaintKey)
	if open && h.opened[node.Name].IsZero() {
		h.opened[node.Name] = time.Now()
	}
	if nodecontract.DriverOf(promise.Backend) != "" {
		return // Its replicas are in a ResourceSlice, without which the scheduler gives it no pods.
	}
	exposes := facts.ResourcesOf(node.Status.Allocatable, promise.Resource).Replicas
	if open && exposes < promise.Replicas() {
		pool := node.Labels[karpv1.NodePoolLabelKey]
		h.early[pool] = append(h.early[pool], fmt.Sprintf("%s with %d of %d replicas", node.Name, exposes, promise.Replicas()))
	}
}

// claimsOf returns all claims that a pool ever had, the oldest first.
func (h *history) claimsOf(pool string) []claim {
	return h.claimsThat(func(c *claim) bool { return c.pool == pool })
}

func (h *history) claimsThat(are func(*claim) bool) []claim {
	h.mu.Lock()
	defer h.mu.Unlock()
	var some []claim
	for _, c := range h.claims {
		if are(c) {
			some = append(some, *c)
		}
	}
	slices.SortFunc(some, func(a, b claim) int {
		if c := a.first.Compare(b.first); c != 0 {
			return c
		}
		return strings.Compare(a.name, b.name)
	})
	return some
}

// alive returns the claims that are not being deleted.
func alive(claims []claim) []claim {
	return slices.DeleteFunc(slices.Clone(claims), func(c claim) bool { return !c.deleting.IsZero() })
}

func total(claims []claim) int64 {
	var sum int64
	for _, c := range claims {
		sum += c.price
	}
	return sum
}

// podsOf returns when the last pod of a namespace came, and when the first one went.
func (h *history) podsOf(namespace string) (last, firstGone time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.pods[namespace] {
		if l.first.After(last) {
			last = l.first
		}
		if !l.gone.IsZero() && (firstGone.IsZero() || l.gone.Before(firstGone)) {
			firstGone = l.gone
		}
	}
	return last, firstGone
}

// waits returns how many pods of a namespace came after a time, how long they were pending at most, and how many the scheduler at first reported unschedulable. In
// DRA mode, the scheduler counts shares twice for a moment (docs/dra.md), so that only those count that then waited for a machine.
func (h *history) waits(namespace string, after time.Time) (came int, longest time.Duration, homeless int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.pods[namespace] {
		if !l.first.After(after) {
			continue
		}
		came++
		longest = max(longest, l.bound.Sub(l.first))
		if l.homeless && (!draMode || h.opened[l.node].After(l.first)) {
			homeless++
		}
	}
	return came, longest, homeless
}

// bound returns when each pod of a namespace was bound, by namespace and name.
func (h *history) bound(namespace string) map[string]time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[string]time.Time{}
	for _, l := range h.pods[namespace] {
		all[namespace+"/"+l.name] = l.bound
	}
	return all
}

// most returns how many of the claims were being deleted at once, at most.
func most(claims []claim) int {
	n := 0
	for _, c := range claims {
		at := 0
		for _, other := range claims {
			if !c.deleting.IsZero() && !other.deleting.IsZero() && !other.deleting.After(c.deleting) && (other.gone.IsZero() || other.gone.After(c.deleting)) {
				at++
			}
		}
		n = max(n, at)
	}
	return n
}

func (h *history) openedEarly(pool string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.early[pool])
}

// wasLeaving reports whether Karve ever tainted the node in order to remove it.
func (h *history) wasLeaving(node string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.leaving[node].IsZero()
}

func tainted(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}
