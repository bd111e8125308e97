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
	reports, renewals := make(chan string), make(chan []client.Object)
	defer close(reports)
	defer close(renewals)
	// Errors are ignored, for instance while the API server is down: the next heartbeat follows.
	for range 4 {
		go func() {
			for node := range reports {
				_ = f.report(ctx, node)
			}
		}()
	}
	go func() {
		for leases := range renewals {
			_ = f.w.batches(ctx, etcd.replace, leases, batchSize)
		}
	}()
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		renew, report := f.due(time.Now())
		if len(renew) > 0 {
			select {
			case renewals <- renew:
			case <-ctx.Done():
				return
			}
		}
		for _, node := range report {
			select {
			case reports <- node:
			case <-ctx.Done():
				return
			}
		}
	}
}

// due returns the Leases to renew and the nodes that report their status.
func (f *fleet) due(now time.Time) (renew []client.Object, report []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for node, k := range f.nodes {
		if !now.Before(k.renew) {
			f.late.Store(max(int64(now.Sub(k.renew)), f.late.Load()))
			k.renew = now.Add(leaseEvery)
			l := k.lease.DeepCopy()
			l.Spec.RenewTime = new(metav1.NewMicroTime(now))
			renew = append(renew, l)
		}
		if !now.Before(k.state) {
			k.state = now.Add(statusEvery)
			report = append(report, node)
		}
	}
	return renew, report
}

func (f *fleet) report(ctx context.Context, node string) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": nodeConditions(time.Now())}})
	if err != nil {
		return err
	}
	return f.w.api.Status().Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.MergePatchType, patch))
}
