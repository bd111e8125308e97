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
	empty := poolsOf(c)
	pods, err := templates(empty, shapes)
	if err != nil {
		return Traces{}, err
	}
	shared, why := snapshotOf(empty, pods)
	whole, others := snapshotOf(wholeGPUs(empty), pods)
	t := Traces{Shared: Trace{Name: "shared", Snapshot: shared, End: end}, Whole: Trace{Name: "whole", Snapshot: whole, End: end}}
	var left lefts
	for i, r := range records {
		if reason := cmp.Or(why[of[i]], others[of[i]]); reason != "" {
			left.add("no place for the pod: "+reason, fmt.Sprintf("pod %d", i+1))
			continue
		}
		t.Shared.Pods = append(t.Shared.Pods, Pod{Shape: of[i], Arrives: r.Arrives, Ends: r.Ends})
	}
	t.Whole.Pods, t.Left = t.Shared.Pods, left
	return t, nil
}

// Of returns the trace of pods with templates, until an end, on the machines of Karve's NodePools in a cluster, as [Build] does. The shape of a pod is the index of its
// template. Of a template, only what decides on which machines its pods may run counts: no rules between pods, and no volumes. Machines expire, if their NodePool says so. For each template whose pods have no
// place, why says why; the trace is without these pods.
func Of(c *facts.Cluster, templates []corev1.Pod, pods []Pod, end time.Duration) (t Trace, why []string) {
	alone := make([]corev1.Pod, len(templates))
	for i := range templates {
		alone[i] = pending(i, &templates[i])
	}
	t = Trace{Name: "shared", End: end}
	empty := poolsOf(c)
	t.Snapshot, why = snapshotOf(empty, alone)
	t.Lives = make([]time.Duration, len(t.Snapshot.Pools))
	for i := range t.Snapshot.Pools {
		for j := range empty.NodePools {
			if life := empty.NodePools[j].Spec.Template.Spec.ExpireAfter.Duration; life != nil && empty.NodePools[j].Name == t.Snapshot.Pools[i].Name {
				t.Lives[i] = *life
			}
		}
	}
	for _, p := range pods {
		if why[p.Shape] == "" {
			t.Pods = append(t.Pods, p)
		}
	}
	return t, why
}

// pending returns a pod with the template that waits alone for a machine.
func pending(i int, template *corev1.Pod) corev1.Pod {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: fmt.Sprintf("p%06d", i), Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{NodeSelector: template.Spec.NodeSelector, Tolerations: template.Spec.Tolerations, Overhead: template.Spec.Overhead},
		Status: corev1.PodStatus{
			Phase:      corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}},
		},
	}
	if memory, ok := template.Annotations[v1alpha1.GPUMemoryAnnotation]; ok {
		pod.Annotations[v1alpha1.GPUMemoryAnnotation] = memory
	}
	if a := template.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		required := &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution}
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: required}
	}
	bare := func(containers []corev1.Container) (all []corev1.Container) {
		for _, c := range containers {
			all = append(all, corev1.Container{Name: c.Name, Resources: corev1.ResourceRequirements{Requests: c.Resources.Requests, Limits: c.Resources.Limits}, RestartPolicy: c.RestartPolicy})
		}
		return all
	}
	pod.Spec.InitContainers, pod.Spec.Containers = bare(template.Spec.InitContainers), bare(template.Spec.Containers)
	return pod
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

// poolsOf returns the cluster with Karve's pools, without their limits, and nothing else.
func poolsOf(c *facts.Cluster) *facts.Cluster {
	empty := &facts.Cluster{
		Now: c.Now, GPUNodeClasses: c.GPUNodeClasses, NodeClasses: records.Vacated(c), DaemonSets: c.DaemonSets, ReplicasTimeout: c.ReplicasTimeout,
		PriorityCutoff: c.PriorityCutoff,
		Namespaces:     []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceDefault}}},
	}
	for i := range c.NodePools {
		if np := &c.NodePools[i]; facts.IsOurs(np) {
			pool := *np.DeepCopy()
			pool.Spec.Limits = nil
			empty.NodePools = append(empty.NodePools, pool)
		}
	}
	return empty
}

// templates returns a pending pod for each shape, which tolerates the taints of all pools. The cluster has only NodePools of Karve.
func templates(c *facts.Cluster, shapes []shape) (pods []corev1.Pod, err error) {
	gpu := corev1.ResourceName("")
	for i := range c.GPUNodeClasses {
		if sharing := &c.GPUNodeClasses[i].Spec.Sharing; sharing.Shared() && gpu == "" {
			gpu = corev1.ResourceName(sharing.Resource())
		}
	}
	if gpu == "" || len(c.NodePools) == 0 {
		return nil, errors.New("there is no NodePool with shared GPUs to replay on: add a NodePool that names a GPUNodeClass with replicas")
	}
	for i, s := range shapes {
		pods = append(pods, s.pod(i, gpu))
	}
	return pods, nil
}

// pod returns a pending pod of the shape with index i.
func (s shape) pod(i int, gpu corev1.ResourceName) corev1.Pod {
	requests := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(s.milliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(s.memoryBytes, resource.BinarySI),
		gpu:                   *resource.NewQuantity(s.replicas, resource.DecimalSI),
	}
	template := corev1.Pod{Spec: corev1.PodSpec{
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers:  []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: requests, Limits: corev1.ResourceList{gpu: requests[gpu]}}}},
	}}
	if s.gpuMemoryBytes > 0 {
		template.Annotations = map[string]string{v1alpha1.GPUMemoryAnnotation: resource.NewQuantity(s.gpuMemoryBytes, resource.BinarySI).String()}
	}
	return pending(i, &template)
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

// snapshotOf returns the planner's snapshot of the cluster with pending pods, with a class without pods for each of them, at its index. For each that has no place, why
// says why.
func snapshotOf(c *facts.Cluster, pods []corev1.Pod) (s planner.Snapshot, why []string) {
	with := *c
	with.Pods = pods
	s = snapshot.Build(&with).Snapshot
	classes, why := make([]planner.Class, len(pods)), make([]string, len(pods))
	for i := range classes {
		classes[i].Requests.Pods = 1
		why[i] = "no NodePool of Karve has machines for it"
	}
	for _, class := range s.Classes {
		if len(class.Quotas) > 0 {
			for _, pod := range class.Pods {
				why[podOf(pod)] = "a replay does not count its " + s.Quotas[class.Quotas[0].Quota].Name
			}
			continue
		}
		for _, pod := range class.Pods {
			class.Pods = nil
			classes[podOf(pod)], why[podOf(pod)] = class, ""
		}
	}
	s.Classes, s.Nodes = classes, nil
	s.Pools = slices.Clone(s.Pools)
	for i := range s.Pools {
		s.Pools[i].MinValues = nil // They are lists by offering. The cheapest instance type does not depend on them.
	}
	for i := range s.Classes {
		if why[i] == "" {
			s.Classes[i].Pods = []string{name(i)}
		}
	}
	more := func() bool { return true } // Plans with this effort are fast, so there is always time for another.
	s, plan, _, err := solve.Contain(cheapest(s), nil, solve.Solver{Effort: 1}.Plan, more, nil)
	for _, u := range plan.Unplaced {
		why[podOf(u.Pod)] = u.Message
	}
	for i := range s.Classes {
		s.Classes[i].Pods = nil
		if err != nil && why[i] == "" {
			why[i] = err.Error()
		}
	}
	return s, why
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
