package scale

import (
	"context"
	"errors"
	"fmt"
	"time"

	smithytime "github.com/aws/smithy-go/time"

	"karve.sh/karve/test/harness/karve"
)

// Cost is the number of bytes that one object of a kind adds to the controller's live heap.
type Cost struct {
	Of    string
	Bytes float64
}

// Costs measures the live heap per object of each kind. It compares clusters that differ in one kind of object.
func Costs(ctx context.Context, log func(string, ...any)) ([]Cost, error) {
	const n = 2_000
	nothing, nodes, pods := Size{Nodes: 10, Pods: 10}, Size{Nodes: n, Pods: n}, Size{Nodes: n, Pods: 11 * n}
	machines := Size{Nodes: n, Pods: n, Machines: n / 2, Still: true}
	replicas := Size{Nodes: n, Pods: n + n/2*replicasPerNode, Machines: n / 2, Replicas: n / 2 * replicasPerNode, Still: true}
	heap := map[Size]float64{}
	for _, size := range []Size{nothing, nodes, pods, machines, replicas} {
		bytes, err := liveHeap(ctx, size, log)
		if err != nil {
			return nil, fmt.Errorf("measuring the heap at %+v: %w", size, err)
		}
		log("%+v: %.1f MiB", size, bytes/(1<<20))
		heap[size] = bytes
	}
	return []Cost{
		{"nothing", heap[nothing]},
		{"a node with the pod of a DaemonSet", (heap[nodes] - heap[nothing]) / float64(nodes.Nodes-nothing.Nodes)},
		{"a pod without a GPU", (heap[pods] - heap[nodes]) / float64(pods.Pods-nodes.Pods)},
		{"a NodeClaim, and what its node has more than another", (heap[machines] - heap[nodes]) / float64(machines.Machines)},
		{"a pod that holds a replica", (heap[replicas] - heap[machines]) / float64(replicas.Replicas)},
	}, nil
}

// liveHeap returns the live heap of the controller after it has settled.
func liveHeap(ctx context.Context, size Size, log func(string, ...any)) (bytes float64, err error) {
	// A low GOGC makes collections frequent, so that the last one is recent. The memory limit is higher than the controller needs.
	p := Karve(karve.Options{Values: []string{"controller.env[0].name=GOGC", "controller.env[0].value=10", "controller.resources.limits.memory=8Gi"}})
	w, err := NewWorld(ctx, size, p.Class, log)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	running, err := p.launch(ctx, w)
	if err != nil {
		return 0, err
	}
	if err := smithytime.SleepWithContext(ctx, Full.Settle); err != nil {
		return 0, err
	}
	// Only allocations trigger collections. Each read of the metrics allocates memory.
	var s samples
	for range 100 {
		if s, err = scrape(ctx, running.metricsURL); err != nil {
			return 0, err
		}
		if err := smithytime.SleepWithContext(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
	}
	live, ok := s.sum("go_gc_heap_live_bytes")
	if !ok {
		return 0, errors.New("the controller does not tell its heap")
	}
	return live, nil
}
