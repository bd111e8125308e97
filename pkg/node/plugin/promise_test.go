package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/plugintest"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// TestAgentKeepsPromisesOfPlans plans for pods with several containers, gives them devices as the kubelet and the agent do, in any order, and lets some of them
// end, for several rounds. Each container gets its devices, and no GPU ever has pods that together state more memory than it has. A pod counts on each GPU on
// which it has a device. Machines that are still starting hold the pods for which they were launched.
func TestAgentKeepsPromisesOfPlans(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newPromises(t)
		for round := range rapid.IntRange(1, 3).Draw(t, "rounds") {
			w.end()
			w.plan(round)
		}
	})
}

// promises is a cluster with agents.
type promises struct {
	t        *rapid.T
	cluster  *facts.Cluster
	replicas int
	refuses  bool
	nodes    map[string]*promisedNode
}

// promisedNode is a node with an agent, and what the kubelet's device manager has allocated there.
type promisedNode struct {
	server *server
	// held are the devices of each pod.
	held map[string][]string
	// stated is the device memory in bytes of each pod.
	stated map[string]int64
}

const promisedMemory = 15079 << 20 // Of a T4.

func newPromises(t *rapid.T) *promises {
	w := &promises{t: t, cluster: snapshottest.Shared(), replicas: rapid.IntRange(2, 10).Draw(t, "replicas"), refuses: rapid.Bool().Draw(t, "refuses"), nodes: map[string]*promisedNode{}}
	shares := &w.cluster.GPUNodeClasses[0].Spec.Sharing
	shares.Replicas = new(int32(w.replicas))
	if w.refuses {
		shares.RequestsAboveOne = v1alpha1.RequestsAboveOneRefuse
	}
	if rapid.IntRange(0, 2).Draw(t, "types") > 0 {
		snapshottest.Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.12xlarge")(&w.cluster.NodePools[0])
	}
	return w
}

// end ends some running pods.
func (w *promises) end() {
	w.cluster.Pods = slices.DeleteFunc(w.cluster.Pods, func(pod corev1.Pod) bool {
		if !rapid.Bool().Draw(w.t, "ends") {
			return false
		}
		if n := w.nodes[pod.Spec.NodeName]; n != nil {
			delete(n.held, pod.Name)
		}
		return true
	})
}

// pod draws a pod with init containers, sidecars and containers.
func (w *promises) pod() func(string) corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	most := 2
	if w.refuses {
		most = 1
	}
	container := func(name string, restart *corev1.ContainerRestartPolicy) corev1.Container {
		c := corev1.Container{Name: name, RestartPolicy: restart}
		if n := rapid.IntRange(0, most).Draw(w.t, "replicas of "+name); n > 0 || rapid.Bool().Draw(w.t, "states zero") {
			c.Resources.Requests = snapshottest.Amounts("cpu", "10m", v1alpha1.ResourceGPUShared, strconv.Itoa(n))
		}
		return c
	}
	var inits, containers []corev1.Container
	for i := range rapid.IntRange(0, 3).Draw(w.t, "init containers") {
		inits = append(inits, container(fmt.Sprint("init-", i), rapid.SampledFrom([]*corev1.ContainerRestartPolicy{nil, &always}).Draw(w.t, "restarts")))
	}
	for i := range rapid.IntRange(1, 3).Draw(w.t, "containers") {
		containers = append(containers, container(fmt.Sprint("app-", i), nil))
	}
	memory := rapid.SampledFrom([]string{"", "1Gi", "3Gi", "4Gi", "7Gi", "12Gi", "15079Mi"}).Draw(w.t, "memory")
	return func(name string) corev1.Pod {
		pod := snapshottest.Pod(name)
		pod.Spec.InitContainers, pod.Spec.Containers = inits, containers
		if memory != "" {
			snapshottest.GPUMemory(memory)(&pod)
		}
		return pod
	}
}

// plan plans for new pods, and starts them.
func (w *promises) plan(round int) {
	for i := range rapid.IntRange(1, 4).Draw(w.t, "shapes") {
		shape := w.pod()
		for j := range rapid.IntRange(1, 4).Draw(w.t, "pods") {
			w.cluster.Pods = append(w.cluster.Pods, shape(fmt.Sprintf("r%d-s%d-%d", round, i, j)))
		}
	}
	w.cluster.Index = nil
	view := snapshot.Build(w.cluster)
	plan := solve.Plan(view.Snapshot)
	bound := map[string]string{}
	for _, p := range plan.Placements {
		for _, pod := range p.Pods {
			bound[pod] = view.Nodes[p.Node].Name
		}
	}
	for i, launch := range plan.Launches {
		offering := view.Offerings[launch.Offering]
		claim := snapshottest.Claim(fmt.Sprintf("m%d-%d", round, i), &w.cluster.NodePools[0], offering.Type, snapshottest.Launched(snapshottest.Now))
		claim.Annotations[nodecontract.ReplicasPerGPUAnnotation] = strconv.Itoa(w.replicas)
		claim.Annotations[v1alpha1.PlannedPodsAnnotation] = view.PlannedPods(launch)
		w.cluster.NodeClaims = append(w.cluster.NodeClaims, claim)
		for _, pod := range launch.Pods {
			bound[pod] = claim.Name
		}
	}
	w.cluster.Pods = slices.DeleteFunc(w.cluster.Pods, func(pod corev1.Pod) bool {
		return pod.Spec.NodeName == "" && bound[facts.PodName(&pod)] == ""
	})
	if again := solve.Plan(snapshot.Build(w.cluster).Snapshot); len(again.Launches) > 0 || len(again.Unplaced) > 0 {
		w.t.Fatalf("machines that start do not hold the pods for which they were launched: %+v", again)
	}
	w.start()
	var starting []*corev1.Pod
	for i := range w.cluster.Pods {
		if pod := &w.cluster.Pods[i]; pod.Spec.NodeName == "" {
			starting = append(starting, pod)
		}
	}
	for _, pod := range rapid.Permutation(starting).Draw(w.t, "order") {
		snapshottest.Running(bound[facts.PodName(pod)])(pod)
		w.nodes[pod.Spec.NodeName].admit(w.t, pod)
	}
}

