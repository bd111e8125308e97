package main

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// claimsQuiet is how long no further NodeClaim may appear before the claims are printed, because those of one plan appear together.
	claimsQuiet = time.Second
	// aftermath is how long the demo watches the cluster for late machines once all pods run. It is longer than the second for which Karve and Karpenter
	// batch pods.
	aftermath = 3 * time.Second
)

// side is one of the two sides of the comparison.
type side struct {
	name string
	pool string
	// deployment is the name of the Deployment, and the value of the label app of its pods.
	deployment string
	create     func(context.Context) error
	began      time.Time
}

// figures are the measurements of a side.
type figures struct {
	pods     int
	claims   []claim
	microUSD int64
	// toClaims and toRunning count from the creation of the last pod to the last NodeClaim and to the last pod Running. toGone counts from scaling to
	// zero to the deletion of the last NodeClaim and Node.
	toClaims, toRunning, toGone time.Duration
}

// measure creates the side's pods and waits until all of them run. It then scales to zero and waits until all machines are gone.
func (d *demo) measure(ctx context.Context, s side) (figures, error) {
	f := figures{}
	s.began = time.Now()
	if err := s.create(ctx); err != nil {
		return f, err
	}
	deployment := &appsv1.Deployment{}
	if err := d.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: s.deployment}, deployment); err != nil {
		return f, fmt.Errorf("reading the Deployment: %w", err)
	}
	wanted := int(*deployment.Spec.Replicas)
	created, err := d.untilPending(ctx, s, wanted)
	if err != nil {
		return f, err
	}
	if err := d.untilRunning(ctx, s, wanted); err != nil {
		return f, err
	}
	now := d.watcher.all()
	if err := surprises(s, wanted, now); err != nil {
		return f, err
	}
	mine := now.of(s.pool, s.deployment)
	f.pods, f.claims = len(mine.pods), mine.claims
	if f.microUSD, err = d.prices.of(f.claims); err != nil {
		return f, err
	}
	f.toClaims = latest(mine.claims, func(c claim) time.Time { return c.seen }).Sub(created)
	f.toRunning = latest(mine.pods, func(p pod) time.Time { return p.running }).Sub(created)
	f.toGone, err = d.untilGone(ctx, s, deployment)
	return f, err
}

// untilPending waits for the pods and returns when the last of them was created.
func (d *demo) untilPending(ctx context.Context, s side, wanted int) (time.Time, error) {
	var created time.Time
	err := d.watcher.until(ctx, func(now seen) (bool, string) {
		pods := now.of(s.pool, s.deployment).pods
		created = latest(pods, func(p pod) time.Time { return p.seen })
		return len(pods) >= wanted, fmt.Sprintf("there are %d of %d pods", len(pods), wanted)
	})
	if err != nil {
		return created, err
	}
	d.printAt(created, "%d pods are pending, each asks for one %s", wanted, d.resource)
	return created, nil
}

func (d *demo) untilRunning(ctx context.Context, s side, wanted int) error {
	var claims []claim
	err := d.watcher.until(ctx, func(now seen) (bool, string) {
		mine := now.of(s.pool, s.deployment)
		claims = mine.claims
		settled := time.Since(latest(claims, func(c claim) time.Time { return c.seen })) >= claimsQuiet
		launched := count(claims, func(c claim) bool { return c.launched })
		if len(claims) == 0 {
			return false, fmt.Sprintf("%s has made no NodeClaim for NodePool %s", s.name, s.pool)
		}
		return launched == len(claims) && settled, fmt.Sprintf("%d of %d NodeClaims of NodePool %s are launched", launched, len(claims), s.pool)
	})
	if err != nil {
		return err
	}
	if err := d.printClaims(claims); err != nil {
		return err
	}
	var ready readiness
	err = d.watcher.until(ctx, func(now seen) (bool, string) {
		mine := now.of(s.pool, s.deployment)
		running := count(mine.pods, func(p pod) bool { return !p.running.IsZero() })
		if ready.look(mine, running >= wanted) {
			d.printAt(ready.since, "%s", offered(mine, string(d.resource)))
		}
		return running >= wanted, fmt.Sprintf("%d of %d pods are Running", running, wanted)
	})
	if err != nil {
		return err
	}
	d.printAt(latest(d.watcher.all().of(s.pool, s.deployment).pods, func(p pod) time.Time { return p.running }), "all %d pods are Running", wanted)
	if err := sleep(ctx, aftermath); err != nil {
		return err
	}
	if now := d.watcher.all().of(s.pool, s.deployment).claims; len(now) != len(claims) {
		return d.printClaims(now)
	}
	return nil
}

