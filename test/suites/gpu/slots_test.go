//go:build cgo && gpu

package gpu_test

import (
	"fmt"
	"net/http"
	"testing"

	"karve.sh/karve/pkg/nodecontract"
)

// promise serves a Node to the agent, whose annotation promises slots, and returns the environment in which the agent finds it.
func (w *world) promise(s nodecontract.Slots) []string {
	return w.serve(map[string]string{nodecontract.SlotsAnnotation: s.String()}, http.NotFoundHandler())
}

// slots returns three slots of a quarter of a GPU's memory and one of an eighth, on each GPU.
func (w *world) slots(enforcement string) nodecontract.Slots {
	eighth := w.devices[0].MemoryMiB / 8
	s := nodecontract.Slots{SizesMiB: []int64{eighth, 2 * eighth}, Enforcement: enforcement}
	for range w.devices {
		s.GPUs = append(s.GPUs, []int64{1, 3})
	}
	return s
}

// grant allocates a slot of a size on the first GPU, and returns the environment of its container.
func (w *world) grant(s nodecontract.Slots, size int) map[string]string {
	w.t.Helper()
	name := nodecontract.SlotResource(s.SizesMiB[size])
	w.eventually("there are slots", func() bool { return w.kubelet.Allocatable(name) == int(s.Wanted()[size]) })
	granted, err := w.kubelet.Admit(w.t.Context(), fmt.Sprint("pod-", size), name, 1)
	w.must(err)
	return granted.Response.GetEnvs()
}

func TestMemorySlots(t *testing.T) {
	w := newWorld(t)
	w.whole(3)
	s := w.slots(nodecontract.EnforceNone)
	w.environment = w.promise(s)
	w.run()
	for size, mib := range s.SizesMiB {
		env := w.grant(s, size)
		if got, want := env["CUDA_DEVICE_MEMORY_LIMIT"], fmt.Sprintf("%dm", mib); got != want {
			t.Errorf("a container has the limit %q, want %s", got, want)
		}
		if p := w.use(env["NVIDIA_VISIBLE_DEVICES"], fmt.Sprint(mib/2)); p.problem != "" {
			t.Errorf("half of the memory of a slot: %s", p.problem)
		} else if err := p.end(); err != nil {
			t.Error(err)
		}
	}
}

func TestMemorySlotsWithMPS(t *testing.T) {
	w := newWorld(t)
	w.whole(7)
	s := w.slots(nodecontract.EnforceMPS)
	w.environment = w.promise(s)
	w.run()
	w.daemons()
	for size, mib := range s.SizesMiB {
		env := w.grant(s, size)
		uuid := env["NVIDIA_VISIBLE_DEVICES"]
		client := []string{w.pipes(uuid)}
		if limit := env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]; limit != "" {
			client = append(client, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+limit)
		}
		if p := w.use(uuid, "all", client...); p.problem != "" || p.mib == 0 || p.mib > int(mib) {
			t.Errorf("a process in a slot of %d MiB has %d, %q", mib, p.mib, p.problem)
		} else if err := p.end(); err != nil {
			t.Error(err)
		}
	}
}
