package share

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

const usable = 15079 // MiB of a T4 that programs can use

// ranged returns a cluster whose class shares each GPU into a range of replicas.
func ranged(replicas, most int32) *facts.Cluster {
	c := snapshottest.Shared()
	c.GPUNodeClasses[0].Spec.Sharing.Replicas, c.GPUNodeClasses[0].Spec.Sharing.MaxReplicas = &replicas, &most
	return c
}

// small makes a pod request one replica, little CPU and memory, and mib MiB of device memory, or none if mib is 0.
func small(mib int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		snapshottest.Asking("cpu", "10m", "memory", "16Mi", v1alpha1.ResourceGPUShared, "1")(pod)
		if mib > 0 {
			snapshottest.GPUMemory(strconv.FormatInt(mib, 10) + "Mi")(pod)
		}
	}
}

// machine adds a started machine that exposes the replicas it promises.
func machine(c *facts.Cluster, name, instanceType string, perGPU int64) {
	t := snapshottest.TypeNamed(instanceType)
	claim := snapshottest.Claim(name, &c.NodePools[0], t, snapshottest.Initialized(c.Now), func(claim *karpv1.NodeClaim) {
		claim.Annotations[nodecontract.ReplicasPerGPUAnnotation] = strconv.FormatInt(perGPU, 10)
	})
	c.NodeClaims = append(c.NodeClaims, claim)
	c.Nodes = append(c.Nodes, snapshottest.Node(&claim, t, perGPU*t.GPU.Count))
}

// decided returns the view, the plan and the changes for a cluster.
func decided(c *facts.Cluster) (snapshot.View, planner.Plan, []Change) {
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	return view, plan, Changes(&view, plan.Placements)
}

func TestLaunchPromisesAsManyReplicasAsPodsNeed(t *testing.T) {
	t.Parallel()
	c := ranged(10, 40)
	c.Pods = snapshottest.Pods("small", 25, small(500))
	view, plan, _ := decided(c)
	if len(plan.Launches) != 1 {
		t.Fatalf("%d machines are launched for 25 pods of half a GiB, want one", len(plan.Launches))
	}
	if gpus, replicas := view.Promised(plan.Launches[0]); gpus != 1 || replicas != 25 {
		t.Errorf("%d GPUs of %d replicas are promised, want one of 25", gpus, replicas)
	}

	// The memory does not suffice for a thirty-first pod.
	c.Pods = snapshottest.Pods("small", 31, small(500))
	if view, plan, _ := decided(c); len(plan.Launches) != 2 {
		_, replicas := view.Promised(plan.Launches[0])
		t.Errorf("%d machines are launched, the first for %d replicas", len(plan.Launches), replicas)
	}
}

func TestUnknownPodMemoryKeepsDefaultReplicas(t *testing.T) {
	t.Parallel()
	edit := func(f func(*facts.Cluster)) *facts.Cluster {
		c := ranged(10, 40)
		c.Pods = snapshottest.Pods("small", 25, small(500))
		f(c)
		return c
	}
	for name, c := range map[string]*facts.Cluster{
		"a pod without memory": edit(func(c *facts.Cluster) { c.Pods = append(c.Pods, snapshottest.Pod("silent", small(0))) }),
		"a pod with invalid memory": edit(func(c *facts.Cluster) {
			c.Pods = append(c.Pods, snapshottest.Pod("odd", snapshottest.GPUMemory("much")))
		}),
		"a pod that needs more memory": edit(func(c *facts.Cluster) { c.Pods = append(c.Pods, snapshottest.Pod("large", small(1400))) }),
		"a running pod that needs more memory": edit(func(c *facts.Cluster) {
			c.Pods = append(c.Pods, snapshottest.Pod("large", small(1400), snapshottest.Running("elsewhere")))
		}),
		"an override": edit(func(c *facts.Cluster) {
			c.GPUNodeClasses[0].Spec.Sharing.Overrides = []v1alpha1.ReplicasOverride{{GPUName: "t4", Replicas: 10}}
		}),
		"no range": edit(func(c *facts.Cluster) { c.GPUNodeClasses[0].Spec.Sharing.MaxReplicas = nil }),
		"a limit on replicas": edit(func(c *facts.Cluster) {
			c.NodePools[0].Spec.Limits = karpv1.Limits(snapshottest.Amounts(v1alpha1.ResourceGPUShared, "100"))
		}),
		"a DaemonSet holds replicas": edit(func(c *facts.Cluster) {
			c.DaemonSets = append(c.DaemonSets, snapshottest.DaemonSet("d", v1alpha1.ResourceGPUShared, "1"))
		}),
	} {
		view, plan, _ := decided(c)
		for _, l := range plan.Launches {
			if _, replicas := view.Promised(l); replicas != 10 {
				t.Errorf("%s: %d replicas are promised", name, replicas)
			}
		}
		if len(plan.Launches) < 2 {
			t.Errorf("%s: %d machines are launched", name, len(plan.Launches))
		}
	}
	// Pods that cannot run on the pool do not matter.
	c := edit(func(c *facts.Cluster) {
		c.Pods = append(c.Pods, snapshottest.Pod("silent", small(0), snapshottest.Tolerating("other")))
	})
	if _, plan, _ := decided(c); len(plan.Launches) != 1 {
		t.Errorf("%d machines are launched beside a pod that the pool does not admit", len(plan.Launches))
	}
}

