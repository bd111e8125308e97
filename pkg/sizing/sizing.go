// Package sizing computes how much memory and CPU time the controller needs for a cluster, and when it is about to run out of memory. docs/sizing.md
// has its table. The chart's defaults are the row for 1,000 nodes.
package sizing

import "fmt"

// Objects are the numbers of objects of the kinds with many objects. All of them are in the caches of each replica.
type Objects struct {
	// Pods includes those without GPUs, Nodes those of other node pools, and NodeClaims those of Karpenter.
	Pods, Nodes, NodeClaims int
}

// Costs of one object on the live heap, in bytes. Together they are half of the slope of the resident memory from 100 to 5,000 nodes, because the Go
// runtime lets the heap double. bench-scale -costs measures each of them.
const (
	fixed        = 24 << 20
	podBytes     = 2 << 10
	nodeBytes    = 12 << 10
	claimedBytes = 16 << 10
)

// Live returns the bytes that the objects occupy on the heap while nothing happens.
func Live(o Objects) int64 {
	return fixed + podBytes*int64(o.Pods) + nodeBytes*int64(o.Nodes) + claimedBytes*int64(o.NodeClaims)
}

// Line is a line of the table: the needs of the controller's container for clusters with up to these numbers of objects.
type Line struct {
	UpTo Objects
	// MilliCPU is the CPU request in thousandths of a core. There is no CPU limit, because a decision that waits for its core delays all pods.
	MilliCPU int64
	// RequestMiB and LimitMiB are the memory request and limit.
	RequestMiB, LimitMiB int64
}

// Lines is the table, from the smallest cluster to the largest.
var Lines = []Line{
	{Objects{Pods: 1_000, Nodes: 100, NodeClaims: 50}, 100, 128, 256},
	{Objects{Pods: 10_000, Nodes: 1_000, NodeClaims: 500}, 200, 256, 512},
	{Objects{Pods: 20_000, Nodes: 2_000, NodeClaims: 1_000}, 300, 384, 512},
	{Objects{Pods: 50_000, Nodes: 5_000, NodeClaims: 2_500}, 500, 512, 768},
	{Objects{Pods: 100_000, Nodes: 10_000, NodeClaims: 5_000}, 1000, 1024, 1536},
}

// Default is the line of the chart's defaults.
var Default = Lines[1]

// Warning returns a warning that the memory is short, and what to do. The memory in use and the limit are in bytes.
func Warning(used, limit int64, held Objects) string {
	const mib = 1 << 20
	advice := fmt.Sprintf("set controller.resources.limits.memory to %dMi; docs/sizing.md says how much memory clusters need", 3*limit/2/mib)
	for _, l := range Lines {
		if Live(held) <= Live(l.UpTo) && l.LimitMiB*mib > limit {
			advice = fmt.Sprintf("set controller.resources.limits.memory to %dMi, as in the line for %d pods and %d nodes in docs/sizing.md", l.LimitMiB, l.UpTo.Pods, l.UpTo.Nodes)
			break
		}
	}
	return fmt.Sprintf("The controller has used more than %d %% of its memory limit for %d minutes (%d MiB of %d MiB) with %d pods, %d nodes and %d NodeClaims: %s",
		warnPercent, int(warnAfter.Minutes()), used/mib, limit/mib, held.Pods, held.Nodes, held.NodeClaims, advice)
}
