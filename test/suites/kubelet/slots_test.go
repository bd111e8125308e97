package kubelet_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

// sizes are the sizes of slots in MiB.
var sizes = []int64{2048, 4096, 8192}

func slotsOn(enforcement string, counts ...[]int64) nodecontract.Slots {
	return nodecontract.Slots{SizesMiB: sizes, ReserveMiB: 512, Enforcement: enforcement, GPUs: counts}
}

// promiseSlots writes the slots to the Node, as the controller does.
func (w *world) promiseSlots(s nodecontract.Slots) {
	w.t.Helper()
	w.annotate(nodecontract.SlotsAnnotation, s.String())
}

func (w *world) annotate(key, value string) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	w.must(err)
	_, err = w.node.Client().CoreV1().Nodes().Patch(w.t.Context(), w.node.Name(), types.MergePatchType, patch, metav1.PatchOptions{})
	w.must(err)
}

// taint sets whether the Node is closed for a change of slots. Pods that are there already tolerate it.
func (w *world) taint(closed bool) {
	w.t.Helper()
	w.eventually(func() error {
		n, err := w.node.Client().CoreV1().Nodes().Get(w.t.Context(), w.node.Name(), metav1.GetOptions{})
		w.must(err)
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == nodecontract.SlotsChangingTaintKey })
		if closed {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: nodecontract.SlotsChangingTaintKey, Effect: corev1.TaintEffectNoSchedule})
		}
		_, err = w.node.Client().CoreV1().Nodes().Update(w.t.Context(), n, metav1.UpdateOptions{})
		return err
	})
}