func TestReplicasGrowBeforeAnotherMachineIsLaunched(t *testing.T) {
	t.Parallel()
	c := ranged(10, 20)
	machine(c, "gpu-1", "g4dn.xlarge", 10)
	c.Pods = snapshottest.Pods("runs", 10, small(500), snapshottest.Running("gpu-1"))
	c.Pods = append(c.Pods, snapshottest.Pods("waits", 4, small(500))...)
	_, plan, changes := decided(c)
	if len(plan.Launches) > 0 || len(changes) != 1 || changes[0].Replicas != 14 {
		t.Fatalf("%d launches and the changes %+v, want none and one to 14", len(plan.Launches), changes)
	}

	// While the agent applies the change, nothing is launched and nothing is counted twice.
	c.NodeClaims[0].Annotations[nodecontract.ReplicasPerGPUAnnotation] = "14"
	c.NodeClaims[0].Annotations[v1alpha1.ReplicasRaisedAnnotation] = c.Now.Format("2006-01-02T15:04:05Z07:00")
	c.Nodes[0].Annotations[nodecontract.ReplicasPerGPUAnnotation] = "14"
	if _, plan, changes := decided(c); len(plan.Launches) > 0 || len(changes) > 0 {
		t.Errorf("a moment later %d are launched, and %+v", len(plan.Launches), changes)
	}
	// An agent that does not apply the change within a minute is no longer waited for.
	c.Now = c.Now.Add(time.Minute)
	if _, plan, changes := decided(c); len(plan.Launches) != 1 || len(changes) > 0 {
		t.Errorf("a minute later %d are launched, and %+v", len(plan.Launches), changes)
	}
	// A machine whose agent has applied the change gets more replicas.
	c.Nodes[0].Status.Allocatable[v1alpha1.ResourceGPUShared] = resource.MustParse("14")
	for i := range c.Pods {
		c.Pods[i] = snapshottest.Pod(c.Pods[i].Name, small(500), snapshottest.Running("gpu-1"))
	}
	c.Pods = append(c.Pods, snapshottest.Pods("more", 8, small(500))...)
	if _, plan, changes := decided(c); len(plan.Launches) != 1 || len(changes) != 1 || changes[0].Replicas != 20 {
		t.Errorf("for 22 pods and at most 20 replicas %d are launched, and %+v", len(plan.Launches), changes)
	}
}

func TestReplicasShrinkForLargerPendingPod(t *testing.T) {
	t.Parallel()
	c := ranged(2, 20)
	machine(c, "gpu-1", "g4dn.xlarge", 20)
	c.Pods = snapshottest.Pods("runs", 6, small(500), snapshottest.Running("gpu-1"))
	if _, _, changes := decided(c); len(changes) > 0 {
		t.Errorf("%+v, and nothing has come", changes)
	}
	c.Pods = append(c.Pods, snapshottest.Pod("large", small(3000)))
	if _, _, changes := decided(c); len(changes) != 1 || changes[0].Replicas != 5 {
		t.Errorf("%+v, want a change to 5", changes)
	}
}

// world carries out what Karve decides, as the scheduler, the agents and the cloud do.
type world struct {
	*facts.Cluster
	t      *rapid.T
	least  int64
	memory map[string]int64 // of pods, in MiB
	// on has the pods on each GPU, by node.
	on map[string][][]string
	n  int
}

