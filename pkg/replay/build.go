package replay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Traces are the same pods on machines with shared GPUs and with whole ones.
type Traces struct {
	Shared, Whole Trace
	// Left are the pods that no NodePool can hold.
	Left []Left
}

// maxShapes is the maximum number of shapes. The time that a plan takes grows with it.
const maxShapes = 10_000

// shape is what distinguishes pods of a trace for the planner.
type shape struct{ milliCPU, memoryBytes, replicas, gpuMemoryBytes int64 }

// Build returns the traces of the records, until an end, on the machines of Karve's NodePools in a cluster. It ignores the cluster's nodes and pods, the
// limits of its pools and Karpenter's own pools.
func Build(c *facts.Cluster, records []Record, end time.Duration) (Traces, error) {
	shapes, of := shapesOf(records)
	if len(shapes) > maxShapes {
		return Traces{}, fmt.Errorf("the pods have %d different requests, and a replay is made for at most %d", len(shapes), maxShapes)
	}
	empty, err := templates(c, shapes)
	if err != nil {
		return Traces{}, err
	}
	shared, whole := snapshotOf(empty, len(shapes)), snapshotOf(wholeGPUs(empty), len(shapes))
	why := make([]string, len(shapes))
	for _, s := range []planner.Snapshot{shared, whole} {
		one := s
		one.Classes = slices.Clone(s.Classes)
		for i := range one.Classes {
			one.Classes[i].Pods = []string{name(i)}
		}
		for _, u := range (solve.Solver{Effort: 1}).Plan(one).Unplaced {
			i := podOf(u.Pod)
			why[i] = cmp.Or(why[i], u.Message)
		}
	}
	t := Traces{Shared: Trace{Name: "shared", Snapshot: shared, End: end}, Whole: Trace{Name: "whole", Snapshot: whole, End: end}}
	var left lefts
	for i, r := range records {
		if reason := why[of[i]]; reason != "" {
			left.add("no place for the pod: "+reason, fmt.Sprintf("pod %d", i+1))
			continue
		}
		t.Shared.Pods = append(t.Shared.Pods, Pod{of[i], r.Arrives, r.Ends})
	}
	t.Whole.Pods, t.Left = t.Shared.Pods, left
	return t, nil
}

// shapesOf returns the distinct shapes of the records in a stable order, and the shape of each record.
func shapesOf(records []Record) (shapes []shape, of []int) {
	index := map[shape]int{}
	for _, r := range records {
		s := shape{r.MilliCPU, r.MemoryBytes, r.Replicas, r.GPUMemoryBytes}
		i, ok := index[s]
		if !ok {
			i = len(shapes)
			index[s] = i
			shapes = append(shapes, s)
		}
		of = append(of, i)
	}
	return shapes, of
}

// templates returns the cluster with Karve's pools and a pending pod for each shape, and nothing else.
func templates(c *facts.Cluster, shapes []shape) (*facts.Cluster, error) {
	gpu := corev1.ResourceName("")
	for i := range c.GPUNodeClasses {
		if sharing := &c.GPUNodeClasses[i].Spec.Sharing; sharing.Shared() && gpu == "" {
			gpu = corev1.ResourceName(sharing.Resource())
		}
	}
	empty := &facts.Cluster{
		Now: c.Now, GPUNodeClasses: c.GPUNodeClasses, NodeClasses: records.Vacated(c), DaemonSets: c.DaemonSets, ReplicasTimeout: c.ReplicasTimeout,
		Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceDefault}}},
	}
	for i := range c.NodePools {
		if np := &c.NodePools[i]; facts.IsOurs(np) {
			pool := *np.DeepCopy()
			pool.Spec.Limits = nil
			empty.NodePools = append(empty.NodePools, pool)
		}
	}
	if gpu == "" || len(empty.NodePools) == 0 {
		return nil, errors.New("there is no NodePool with shared GPUs to replay on: add a NodePool that names a GPUNodeClass with replicas")
	}
	for i, s := range shapes {
		empty.Pods = append(empty.Pods, s.pod(i, gpu))
	}
	return empty, nil
}

// pod returns a pending pod of the shape with index i.
func (s shape) pod(i int, gpu corev1.ResourceName) corev1.Pod {
	requests := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(s.milliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(s.memoryBytes, resource.BinarySI),
		gpu:                   *resource.NewQuantity(s.replicas, resource.DecimalSI),
	}
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("p%06d", i)},
		Spec: corev1.PodSpec{
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: requests, Limits: corev1.ResourceList{gpu: requests[gpu]}}}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}},
		},
	}
	if s.gpuMemoryBytes > 0 {
		pod.Annotations = map[string]string{v1alpha1.GPUMemoryAnnotation: resource.NewQuantity(s.gpuMemoryBytes, resource.BinarySI).String()}
	}
	return pod
}

// wholeGPUs returns the cluster with one replica of each GPU.
func wholeGPUs(c *facts.Cluster) *facts.Cluster {
	whole := *c
	whole.GPUNodeClasses = slices.Clone(c.GPUNodeClasses)
	for i := range whole.GPUNodeClasses {
		if sharing := &whole.GPUNodeClasses[i].Spec.Sharing; sharing.Shared() {
			sharing.Replicas, sharing.MaxReplicas, sharing.Overrides = new(int32(1)), nil, nil
		}
	}
	return &whole
}

// snapshotOf returns the planner's snapshot of the cluster, with a class without pods for each shape, at the index of the shape.
func snapshotOf(c *facts.Cluster, shapes int) planner.Snapshot {
	s := snapshot.Build(c).Snapshot
	classes := make([]planner.Class, shapes)
	for _, class := range s.Classes {
		for _, pod := range class.Pods {
			class.Pods = nil
			classes[podOf(pod)] = class
		}
	}
	s.Classes, s.Nodes = classes, nil
	s.Pools = slices.Clone(s.Pools)
	for i := range s.Pools {
		s.Pools[i].MinValues = nil // They are lists by offering. The cheapest instance type does not depend on them.
	}
	return cheapest(s)
}

// cheapest returns the snapshot with only the cheapest of the offerings that differ only in zone, capacity type or price. The pods of a trace may be in
// any zone.
func cheapest(s planner.Snapshot) planner.Snapshot {
	type kind struct {
		pool int
		name string
		free planner.Resources
		gpus int
		// stock is one of which only so much is left, or -1.
		stock int
	}
	of := func(o planner.Offering) kind {
		k := kind{o.Pool, o.InstanceType, o.Free, len(o.GPUs), -1}
		if len(o.Draws) > 0 {
			k.stock = o.Draws[0].Stock
		}
		return k
	}
	best := map[kind]int{}
	for i, o := range s.Offerings {
		k := of(o)
		if j, ok := best[k]; !ok || o.Price < s.Offerings[j].Price {
			best[k] = i
		}
	}
	at := map[int]int{}
	var offerings []planner.Offering
	for i, o := range s.Offerings {
		if best[of(o)] == i {
			at[i] = len(offerings)
			offerings = append(offerings, o)
		}
	}
	s.Offerings = offerings
	for c := range s.Classes {
		var admitting []int
		for _, i := range s.Classes[c].Offerings {
			if j, ok := at[i]; ok {
				admitting = append(admitting, j)
			}
		}
		s.Classes[c].Offerings = admitting
	}
	return s
}
