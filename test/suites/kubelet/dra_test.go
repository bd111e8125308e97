package kubelet_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/kubelet"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

// draWorld is a node that was promised for the backend DRA, with the DeviceClass of the chart.
type draWorld struct {
	*world
	plugin gpus.Plugin
}

func newDRAWorld(t *testing.T, count int) *draWorld {
	t.Helper()
	p := build(t, gpus.Karve)
	w := &draWorld{newWorld(t, nvmltest.T4(count)), p}
	w.must(w.InCluster(t.Context()))
	w.plugin.Args = []string{"--metrics-address=127.0.0.1:0", "--state-dir=" + filepath.Join(w.node.Dir(), "state"), "--cdi-spec-dirs=" + w.specs()}
	shared := nodecontract.ResourceGPUShared
	_, err := w.node.Client().ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: nodecontract.DRADriver},
		Spec: resourcev1.DeviceClassSpec{
			ExtendedResourceName: &shared, Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: "device.driver == '" + nodecontract.DRADriver + "'"}}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
	for key, value := range map[string]string{
		nodecontract.BackendAnnotation: nodecontract.BackendDRA, nodecontract.ResourceAnnotation: nodecontract.ResourceGPUShared, nodecontract.ReplicasPerGPUAnnotation: "10",
	} {
		w.annotate(key, value)
	}
	return w
}

// specs is the folder for CDI specs of the node's containerd.
func (w *draWorld) specs() string { return filepath.Join(w.node.Dir(), "cdi") }

// run starts the agent, which does what its Node says.
func (w *draWorld) run() *kubelet.Process {
	w.t.Helper()
	process, err := w.StartUnconfigured(w.plugin)
	w.must(err)
	return process
}

// published waits until the slice of the node has as many devices that take pods, and returns it.
func (w *draWorld) published(free int) *resourcev1.ResourceSlice {
	w.t.Helper()
	var slice *resourcev1.ResourceSlice
	w.eventually(func() error {
		all, err := w.node.Client().ResourceV1().ResourceSlices().List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(all.Items) != 1 {
			return fmt.Errorf("there are %d slices", len(all.Items))
		}
		slice = &all.Items[0]
		got := 0
		for i := range slice.Spec.Devices {
			if len(slice.Spec.Devices[i].Taints) == 0 {
				got++
			}
		}
		if got != free {
			return fmt.Errorf("the slice has %d devices that take pods, want %d: %+v", got, free, slice.Spec)
		}
		return nil
	})
	return slice
}

func (w *draWorld) ask(names ...string) {
	w.t.Helper()
	for _, name := range names {
		_, err := w.node.Client().CoreV1().Pods(namespace).Create(w.t.Context(), kubelet.Pod(namespace, name, nodecontract.ResourceGPUShared, 1), metav1.CreateOptions{})
		w.must(err)
	}
}

// waits checks that the scheduler has found no place for a pod.
func (w *draWorld) waits(name string) {
	w.t.Helper()
	w.eventually(func() error {
		pod := w.get(name)
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("%s is %s: %v", name, pod.Status.Phase, pod.Status.Conditions)
	})
}

func TestCordonedGPUTakesNoPodsByDRA(t *testing.T) {
	t.Parallel()
	w := newDRAWorld(t, 2)
	w.run()
	slice := w.published(2)
	w.ask("first")
	first := w.running("first")["NVIDIA_VISIBLE_DEVICES"]
	// The scheduler takes the first device that fits.
	if first != nvmltest.T4(2).Devices[0].UUID || slice.Spec.Devices[0].Name != strings.ToLower(first) {
		t.Errorf("the pod has GPU %s, and the first of the slice is %s", first, slice.Spec.Devices[0].Name)
	}
	w.annotate(nodecontract.GPUCordonAnnotation, "0")
	w.published(1)
	w.ask("second")
	if got, want := w.running("second")["NVIDIA_VISIBLE_DEVICES"], nvmltest.T4(2).Devices[1].UUID; got != want {
		t.Errorf("second: NVIDIA_VISIBLE_DEVICES=%q, want %s", got, want)
	}
	w.annotate(nodecontract.GPUCordonAnnotation, "0,1")
	w.published(0)
	w.ask("third")
	w.waits("third")
	if pod := w.get("first"); pod.Status.Phase != corev1.PodRunning {
		t.Errorf("first is %s: a cordon moves no pod", pod.Status.Phase)
	}
	w.annotate(nodecontract.GPUCordonAnnotation, "1")
	w.published(1)
	w.running("third")
}
