package node

import "testing"

// TestAgentServesConfiguredSlots runs the agent alone, on a node that Karve did not launch. Its file is all that says which slots there are.
func TestAgentServesConfiguredSlots(t *testing.T) {
	t.Parallel()
	m := start(t, func(m *machine) {
		m.configure("sharing: {memorySlots: {slots: [{sizeMiB: 2048, count: 3}, {sizeMiB: 4096, count: 2}], reserveMiB: 512}}")
	})
	has := func(small, large int) func() bool {
		return func() bool {
			return m.kubelet.Allocatable("nvidia.com/gpu-2gb") == small && m.kubelet.Allocatable("nvidia.com/gpu-4gb") == large
		}
	}
	m.eventually("the slots of two GPUs", has(6, 4))
	grant, err := m.kubelet.Admit(t.Context(), "pod", "nvidia.com/gpu-4gb", 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := grant.Response.GetEnvs()["ALIYUN_COM_GPU_MEM_CONTAINER"]; got != "4" {
		t.Errorf("the container is told %q GiB", got)
	}
	m.configure("sharing: {memorySlots: {slots: [{sizeMiB: 2048, count: 7}], reserveMiB: 512}}")
	m.eventually("other slots, and the one that the pod holds", func() bool { return has(5+7, 1)() })
	m.kubelet.Delete("pod")
	m.eventually("other slots alone", func() bool { return m.kubelet.Allocatable("nvidia.com/gpu-2gb") == 14 })
}