// look decides and carries out the decision: agents apply changes, and machines start.
func (w *world) look() {
	w.t.Helper()
	view, plan, changes := decided(w.Cluster)
	if err := check.Plan(view.Snapshot, plan); err != nil {
		w.t.Fatal(err)
	}
	for _, change := range changes {
		for i := range w.NodeClaims {
			if w.NodeClaims[i].Name == change.Machine.Claim.Name {
				w.NodeClaims[i].Annotations[nodecontract.ReplicasPerGPUAnnotation] = strconv.FormatInt(change.Replicas, 10)
				w.Nodes[i].Annotations[nodecontract.ReplicasPerGPUAnnotation] = strconv.FormatInt(change.Replicas, 10)
			}
		}
	}
	for _, l := range plan.Launches {
		name, o := fmt.Sprintf("gpu-%d", w.n), view.Offerings[l.Offering]
		_, perGPU := view.Promised(l)
		w.n++
		machine(w.Cluster, name, o.Type.Name, perGPU)
		w.on[name] = make([][]string, o.Type.GPU.Count)
	}
	for i := range w.Nodes {
		var exposed int64
		for g := range w.on[w.Nodes[i].Name] {
			exposed += int64(len(w.on[w.Nodes[i].Name][g])) + w.free(i, g)
		}
		w.Nodes[i].Status.Allocatable[v1alpha1.ResourceGPUShared] = *resource.NewQuantity(exposed, resource.DecimalSI)
	}
}

// free returns how many replicas of a GPU the agent offers besides those that pods hold.
func (w *world) free(node, g int) int64 {
	target := facts.PromiseOf(w.Nodes[node].Annotations).ReplicasPerGPU
	return max(0, target-int64(len(w.on[w.Nodes[node].Name][g])))
}

// bind binds waiting pods in random order to random free replicas.
func (w *world) bind() {
	w.t.Helper()
	for _, i := range rapid.Permutation(indices(len(w.Pods))).Draw(w.t, "order") {
		if w.Pods[i].Spec.NodeName != "" {
			continue
		}
		type place struct{ node, gpu int }
		var places []place
		for n := range w.Nodes {
			for g := range w.on[w.Nodes[n].Name] {
				if w.free(n, g) > 0 {
					places = append(places, place{n, g})
				}
			}
		}
		if len(places) == 0 {
			return
		}
		at := rapid.SampledFrom(places).Draw(w.t, "place")
		name := w.Nodes[at.node].Name
		w.Pods[i] = snapshottest.Pod(w.Pods[i].Name, small(w.memory[w.Pods[i].Name]), snapshottest.Running(name))
		w.on[name][at.gpu] = append(w.on[name][at.gpu], w.Pods[i].Name)
		w.judge(name, at.gpu)
	}
}

// judge fails if the pods of a GPU need more memory than it has, unless so few of them do that the same could happen without a range.
func (w *world) judge(node string, g int) {
	w.t.Helper()
	var needs []int64
	for _, pod := range w.on[node][g] {
		mib := w.memory[pod]
		if mib == 0 {
			mib = usable / w.least
		}
		needs = append(needs, mib)
	}
	slices.Sort(needs)
	slices.Reverse(needs)
	var all, few int64
	for i, mib := range needs {
		all += mib
		if int64(i) < w.least {
			few += mib
		}
	}
	if all > max(usable, few) {
		w.t.Fatalf("GPU %d of %s has %d MiB, its %d pods need %d; the %d largest of them %d: %v", g, node, usable, len(needs), all, w.least, few, needs)
	}
}

// end ends some pods.
func (w *world) end() {
	w.Pods = slices.DeleteFunc(w.Pods, func(pod corev1.Pod) bool {
		if pod.Spec.NodeName == "" || rapid.IntRange(0, 2).Draw(w.t, "stays") > 0 {
			return false
		}
		for g := range w.on[pod.Spec.NodeName] {
			w.on[pod.Spec.NodeName][g] = slices.DeleteFunc(w.on[pod.Spec.NodeName][g], func(name string) bool { return name == pod.Name })
		}
		return true
	})
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// TestPromisedMemoryNeverExceedsGPUMemory checks that no GPU is promised to pods that need more memory than it has, in whatever order and on whichever GPU the
// scheduler places them. The only exception is what could happen to a GPU with the minimum number of replicas too.
func TestPromisedMemoryNeverExceedsGPUMemory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		least := rapid.IntRange(2, 6).Draw(t, "replicas")
		most := rapid.IntRange(least, 24).Draw(t, "maxReplicas")
		w := &world{Cluster: ranged(int32(least), int32(most)), t: t, least: int64(least), memory: map[string]int64{}, on: map[string][][]string{}}
		kinds := rapid.SliceOfN(rapid.SampledFrom([]int64{0, 300, 600, 1000, 2000, 4000, 9000, 14000}), 1, 3).Draw(t, "kinds")
		pods := 0
		for range rapid.IntRange(1, 5).Draw(t, "rounds") {
			for range rapid.IntRange(0, 25).Draw(t, "new pods") {
				name := fmt.Sprintf("pod-%03d", pods)
				pods++
				w.memory[name] = rapid.SampledFrom(kinds[:min(len(kinds), 1+pods/10)]).Draw(t, "memory")
				w.Pods = append(w.Pods, snapshottest.Pod(name, small(w.memory[name])))
			}
			w.look()
			w.bind()
			w.end()
			w.look()
		}
	})
}