// exposes waits until the Node has as many slots of each size.
func (w *world) exposes(want ...int64) {
	w.t.Helper()
	w.eventually(func() error {
		node, err := w.node.Client().CoreV1().Nodes().Get(w.t.Context(), w.node.Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		var got []int64
		for _, mib := range sizes {
			q := node.Status.Allocatable[corev1.ResourceName(nodecontract.SlotResource(mib))]
			got = append(got, q.Value())
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("the Node has the slots %v, want %v", got, want)
		}
		return nil
	})
}

// slot creates a pod with a slot.
func (w *world) slot(name, size string) {
	w.t.Helper()
	_, err := w.pods().Create(w.t.Context(), w.node.Pod(name, "nvidia.com/gpu-"+size, 1), metav1.CreateOptions{})
	w.must(err)
}

// held returns the slots that pods hold, by pod, after it has checked that none is held twice and that no GPU has more than its memory.
func (w *world) held() map[string]string {
	w.t.Helper()
	used, pods, names := map[string]int64{}, map[string]string{}, make([]string, 0, len(sizes))
	for _, mib := range sizes {
		names = append(names, nodecontract.SlotResource(mib))
	}
	devices, err := kubelet.Devices(w.t.Context(), w.lister, names...)
	w.must(err)
	for pod, ids := range devices {
		if len(ids) != 1 {
			w.t.Errorf("%s holds %v, want one slot on one GPU", pod, ids)
		}
		for _, id := range ids {
			mib, _, ok := alloc.Slot(id)
			if !ok || slices.Contains(slices.Collect(maps.Values(pods)), id) {
				w.t.Errorf("%s holds %s, which is no slot or another pod's", pod, id)
			}
			used[alloc.UUID(id)] += mib
			pods[pod] = id
		}
	}
	for uuid, mib := range used {
		if most := slotsOn("").CapacityMiB(15360); mib > most {
			w.t.Errorf("pods hold %d MiB of GPU %s, which has %d for slots", mib, uuid, most)
		}
	}
	return pods
}

// reported waits until the Node says which slots pods hold on each GPU.
func (w *world) reported(want ...[]int64) {
	w.t.Helper()
	w.eventually(func() error {
		node, err := w.node.Client().CoreV1().Nodes().Get(w.t.Context(), w.node.Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		got, ok := nodecontract.ParseSlotsInUse(node.Annotations[nodecontract.SlotsInUseAnnotation], sizes)
		same := ok && len(got.GPUs) == len(want)
		for i := range want {
			same = same && slices.Equal(got.GPUs[i].Held, want[i]) && got.GPUs[i].MemoryMiB == 15360
		}
		if !same {
			return fmt.Errorf("the agent says that pods hold %s, want %v", node.Annotations[nodecontract.SlotsInUseAnnotation], want)
		}
		return nil
	})
}

func TestSlotsOfFourGPUsFollowTheNode(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	w := newWorld(t, nvmltest.T4(4))
	w.must(w.InCluster(t.Context()))
	w.promiseSlots(slotsOn(nodecontract.EnforceWatch, []int64{1, 1, 1}, []int64{3, 0, 1}, []int64{7, 0, 0}, []int64{0, 0, 0}))
	start := func() *kubelet.Process {
		process, err := w.StartUnconfigured(p)
		w.must(err)
		return process
	}
	agent := start()
	w.exposes(11, 1, 2)
	for i := range 4 {
		w.slot(fmt.Sprintf("small-%d", i), "2gb")
	}
	w.slot("middle", "4gb")
	w.slot("large", "8gb")
	for _, name := range []string{"small-0", "small-1", "small-2", "small-3", "middle", "large"} {
		environment := w.running(name)
		id := w.held()[w.node.Namespace()+"/"+name]
		size, _, _ := alloc.Slot(id)
		if environment["NVIDIA_VISIBLE_DEVICES"] != alloc.UUID(id) || environment["CUDA_DEVICE_MEMORY_LIMIT"] != fmt.Sprintf("%dm", size) ||
			environment["ALIYUN_COM_GPU_MEM_CONTAINER"] != fmt.Sprint(size/1024) || environment["ALIYUN_COM_GPU_MEM_DEV"] != "15" {
			t.Errorf("%s holds %s and has the environment %v", name, id, environment)
		}
	}
	// The third of a size waits, although other slots have the memory.
	w.slot("larger", "8gb")
	w.slot("largest", "8gb")
	w.running("larger")
	w.unschedulable("largest")

	// Memory that no slot has becomes one at once.
	w.promiseSlots(slotsOn(nodecontract.EnforceWatch, []int64{1, 1, 1}, []int64{3, 0, 1}, []int64{7, 0, 0}, []int64{0, 0, 1}))
	w.running("largest")
	w.exposes(11, 1, 3)
	before := w.held()

	// Free slots stay while the scheduler may give them to pods, and make way when the Node is closed. Those that pods hold stay in any case.
	w.promiseSlots(slotsOn(nodecontract.EnforceWatch, []int64{1, 1, 1}, []int64{3, 0, 1}, []int64{0, 0, 1}, []int64{0, 0, 1}))
	w.exposes(11, 1, 3)
	time.Sleep(6 * time.Second) // The agent looks again every five seconds.
	w.exposes(11, 1, 3)
	w.taint(true)
	w.eventually(func() error {
		if got := w.held(); !maps.Equal(got, before) {
			return fmt.Errorf("pods held %v and hold %v", before, got)
		}
		return nil
	})
	onThird := 0
	for _, id := range before {
		if strings.HasPrefix(id, nvmltest.T4(4).Devices[2].UUID) {
			onThird++
		}
	}
	four := int64(1)
	if onThird > 3 {
		four = 0 // The slots of pods leave no room for one of 8 GiB.
	}
	w.exposes(4+int64(onThird), 1, 3+four)
	w.taint(false)

	// Restarts of the kubelet and the agent, alone and together, change nothing.
	want := w.held()
	for _, restart := range []func(){
		func() { w.must(w.node.RestartKubelet(t.Context())) },
		func() { agent.Kill(); agent = start() },
		func() {
			w.node.StopKubelet()
			agent.Kill()
			w.must(w.node.StartKubelet(t.Context()))
			agent = start()
		},
	} {
		restart()
		w.exposes(4+int64(onThird), 1, 3+four)
		w.eventually(func() error {
			if got := w.held(); !maps.Equal(got, want) {
				return fmt.Errorf("pods held %v and hold %v", want, got)
			}
			return nil
		})
	}
	for name := range want {
		if _, pod, _ := strings.Cut(name, "/"); w.get(pod).Status.Phase != corev1.PodRunning {
			t.Errorf("%s is %v", name, w.get(pod).Status)
		}
	}
}

// unschedulable waits until the scheduler finds no node for a pod.
func (w *world) unschedulable(name string) {
	w.t.Helper()
	w.eventually(func() error {
		for _, c := range w.get(name).Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("%s is %v", name, w.get(name).Status)
	})
}

func TestContainerWithTwoSlotsIsRefused(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	w := newWorld(t, nvmltest.T4(1))
	w.must(w.InCluster(t.Context()))
	w.promiseSlots(slotsOn(nodecontract.EnforceNone, []int64{3, 0, 0}))
	_, err := w.StartUnconfigured(p)
	w.must(err)
	w.exposes(3, 0, 0)
	_, err = w.pods().Create(t.Context(), w.node.Pod("greedy", "nvidia.com/gpu-2gb", 2), metav1.CreateOptions{})
	w.must(err)
	w.eventually(func() error {
		if pod := w.get("greedy"); pod.Status.Phase != corev1.PodFailed || !strings.Contains(pod.Status.Message, "maximum request size for shared resources is 1; found 2") {
			return fmt.Errorf("it is %v", pod.Status)
		}
		return nil
	})
	w.slot("modest", "2gb")
	w.running("modest")
	w.reported([]int64{1, 0, 0})
}

func TestSlotsWithMPSLimitEachContainer(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	w := newWorld(t, nvmltest.T4(1))
	w.must(w.InCluster(t.Context()))
	uuid := nvmltest.T4(1).Devices[0].UUID
	w.promiseSlots(slotsOn(nodecontract.EnforceMPS, []int64{1, 0, 1}))
	agent, err := w.StartUnconfigured(p)
	w.must(err)
	w.waitForLog(agent, "nobody runs MPS daemons on the node", 1)
	w.startMPS(p)
	w.exposes(1, 0, 1)
	w.limited(uuid, "8192M")
	w.slot("small", "2gb")
	w.slot("large", "8gb")
	if got := w.running("small"); got["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] != "0=2048M" || got["mps"] != "100.0" {
		t.Errorf("the small pod has %v", got)
	}
	if got := w.running("large"); got["CUDA_MPS_PIPE_DIRECTORY"] == "" || got["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] != "" {
		t.Errorf("the large pod has %v", got)
	}
	w.promiseSlots(slotsOn(nodecontract.EnforceMPS, []int64{2, 0, 1}))
	w.exposes(2, 0, 1)
}