// start starts the machines that were launched, with an agent on each.
func (w *promises) start() {
	for i := range w.cluster.NodeClaims {
		claim := &w.cluster.NodeClaims[i]
		if w.nodes[claim.Name] != nil {
			continue
		}
		delete(claim.Annotations, v1alpha1.PlannedPodsAnnotation)
		snapshottest.Initialized(snapshottest.Now.Add(-time.Hour))(claim)
		offered := snapshottest.TypeNamed(claim.Spec.Requirements[0].Values[0])
		w.cluster.Nodes = append(w.cluster.Nodes, snapshottest.Node(claim, offered, int64(w.replicas)*offered.GPU.Count))
		w.nodes[claim.Name] = w.agent(int(offered.GPU.Count))
	}
}

// agent returns a node with an agent that serves GPUs as promised.
func (w *promises) agent(gpus int) *promisedNode {
	m := New(Config{KubeletSocket: "/plugins/kubelet.sock", Network: &plugintest.Memory{}, CDIMissing: func([]string) error { return nil }})
	config, err := sharing.FromPromise(sharing.Promise{Resource: v1alpha1.ResourceGPUShared, Replicas: w.replicas})
	if err != nil {
		w.t.Fatal(err)
	}
	config.Sharing.TimeSlicing.FailRequestsGreaterThanOne = &w.refuses
	var devices []gpu.Device
	for i := range gpus {
		devices = append(devices, gpu.Device{UUID: fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i), Index: i, NUMANode: -1})
	}
	if err := m.Apply(context.Background(), config, devices); err != nil {
		w.t.Fatal(err)
	}
	return &promisedNode{server: newServer(m, v1alpha1.ResourceGPUShared), held: map[string][]string{}, stated: map[string]int64{}}
}

// admit gives a pod its devices as the kubelet's device manager does: init containers first, whose devices later containers use again, except those of
// sidecars.
func (n *promisedNode) admit(t *rapid.T, pod *corev1.Pod) {
	n.stated[pod.Name] = facts.GPURequestOf(pod).MemoryBytes
	var again []string
	for _, c := range pod.Spec.InitContainers {
		got := n.allocate(t, pod, &c, again)
		if c.RestartPolicy == nil {
			again = append(again, slices.DeleteFunc(slices.Clone(got), func(id string) bool { return slices.Contains(again, id) })...)
		} else {
			again = slices.DeleteFunc(again, func(id string) bool { return slices.Contains(got, id) })
		}
	}
	for _, c := range pod.Spec.Containers {
		got := n.allocate(t, pod, &c, again)
		again = slices.DeleteFunc(again, func(id string) bool { return slices.Contains(got, id) })
	}
	uses := map[string]map[string]bool{}
	for name, ids := range n.held {
		for _, id := range ids {
			uuid := alloc.UUID(id)
			if uses[uuid] == nil {
				uses[uuid] = map[string]bool{}
			}
			uses[uuid][name] = true
		}
	}
	for uuid, pods := range uses {
		sum := int64(0)
		for name := range pods {
			sum += n.stated[name]
		}
		if sum > promisedMemory {
			t.Fatalf("pods %v state %d MiB together, on GPU %s with %d", slices.Sorted(maps.Keys(pods)), sum>>20, uuid, promisedMemory>>20)
		}
	}
}

// allocate gives a container its devices. again are those of init containers that have ended.
func (n *promisedNode) allocate(t *rapid.T, pod *corev1.Pod, c *corev1.Container, again []string) []string {
	asks := c.Resources.Requests[v1alpha1.ResourceGPUShared]
	size := int(asks.Value())
	if size == 0 {
		return nil
	}
	ctx := context.Background()
	got := rapid.Permutation(again).Draw(t, "reused")[:min(size, len(again))]
	if len(got) < size {
		held := slices.Concat(slices.Collect(maps.Values(n.held))...)
		available := slices.DeleteFunc(slices.Clone(n.server.m.listedIDs(n.server.resource)), func(id string) bool { return slices.Contains(held, id) })
		answer, err := n.server.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: slices.Concat(available, got), MustIncludeDeviceIDs: got, AllocationSize: int32(size),
		}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range answer.GetContainerResponses()[0].GetDeviceIDs() {
			if slices.Contains(available, id) && len(got) < size {
				got = append(got, id)
			}
		}
	}
	if len(got) < size {
		t.Fatalf("container %s of pod %s asks for %d replicas and gets %q", c.Name, pod.Name, size, got)
	}
	if _, err := n.server.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: got}}}); err != nil {
		t.Fatalf("container %s of pod %s: %v", c.Name, pod.Name, err)
	}
	for _, id := range got {
		if !slices.Contains(n.held[pod.Name], id) {
			n.held[pod.Name] = append(n.held[pod.Name], id)
		}
	}
	return got
}

// listedIDs returns the devices of a resource that the kubelet knows.
func (m *Manager) listedIDs(resource string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.listed[resource]))
}
