package kubelet_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

// promise writes to the Node what Karpenter would.
func (w *world) promise(resource string, perGPU int, mig nodecontract.MIG) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		nodecontract.ResourceAnnotation: resource, nodecontract.ReplicasPerGPUAnnotation: fmt.Sprint(perGPU), nodecontract.MIGAnnotation: mig.String(),
	}}})
	w.must(err)
	_, err = w.node.Client().CoreV1().Nodes().Patch(w.t.Context(), w.node.Name(), types.MergePatchType, patch, metav1.PatchOptions{})
	w.must(err)
}

// sharingReady waits until the Node says why its GPUs are shared, or are not.
func (w *world) sharingReady(reason, words string) {
	w.t.Helper()
	w.eventually(func() error {
		node, err := w.node.Client().CoreV1().Nodes().Get(w.t.Context(), w.node.Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == nodecontract.SharingCondition && c.Reason == reason && strings.Contains(c.Message, words) {
				return nil
			}
		}
		return fmt.Errorf("the Node does not say %s with %q: %v", reason, words, node.Status.Conditions)
	})
}

// want creates a pod that requests one device of a resource.
func (w *world) want(name, resource string) {
	w.t.Helper()
	_, err := w.pods().Create(w.t.Context(), w.node.Pod(name, resource, 1), metav1.CreateOptions{})
	w.must(err)
}

// divide runs what divides the GPUs until it ends.
func (w *world) divide(p gpus.Plugin) {
	w.t.Helper()
	process, err := w.StartMIG(p)
	w.must(err)
	w.ends(process)
}

func (w *world) ends(process *kubelet.Process) {
	w.t.Helper()
	select {
	case <-process.Done():
	case <-time.After(time.Minute):
		w.t.Fatal("dividing the GPUs does not end")
	}
}

func TestPodsHaveTheirOwnMIGInstances(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	w := newWorld(t, nvmltest.H100(2))
	const small = "nvidia.com/mig-1g.10gb"
	w.must(w.InCluster(t.Context()))
	w.promise(small, 7, nodecontract.MIG{Profile: "1g.10gb", Count: 7, Naming: nodecontract.MIGMixed})

	// Something still uses a GPU. It is divided once that has ended.
	w.must(w.Change(func(s *nvmltest.State) { s.Devices[1].Without = []string{"idle"} }))
	process, err := w.StartMIG(p)
	w.must(err)
	w.sharingReady(nodecontract.ReasonMIGModePending, "the driver does not turn MIG on while something has the GPU open")
	w.must(w.Change(func(s *nvmltest.State) { s.Devices[1].Without = nil }))
	w.ends(process)

	agent := w.start(p)
	w.has(small, 14)
	w.sharingReady(nodecontract.ReasonApplied, "")
	seen := map[string]bool{}
	for i := range 14 {
		w.want(fmt.Sprint("small-", i), small)
	}
	for i := range 14 {
		instance := w.running(fmt.Sprint("small-", i))["NVIDIA_VISIBLE_DEVICES"]
		if !strings.HasPrefix(instance, "MIG-") || seen[instance] {
			t.Errorf("small-%d has the instance %q, and others have %v", i, instance, seen)
		}
		seen[instance] = true
	}
	w.want("fifteenth", small)
	w.eventually(func() error {
		for _, c := range w.get("fifteenth").Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("the fifteenth pod is %v", w.get("fifteenth").Status)
	})

	// What runs again while pods hold instances changes nothing, whatever the Node says.
	before := w.Instances(0)
	w.divide(p)
	w.promise("nvidia.com/mig-3g.40gb", 2, nodecontract.MIG{Profile: "3g.40gb", Count: 2, Naming: nodecontract.MIGMixed})
	w.divide(p)
	if after := w.Instances(0); after != before {
		t.Errorf("the instances changed under pods: %s, and before %s", after, before)
	}
	w.sharingReady(nodecontract.ReasonRefused, "7 instances 1g.10gb, and 2 MIG instances 3g.40gb were promised")
	w.promise(small, 7, nodecontract.MIG{Profile: "1g.10gb", Count: 7, Naming: nodecontract.MIGMixed})
	w.sharingReady(nodecontract.ReasonApplied, "")

	// An agent that starts anew, and a kubelet, know the instances of pods.
	p.Stop(agent)
	w.divide(p)
	w.start(p)
	w.must(w.node.RestartKubelet(t.Context()))
	w.has(small, 14)
	for i := range 14 {
		if status := w.get(fmt.Sprint("small-", i)).Status; status.Phase != corev1.PodRunning {
			t.Errorf("small-%d is %s: %s", i, status.Phase, status.Message)
		}
	}

	// A fault of one instance is its own.
	w.must(w.Change(func(s *nvmltest.State) {
		s.XIDs = append(s.XIDs, nvmltest.XID{Device: 0, XID: 94, On: &nvmltest.OnInstance{GPU: 9}})
	}))
	w.has(small, 13)
}

