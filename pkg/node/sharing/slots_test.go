package sharing_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/sharing"
)

func TestSlotsOfConfiguration(t *testing.T) {
	t.Parallel()
	devices := gpus(2)
	for i := range devices {
		devices[i].MemoryMiB = 15360
	}
	const good = "sharing: {memorySlots: {slots: [{sizeMiB: 2048, count: 3}, {sizeMiB: 4096, count: 2}], reserveMiB: 512}}"
	c, _, err := sharing.Read([]byte(good), true)
	if err != nil {
		t.Fatal(err)
	}
	resources, err := c.Resources(devices)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]int{}
	for _, r := range resources {
		for _, g := range r.GPUs {
			got[r.Name] = append(got[r.Name], g.Replicas)
		}
	}
	if diff := cmp.Diff(map[string][]int{"nvidia.com/gpu-2gb": {3, 3}, "nvidia.com/gpu-4gb": {2, 2}}, got); diff != "" {
		t.Error(diff)
	}
	if c.Sharing.Slots.Enforcement != "Watch" {
		t.Errorf("the enforcement is %s", c.Sharing.Slots.Enforcement)
	}
	for text, want := range map[string]string{
		"sharing: {memorySlots: {}}": "there are 0 sizes",
		"sharing: {memorySlots: {slots: [{sizeMiB: 4096, count: 1}, {sizeMiB: 2048}]}}":                                      "sizes ascend",
		"sharing: {memorySlots: {slots: [{sizeMiB: 2048, count: -1}]}}":                                                      "is to have -1 slots",
		"sharing: {memorySlots: {slots: [{sizeMiB: 2Gi, count: 1}]}}":                                                        "must be a whole number",
		"sharing: {memorySlots: {slots: [{sizeMiB: 2048, count: 1}], enforcement: All}}":                                     "can be None, Watch or MPS",
		"sharing: {memorySlots: {slots: [{sizeMiB: 2048, count: 1}]}, timeSlicing: {resources: [{name: gpu, replicas: 2}]}}": "either slots of memory or replicas",
		"sharing: {memorySlots: {slots: [{sizeMiB: 4096, count: 4}]}}":                                                       "GPU 0 (Tesla T4) has 15360 MiB of memory, and the slots need 16384 beside a reserve of 0",
	} {
		c, _, err := sharing.Read([]byte(text), true)
		if err == nil {
			_, err = c.Resources(devices)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
