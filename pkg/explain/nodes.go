package explain

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// lack is a resource of which a node has too little for a pod.
type lack struct {
	why   string
	order int
	// left is the amount that the node has left, in the unit that text formats. It is 0 for a lack without an amount.
	left int64
	text func(int64) string
}

// ofGPUs reports whether the lack is of a GPU resource.
func (l lack) ofGPUs() bool { return l.order >= 1 && l.order <= 3 }

// countNodes counts the nodes of a plan by what they lack for another pod of a class.
func countNodes(now *attempt, class int) []NodeCount {
	s := &now.view.Snapshot
	c := &s.Classes[class]
	used := map[int]planner.Placement{}
	for _, p := range now.plan.Placements {
		used[p.Node] = p
	}
	cordoned := map[string]bool{}
	for i := range now.view.Machines {
		if m := &now.view.Machines[i]; m.GPUsCordoned() {
			cordoned[m.Node.Name] = true
		}
	}
	counts := map[string]*NodeCount{}
	best := map[string]int64{}
	orders := map[string]int{}
	for v := range s.Nodes {
		var found lack
		_, may := slices.BinarySearch(c.Nodes, v)
		switch largest, shallow := now.view.Shallow(class, v); {
		case shallow:
			found = lack{why: "too little GPU memory left", order: 3, left: largest, text: func(n int64) string { return bytesText(n) + " of GPU memory on each GPU" }}
		case may:
			found = lackOf(s, c, v, used[v])
		default:
			found = lack{why: notAdmitted(&now.view, v, now.view.Pods[c.Pods[0]]), order: 8}
		}
		if found.why == "" {
			found = lack{why: refusedByCheck(now, class, v), order: 9}
		}
		if found.ofGPUs() && cordoned[s.Nodes[v].Name] {
			found.why += " apart from cordoned GPUs"
		}
		n := counts[found.why]
		if n == nil {
			n = &NodeCount{Why: found.why}
			counts[found.why], orders[found.why], best[found.why] = n, found.order, -1
		}
		n.Count++
		if found.text != nil && found.left > best[found.why] {
			best[found.why], n.Example, n.Left = found.left, s.Nodes[v].Name, found.text(found.left)
		}
	}
	all := make([]NodeCount, 0, len(counts))
	for _, why := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, *counts[why])
	}
	slices.SortStableFunc(all, func(a, b NodeCount) int { return cmp.Compare(orders[a.Why], orders[b.Why]) })
	return all
}

// lackOf returns what a node that admits a class lacks for one more of its pods, in addition to those that the plan places there. It has no text if the node
// has enough of everything.
func lackOf(s *planner.Snapshot, c *planner.Class, node int, used planner.Placement) lack {
	n := &s.Nodes[node]
	free, gpus := n.Free, slices.Clone(n.GPUs)
	for i, pod := range used.Pods {
		other := classOf(s, pod)
		if other < 0 {
			continue
		}
		r := s.Classes[other].Requests
		free = planner.Resources{
			MilliCPU: free.MilliCPU - r.MilliCPU, MemoryBytes: free.MemoryBytes - r.MemoryBytes, EphemeralBytes: free.EphemeralBytes - r.EphemeralBytes,
			Pods: free.Pods - r.Pods, Replicas: free.Replicas - r.Replicas,
		}
		if used.GPUs != nil && used.GPUs[i] >= 0 {
			gpus[used.GPUs[i]].MemoryBytes -= s.Classes[other].GPUMemoryBytes
			gpus[used.GPUs[i]].Replicas -= r.Replicas
		}
	}
	r := c.Requests
	switch {
	case free.Replicas < r.Replicas && free.Replicas <= 0:
		return lack{why: "full", order: 1}
	case free.Replicas < r.Replicas:
		return lack{why: "too few replicas left", order: 2, left: free.Replicas, text: func(n int64) string { return words.Count(n, "replica") }}
	}
	if c.GPUMemoryBytes > 0 {
		largest := int64(0)
		fits := false
		for _, g := range gpus {
			if g.Replicas >= r.Replicas {
				largest, fits = max(largest, g.MemoryBytes), fits || g.MemoryBytes >= c.GPUMemoryBytes
			}
		}
		if !fits {
			return lack{why: "too little GPU memory left", order: 3, left: largest, text: func(n int64) string { return bytesText(n) + " of GPU memory" }}
		}
	}
	switch {
	case free.MilliCPU < r.MilliCPU:
		return lack{why: "too little CPU left", order: 4, left: free.MilliCPU, text: func(n int64) string { return cpusText(n) + " CPU" }}
	case free.MemoryBytes < r.MemoryBytes:
		return lack{why: "too little memory left", order: 5, left: free.MemoryBytes, text: func(n int64) string { return bytesText(n) + " of memory" }}
	case free.EphemeralBytes < r.EphemeralBytes:
		return lack{why: "too little ephemeral storage left", order: 6, left: free.EphemeralBytes, text: bytesText}
	case free.Pods < r.Pods:
		return lack{why: "no pod slot left", order: 7}
	}
	return lack{}
}