func TestPodsHaveInstancesOfTheirProfile(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	w := newWorld(t, nvmltest.H100(3))
	const small, middle, large = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb"
	w.must(w.InCluster(t.Context()))
	w.promise(small, 5, nodecontract.MIGOf([]nodecontract.MIGGroup{
		{GPUs: 2, Instances: []nodecontract.MIGInstances{{Profile: "1g.10gb", Count: 3}, {Profile: "2g.20gb", Count: 2}}},
		{GPUs: 1, Instances: []nodecontract.MIGInstances{{Profile: "3g.40gb", Count: 2}}},
	}, 1))
	w.divide(p)
	agent := w.start(p)
	want := map[string]int{small: 6, middle: 4, large: 2}
	for resource, n := range want {
		w.has(resource, n)
	}
	w.sharingReady(nodecontract.ReasonApplied, "")
	seen := map[string]bool{}
	for resource, n := range want {
		for i := range n {
			w.want(fmt.Sprint(strings.TrimPrefix(resource, "nvidia.com/mig-"), "-", i), resource)
		}
	}
	for resource, n := range want {
		for i := range n {
			name := fmt.Sprint(strings.TrimPrefix(resource, "nvidia.com/mig-"), "-", i)
			instance := w.running(name)["NVIDIA_VISIBLE_DEVICES"]
			if !strings.HasPrefix(instance, "MIG-") || seen[instance] {
				t.Errorf("%s has the instance %q, and others have %v", name, instance, seen)
			}
			seen[instance] = true
		}
	}
	before := w.Instances(0) + w.Instances(1) + w.Instances(2)
	p.Stop(agent)
	w.divide(p)
	w.start(p)
	if after := w.Instances(0) + w.Instances(1) + w.Instances(2); after != before {
		t.Errorf("the instances changed under pods: %s, and before %s", after, before)
	}
	for resource, n := range want {
		w.has(resource, n)
	}
}

func TestPodsTakeTurnsOnMIGInstances(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	w := newWorld(t, nvmltest.H100(1))
	const shared = "nvidia.com/gpu.shared"
	w.must(w.InCluster(t.Context()))
	w.promise(shared, 6, nodecontract.MIG{Profile: "3g.40gb", Count: 2, Naming: nodecontract.MIGSingle})
	w.divide(p)
	w.start(p)
	w.has(shared, 6)
	on := map[string]int{}
	for i := range 6 {
		w.want(fmt.Sprint("shared-", i), shared)
	}
	for i := range 6 {
		on[w.running(fmt.Sprint("shared-", i))["NVIDIA_VISIBLE_DEVICES"]]++
	}
	counts := []int{}
	for instance, n := range on {
		if !strings.HasPrefix(instance, "MIG-") {
			t.Errorf("pods see %q", instance)
		}
		counts = append(counts, n)
	}
	if !slices.Equal(counts, []int{3, 3}) {
		t.Errorf("pods are on instances as %v", on)
	}
	devices, err := kubelet.Devices(t.Context(), w.lister, shared)
	w.must(err)
	for pod, ids := range devices {
		if len(ids) != 1 || !strings.HasPrefix(ids[0], "MIG-") || !strings.Contains(ids[0], "::") {
			t.Errorf("%s holds %v", pod, ids)
		}
	}
}
