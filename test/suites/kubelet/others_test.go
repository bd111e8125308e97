package kubelet_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

const shared = gpus.Resource + ".shared"

// configured returns a plugin that reads its own configuration file.
func (w *world) configured(p gpus.Plugin, text string) gpus.Plugin {
	w.t.Helper()
	file := filepath.Join(w.node.Dir(), p.Name+".yaml")
	w.must(os.WriteFile(file, []byte(text), 0o600))
	p.Args = append(slices.Clone(p.Args), "--config-file="+file)
	return p
}

// has waits until both the kubelet and the API server report want of a resource.
func (w *world) has(resource string, want int) {
	w.t.Helper()
	w.eventually(func() error {
		got, err := kubelet.Allocatable(w.t.Context(), w.lister, resource)
		if err != nil {
			return err
		}
		node, err := w.node.Client().CoreV1().Nodes().Get(w.t.Context(), w.node.Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if q := node.Status.Allocatable[corev1.ResourceName(resource)]; got != want || q.Value() != int64(want) {
			return fmt.Errorf("the kubelet has %d %s, and the Node %s, want %d", got, resource, q.String(), want)
		}
		return nil
	})
}

func TestAgentYieldsToNVIDIAPluginWithOtherResource(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	nvidia, karve := build(t, gpus.NVIDIA), build(t, gpus.Karve)
	w := newWorld(t, nvmltest.T4(2))
	nvidia = w.configured(nvidia, "version: v1\n")
	karve = w.configured(karve, "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 10}]}}\n")

	other := w.start(nvidia)
	w.has(gpus.Resource, 2)
	w.start(karve)
	time.Sleep(5 * time.Second)
	w.has(shared, 0)
	nvidia.Stop(other)
	w.has(shared, 20)

	// The other plugin comes back while a pod has a replica, and the pod keeps it.
	pod, err := w.pods().Create(t.Context(), w.node.Pod("sharing", shared, 1), metav1.CreateOptions{})
	w.must(err)
	w.running(pod.Name)
	other = w.start(nvidia)
	began := time.Now()
	w.has(shared, 1)
	t.Logf("stood back after %s", time.Since(began).Round(time.Second))
	w.has(gpus.Resource, 2)
	w.must(w.node.RestartKubelet(t.Context()))
	w.has(shared, 1)
	if now := w.get(pod.Name); now.UID != pod.UID || now.Status.Phase != corev1.PodRunning {
		t.Errorf("the pod is %s: %s", now.Status.Phase, now.Status.Message)
	}
	nvidia.Stop(other)
	w.has(shared, 20)
}

func TestContainerdResolvesCDIDeviceNames(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	p := build(t, gpus.Karve)
	w := newWorld(t, nvmltest.T4(1))
	specs := filepath.Join(w.node.Dir(), "cdi")
	p = w.configured(p, "version: v1\nflags: {plugin: {deviceListStrategy: cdi-cri}}\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n")
	p.Args = append(p.Args, "--cdi-spec-dirs="+specs)
	w.start(p)
	time.Sleep(3 * time.Second)
	w.has(gpus.Resource, 0)

	uuid := nvmltest.T4(1).Devices[0].UUID
	spec := fmt.Sprintf("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: %s\n  containerEdits: {env: [CDI_GAVE=%s]}\n", uuid, uuid)
	w.must(os.MkdirAll(specs, 0o755))
	w.must(os.WriteFile(filepath.Join(specs, "nvidia.yaml"), []byte(spec), 0o600))
	w.allocatable(2)
	for _, name := range []string{"a", "b"} {
		w.create(name)
		if got := w.running(name); got["CDI_GAVE"] != uuid || got["NVIDIA_VISIBLE_DEVICES"] != "" {
			t.Errorf("%s: CDI_GAVE=%q, NVIDIA_VISIBLE_DEVICES=%q", name, got["CDI_GAVE"], got["NVIDIA_VISIBLE_DEVICES"])
		}
	}
}