// notAdmitted returns why a node does not admit a pod, whatever room it has.
func notAdmitted(view *snapshot.View, node int, pod *corev1.Pod) string {
	err := view.AdmitsOn(node, pod)
	var other snapshot.OtherResourceError
	var taint records.UntoleratedTaintError
	var label records.OtherLabelError
	var topology snapshot.NoTopologyError
	switch {
	case err == nil: // A class does not list the nodes that pods which run or DaemonSets exclude.
		return "kept from it by podAntiAffinity, its own or that of pods that run or of DaemonSets"
	case errors.As(err, &other):
		return "without " + string(other.Wants)
	case errors.As(err, &taint):
		return fmt.Sprintf("with the taint %s, which it does not tolerate", taint.Taint.Key)
	case errors.As(err, &label):
		return fmt.Sprintf("without the label %s=%s", label.Key, label.Want)
	case errors.As(err, &topology):
		return fmt.Sprintf("without the label %s, which a rule about other pods needs", topology.Key)
	case errors.Is(err, records.ErrNodeAffinity):
		return "outside its required node affinity"
	case errors.Is(err, snapshot.ErrVolumeElsewhere):
		return "where a volume of it cannot be had"
	case errors.Is(err, snapshot.ErrReplicaMemory):
		return "whose replicas have too little GPU memory"
	case errors.Is(err, snapshot.ErrClaim):
		return "without a GPU for its ResourceClaim"
	}
	return "unsuitable: " + err.Error()
}

// refusedByCheck returns why the planner does not place a pod of a class on a node that has enough of everything.
func refusedByCheck(now *attempt, class, node int) string {
	s := now.view.Snapshot
	for _, q := range s.Classes[class].Quotas {
		if left := quotaLeft(&s, node, q.Quota); left != planner.Unlimited && q.Count > left {
			return "without " + s.Quotas[q.Quota].Name + " left"
		}
	}
	rules := s.Rules
	if fitsAlone(s, class, node) == nil {
		return "with room that other waiting pods need"
	}
	for i := range rules {
		if !slices.Contains(rules[i].Classes, class) {
			continue
		}
		s.Rules = slices.Clone(rules)
		for j := range s.Rules {
			if j != i {
				s.Rules[j].Classes = slices.DeleteFunc(slices.Clone(s.Rules[j].Classes), func(c int) bool { return c == class })
			}
		}
		if fitsAlone(s, class, node) != nil {
			return "excluded by " + rules[i].Name
		}
	}
	return "excluded by its rules about other pods together"
}

func quotaLeft(s *planner.Snapshot, node, quota int) int64 {
	for _, a := range s.Nodes[node].Quotas {
		if a.Quota == quota {
			return a.Count
		}
	}
	return s.Quotas[quota].Each
}

// fitsAlone checks the plan that places one pod of a class on a node, and nothing else.
func fitsAlone(s planner.Snapshot, class, node int) error {
	s.Classes = slices.Clone(s.Classes)
	pod := s.Classes[class].Pods[0]
	for i := range s.Classes {
		s.Classes[i].Pods = nil
	}
	s.Classes[class].Pods = []string{pod}
	only := planner.Plan{Placements: []planner.Placement{{Node: node, Pods: []string{pod}}}}
	if memory := s.Classes[class].GPUMemoryBytes; memory > 0 {
		for gpu, g := range s.Nodes[node].GPUs {
			if g.MemoryBytes >= memory && g.Replicas >= s.Classes[class].Requests.Replicas {
				only.Placements[0].GPUs = []int{gpu}
				break
			}
		}
	}
	return check.Plan(s, only)
}
