package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/manifests"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
)

const (
	// shapes is the number of shapes of pods, replicas the number of pods that share a GPU.
	shapes   = 20
	replicas = 10
	poolName = "burst"
)

// workload has the pods of a burst, in the order of their shapes. The first shapes are the most frequent.
type workload struct {
	pods []*corev1.Pod
	// same has, for each shape, the first that asks for the same.
	same []int
}

// newWorkload returns n pods of 20 shapes that ask for 100m to 3 CPUs with 1 to 8 GiB each, and for one replica.
func newWorkload(n int) *workload {
	random := rand.New(rand.NewPCG(1, 1))
	cpu, mibPerCPU := []int64{100, 200, 250, 500, 750, 1000, 1500, 2000, 3000}, []int64{1024, 2048, 3072, 4096, 6144, 8192}
	var asks []corev1.ResourceList
	var weights []float64
	var sum float64
	for k := range shapes {
		milli := cpu[random.IntN(len(cpu))]
		asks = append(asks, corev1.ResourceList{
			corev1.ResourceCPU:         *resource.NewMilliQuantity(milli, resource.DecimalSI),
			corev1.ResourceMemory:      *resource.NewQuantity(milli*mibPerCPU[random.IntN(len(mibPerCPU))]/1000<<20, resource.BinarySI),
			v1alpha1.ResourceGPUShared: resource.MustParse("1"),
		})
		weights = append(weights, 1/float64(k+1))
		sum += weights[k]
	}
	of := make([]int, n)
	for i := range of {
		for at := random.Float64() * sum; of[i] < shapes-1 && at > weights[of[i]]; of[i]++ {
			at -= weights[of[i]]
		}
	}
	slices.Sort(of)
	w := &workload{}
	for k := range asks {
		w.same = append(w.same, slices.IndexFunc(asks[:k+1], func(other corev1.ResourceList) bool { return equality.Semantic.DeepEqual(other, asks[k]) }))
	}
	for i, k := range of {
		w.pods = append(w.pods, podOf(fmt.Sprintf("d%02d-%04d", k, i), asks[k]))
	}
	return w
}

// inOrder returns the pods in the order in which they come.
func (w *workload) inOrder(mixed bool) []*corev1.Pod {
	pods := slices.Clone(w.pods)
	if mixed {
		rand.New(rand.NewPCG(2, 2)).Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	}
	return pods
}

func podOf(name string, asks corev1.ResourceList) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: corev1.PodSpec{
			Tolerations: []corev1.Toleration{{Key: v1alpha1.ResourceGPUShared, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example.com/main",
				Resources: corev1.ResourceRequirements{Requests: asks, Limits: corev1.ResourceList{v1alpha1.ResourceGPUShared: asks[v1alpha1.ResourceGPUShared]}},
			}},
		},
	}
}

// shapeOf returns the shape of a pod by its name.
func (w *workload) shapeOf(pod string) int {
	shape, _ := strconv.Atoi(pod[1:3]) // Names come from newWorkload.
	return w.same[shape]
}

// counts returns the number of pods of each shape.
func (w *workload) counts() []int {
	n := make([]int, shapes)
	for _, pod := range w.pods {
		n[w.shapeOf(pod.Name)]++
	}
	return n
}

// onePlan returns the price of one plan for some of the pods of each shape, in dollars per hour.
func (w *workload) onePlan(ctx context.Context, counts []int) (float64, error) {
	view, err := w.view(ctx, counts)
	if err != nil {
		return 0, err
	}
	plan := solve.Plan(view.Snapshot)
	if len(plan.Unplaced) > 0 {
		return 0, fmt.Errorf("one plan for all pods leaves out %d: %s", len(plan.Unplaced), plan.Unplaced[0].Message)
	}
	return float64(plan.Price) / 1e6, nil
}

// keys returns the number of each shape by its key in the annotation with the pods of a NodeClaim. stored are pods as the API server returns them.
func (w *workload) keys(ctx context.Context, stored map[string]*corev1.Pod) (map[string]int, error) {
	some := &workload{pods: slices.Collect(maps.Values(stored)), same: w.same}
	view, err := some.view(ctx, some.counts())
	if err != nil {
		return nil, err
	}
	by := map[string]int{}
	for name, pod := range view.Pods {
		for key := range plannedPods(view.PlannedPods(planner.Launch{Pods: []string{name}})) {
			by[key] = w.shapeOf(pod.Name)
		}
	}
	return by, nil
}

// view returns the view of a cluster without nodes, in which some of the pods of each shape wait.
func (w *workload) view(ctx context.Context, counts []int) (snapshot.View, error) {
	types, err := builtin.InstanceTypes()
	if err != nil {
		return snapshot.View{}, err
	}
	var files []manifests.File
	for _, o := range []any{pool(situation{}), gpuClass()} {
		content, err := json.Marshal(o)
		if err != nil {
			return snapshot.View{}, fmt.Errorf("writing a manifest: %w", err)
		}
		files = append(files, manifests.File{Name: "pool.yaml", Content: content})
	}
	c, _, err := manifests.Read(ctx, files)
	if err != nil {
		return snapshot.View{}, err
	}
	c.UseInstanceTypes(types)
	left := slices.Clone(counts)
	for _, pod := range w.pods {
		if k := w.shapeOf(pod.Name); left[k] > 0 {
			left[k]--
			waiting := pod.DeepCopy()
			waiting.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
			}}
			c.Pods = append(c.Pods, *waiting)
		}
	}
	return snapshot.Build(c), nil
}

// prices returns the price of each offering on demand by instance type, in dollars per hour.
func prices() (map[string]float64, error) {
	types, err := builtin.InstanceTypes()
	if err != nil {
		return nil, err
	}
	by := map[string]float64{}
	for _, t := range types {
		i := slices.IndexFunc(t.Offerings, func(o catalog.Offering) bool { return o.CapacityType == karpv1.CapacityTypeOnDemand })
		if i >= 0 {
			by[t.Name] = float64(t.Offerings[i].MicroUSDPerHour) / 1e6
		}
	}
	return by, nil
}
