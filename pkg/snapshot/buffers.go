package snapshot

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// bufferShapes returns the shapes of the pods of CapacityBuffers, without their keys.
func bufferShapes(c *facts.Cluster, shapes *shapes) []*shape {
	all := make([]*shape, len(c.Buffers))
	for i := range c.Buffers {
		c.BeginVisit("CapacityBuffer", &metav1.ObjectMeta{Namespace: c.Buffers[i].Namespace, Name: c.Buffers[i].Name})
		all[i] = shapes.sketchOf(bufferPod(&c.Buffers[i]))
	}
	return all
}

// bufferReserves returns the headroom for CapacityBuffers whose pods Karve's pools admit and no pool of Karpenter could serve. Karpenter handles the others.
func (v *View) bufferReserves(c *facts.Cluster, shapes *shapes, admissions *admissions, mismatches *mismatches) []Reserve {
	var reserves []Reserve
	var served []*karpenter.Buffer
	for i := range c.Buffers {
		b := &c.Buffers[i]
		c.BeginVisit("CapacityBuffer", &metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name})
		w := &waitingClass{shape: shapes.shapeOf(bufferPod(b))}
		if w.gpu == "" {
			continue
		}
		a := admissions.ofClass(w)
		if len(a.pools) == 0 || a.karpenterPool != "" {
			continue
		}
		heaviest := a.pools[0]
		for _, pool := range a.pools {
			if weightOf(pool) > weightOf(heaviest) {
				heaviest = pool
			}
		}
		class := planner.Class{
			Requests: facts.RequestsOf(w.pod(), w.gpu), Offerings: a.offerings, Nodes: a.nodes, Blocked: a.blockedRefusal(w), GPUMemoryBytes: w.gpuMemory, Priority: headroomPriority,
		}
		v.awaitCorrection(&class, a, mismatches.forHeadroom(w, a))
		reserves = append(reserves, Reserve{v.poolIndex(heaviest), class, w})
		served = append(served, b)
	}
	share := bufferShare(served)
	for i, b := range served {
		reserves[i].Class.Pods = placeholderNames(fmt.Sprintf("buffer/%s/%s", b.Namespace, b.Name), min(b.Replicas, share(b.Namespace)))
	}
	return reserves
}

// bufferShare returns how many pods a CapacityBuffer of a namespace may have in a plan: the namespaces share maxReservePods, and the buffers of a namespace share
// its part, unless all of them need less. Each buffer has at least one.
func bufferShare(buffers []*karpenter.Buffer) func(namespace string) int32 {
	total, in := int64(0), map[string]int{}
	for i := range buffers {
		total += min(int64(buffers[i].Replicas), maxReservePods)
		in[buffers[i].Namespace]++
	}
	return func(namespace string) int32 {
		if total <= maxReservePods {
			return maxReservePods
		}
		return int32(max(1, maxReservePods/len(in)/in[namespace]))
	}
}

func (v *View) poolIndex(pool *Pool) int {
	for i := range v.Pools {
		if v.Pools[i].NodePool.Name == pool.NodePool.Name {
			return i
		}
	}
	return -1
}

// bufferPod returns a pod of the buffer with its demands on nodes. It has no topology spread constraints, volumes, priority or affinity to other pods.
func bufferPod(b *karpenter.Buffer) *corev1.Pod {
	pod := facts.PodOfTemplate(b.Namespace, b.Name, &b.Template)
	pod.Spec.Volumes, pod.Spec.Priority = nil, nil
	return pod
}
