package check

import (
	"maps"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// gpus checks the GPUs of the pods of a machine. A pod that requests device memory must be on one GPU that has the memory and all replicas of the pod.
// Other pods must have no GPU assigned.
func (c *checker) gpus(where string, pods []string, on []int, gpus []planner.GPU) {
	left := append([]planner.GPU(nil), gpus...)
	if on != nil && len(on) != len(pods) {
		c.bad("%s: tells the GPUs of %d pods, has %d", where, len(on), len(pods))
		return
	}
	for i, pod := range pods {
		at, ok := c.class[pod]
		if !ok {
			continue
		}
		class := c.snapshot.Classes[at]
		switch {
		case class.GPUMemoryBytes == 0 && on != nil && on[i] != -1:
			c.bad("%s: pod %s states no device memory and is on GPU %d", where, pod, on[i])
		case class.GPUMemoryBytes == 0:
		case on == nil || on[i] < 0 || on[i] >= len(left):
			c.bad("%s: pod %s states device memory and is on no GPU", where, pod)
		case left[on[i]].MemoryBytes < class.GPUMemoryBytes:
			c.bad("%s: pod %s asks for %d of device memory, %d are left on GPU %d", where, pod, class.GPUMemoryBytes, left[on[i]].MemoryBytes, on[i])
		case left[on[i]].Replicas < class.Requests.Replicas:
			c.bad("%s: pod %s asks for %d replicas of one GPU, %d are left on GPU %d", where, pod, class.Requests.Replicas, left[on[i]].Replicas, on[i])
		default:
			left[on[i]].MemoryBytes -= class.GPUMemoryBytes
			left[on[i]].Replicas -= class.Requests.Replicas
		}
	}
}

// quotas checks that the pods of a machine take no more of a quota than it has.
func (c *checker) quotas(where string, pods []string, amounts []planner.Amount) {
	left := make([]int64, len(c.snapshot.Quotas))
	for q := range left {
		left[q] = c.snapshot.Quotas[q].Each
	}
	for _, x := range amounts {
		left[x.Quota] = x.Count
	}
	for _, pod := range pods {
		at, ok := c.class[pod]
		if !ok {
			continue
		}
		for _, x := range c.snapshot.Classes[at].Quotas {
			if x.Count > left[x.Quota] {
				c.bad("%s: pod %s takes %d of %s, %d are left", where, pod, x.Count, c.snapshot.Quotas[x.Quota].Name, left[x.Quota])
				continue
			}
			if left[x.Quota] != planner.Unlimited {
				left[x.Quota] -= x.Count
			}
		}
	}
}

// apart checks the rules that keep pods apart on machines, except those that a class only prefers.
func (c *checker) apart(where string, pods []string) {
	about := map[int]bool{} // The rules that bind any of the pods.
	for _, pod := range pods {
		if at, ok := c.class[pod]; ok {
			for _, r := range c.parted[at] {
				about[r] = true
			}
		}
	}
	for _, r := range slices.Sorted(maps.Keys(about)) {
		rule := c.snapshot.Rules[r]
		counted := 0
		for _, pod := range pods {
			if at, ok := c.class[pod]; ok && slices.Contains(rule.Counted, at) {
				counted++
			}
		}
		for _, pod := range pods {
			at, ok := c.class[pod]
			if !ok || !slices.Contains(rule.Classes, at) || c.preferred(at, r) {
				continue
			}
			others := counted
			if slices.Contains(rule.Counted, at) {
				others--
			}
			if others > 0 {
				c.bad("%s: pod %s shares the machine with %d pods that %s keeps it apart from", where, pod, others, rule.Name)
			}
		}
	}
}

// preferred reports whether a rule is only a preference of a class.
func (c *checker) preferred(class, rule int) bool {
	for _, w := range c.snapshot.Classes[class].Preferences {
		if w.Rule == rule {
			return true
		}
	}
	return false
}
