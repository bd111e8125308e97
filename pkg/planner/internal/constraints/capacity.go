package constraints

import "karve.sh/karve/pkg/planner"

// maxCount limits the numbers of pods in a snapshot, so that no sum of them overflows.
const maxCount = 1 << 40

// offeredTimes returns an upper bound on the number of pods of a class that a machine of an offering holds.
func offeredTimes(s planner.Snapshot, c planner.Class, offering int) int64 {
	o := s.Offerings[offering]
	return times(s, c, o.Free, o.GPUs, o.Quotas)
}

// TimesOnNode returns an upper bound on the number of pods of a class that fit on a node.
func TimesOnNode(s planner.Snapshot, c planner.Class, n planner.Node) int64 {
	return times(s, c, n.Free, n.GPUs, n.Quotas)
}

// times returns how many pods of a class fit into what is free if they are alone. It is [Unlimited] if they request nothing.
func times(s planner.Snapshot, c planner.Class, free planner.Resources, gpus []planner.GPU, quotas []planner.Amount) int64 {
	n := planner.Unlimited
	fit := func(has, asks int64) {
		switch {
		case has < 0 || asks < 0:
			n = 0
		case asks > 0:
			n = min(n, has/asks)
		}
	}
	r := c.Requests
	fit(free.MilliCPU, r.MilliCPU)
	fit(free.MemoryBytes, r.MemoryBytes)
	fit(free.EphemeralBytes, r.EphemeralBytes)
	fit(free.Pods, r.Pods)
	fit(free.Replicas, r.Replicas)
	for _, q := range c.Quotas {
		if q.Count > 0 {
			fit(max(0, s.QuotaOf(quotas, q.Quota)), q.Count)
		}
	}
	if c.GPUMemoryBytes > 0 {
		var each int64
		for _, g := range gpus {
			k := max(0, g.MemoryBytes) / c.GPUMemoryBytes
			if r.Replicas > 0 {
				k = min(k, max(0, g.Replicas)/r.Replicas)
			}
			each = min(each+min(k, maxCount), maxCount)
		}
		n = min(n, each)
	}
	return n
}