func (d *demo) printClaims(claims []claim) error {
	price, err := d.prices.of(claims)
	if err != nil {
		return err
	}
	when := latest(claims, func(c claim) time.Time { return c.seen })
	d.printAt(when, "%s: %s, %s/h", plural(len(claims), "NodeClaim"), kinds(claims), dollars(price))
	return nil
}

// readiness records since when every claim has a ready Node with replicas.
type readiness struct {
	since    time.Time
	reported bool
}

// nodesQuiet is how long Nodes must be ready before they are printed. A simulated machine starts with the resources of the NodeOverlays in its status,
// until the simulated device plugin takes over a moment later.
const nodesQuiet = time.Second

// look reports whether it is time to print the Nodes. If the pods run, it is.
func (r *readiness) look(s seen, run bool) bool {
	offering := count(s.nodes, func(n node) bool { return n.ready && n.replicas > 0 })
	if len(s.claims) == 0 || offering < len(s.claims) {
		r.since = time.Time{}
		return false
	}
	first(&r.since, true, time.Now())
	if r.reported || !run && time.Since(r.since) < nodesQuiet {
		return false
	}
	r.reported = true
	return true
}

func offered(s seen, resource string) string {
	var replicas int64
	for _, n := range s.nodes {
		replicas += n.replicas
	}
	return fmt.Sprintf("%s ready, with %d %s together", plural(len(s.nodes), "Node"), replicas, resource)
}

// untilGone scales to zero and returns how long it took until the machines were gone.
func (d *demo) untilGone(ctx context.Context, s side, deployment *appsv1.Deployment) (time.Duration, error) {
	measured := len(d.watcher.all().of(s.pool, s.deployment).claims)
	began := time.Now()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":0}}`))
	if err := d.client.Patch(ctx, deployment, patch); err != nil {
		return 0, fmt.Errorf("scaling to zero: %w", err)
	}
	d.printAt(began, "scaled to zero; idle machines may go after %s", d.idleAfter)
	var empty bool
	err := d.watcher.until(ctx, func(now seen) (bool, string) {
		left := now.of(s.pool, s.deployment).present()
		if !empty && len(left.pods) == 0 {
			empty = true
			d.print("the pods are gone")
		}
		return len(left.pods)+len(left.claims)+len(left.nodes) == 0, fmt.Sprintf("%s, %s and %s are left",
			plural(len(left.pods), "pod"), plural(len(left.claims), "NodeClaim"), plural(len(left.nodes), "Node"))
	})
	if err != nil {
		return 0, err
	}
	mine := d.watcher.all().of(s.pool, s.deployment)
	gone := latest(mine.claims, func(c claim) time.Time { return c.gone })
	if last := latest(mine.nodes, func(n node) time.Time { return n.gone }); last.After(gone) {
		gone = last
	}
	d.printAt(gone, "%s and %s are gone", plural(len(mine.claims), "NodeClaim"), plural(len(mine.nodes), "Node"))
	if len(mine.claims) != measured {
		return 0, fmt.Errorf("%s launched %d more machines while its pods went away", s.name, len(mine.claims)-measured)
	}
	return gone.Sub(began), nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
