package scale

import (
	"context"
	"encoding/json"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// leaseEvery is the interval at which a kubelet renews the Lease of its node. statusEvery is the interval at which it reports an unchanged node status.
	// Both are the kubelet's defaults.
	leaseEvery  = 10 * time.Second
	statusEvery = 5 * time.Minute
)

// fleet plays the kubelets: it renews the Leases of the nodes and reports their status.
type fleet struct {
	w *World

	mu    sync.Mutex
	nodes map[string]*kubelet
	// late is the longest delay of a Lease renewal since the last reset, in nanoseconds.
	late atomic.Int64
}

type kubelet struct {
	lease        *coordinationv1.Lease
	renew, state time.Time // next Lease renewal and next status report
}

func newFleet(w *World) *fleet { return &fleet{w: w, nodes: map[string]*kubelet{}} }

// join adds a node by its Lease, which must exist. A hash of the name sets the time of the first heartbeat, so that the heartbeats of many nodes are spread.
func (f *fleet) join(l *coordinationv1.Lease) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(l.Name))
	spread := func(d time.Duration) time.Time { return time.Now().Add(time.Duration(h.Sum32()%1000) * d / 1000) }
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[l.Name] = &kubelet{lease: l, renew: spread(leaseEvery), state: spread(statusEvery)}
}

func (f *fleet) leave(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.nodes, node)
}

// run renews Leases and reports statuses until the context ends.
func (f *fleet) run(ctx context.Context) {
	type due struct {
		node  string
		k     *kubelet
		state bool
	}
	work := make(chan due)
	defer close(work)
	for range 8 {
		go func() {
			for d := range work {
				// Ignore errors, for instance while the API server is down: the next heartbeat follows.
				if d.state {
					_ = f.report(ctx, d.node)
					continue
				}
				f.renew(ctx, d.node, d.k)
			}
		}()
	}
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		var all []due
		f.mu.Lock()
		for node, k := range f.nodes {
			if !now.Before(k.renew) {
				f.late.Store(max(int64(now.Sub(k.renew)), f.late.Load()))
				k.renew = now.Add(leaseEvery)
				all = append(all, due{node, k, false})
			}
			if !now.Before(k.state) {
				k.state = now.Add(statusEvery)
				all = append(all, due{node, k, true})
			}
		}
		f.mu.Unlock()
		for _, d := range all {
			select {
			case work <- d:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (f *fleet) renew(ctx context.Context, node string, k *kubelet) {
	now := metav1.NewMicroTime(time.Now())
	l := k.lease.DeepCopy()
	l.Spec.RenewTime = &now
	if err := f.w.api.Update(ctx, l); err != nil {
		l = &coordinationv1.Lease{}
		if f.w.api.Get(ctx, client.ObjectKey{Namespace: leases, Name: node}, l) != nil {
			return
		}
	}
	k.lease = l
}

func (f *fleet) report(ctx context.Context, node string) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": nodeConditions(time.Now())}})
	if err != nil {
		return err
	}
	return f.w.api.Status().Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.MergePatchType, patch))
}
