package catalog

import "testing"

func TestUsableMemoryIsLessThanAdvertised(t *testing.T) {
	t.Parallel()
	if got := (GPU{Name: "t4", Count: 1, MemoryMiB: 16384}).UsableMiB(); got != 15079 {
		t.Errorf("a T4 has %d MiB, drivers report 15079", got)
	}
	if got := (GPU{Name: "t4", MemoryMiB: 4096}).UsableMiB(); got != 4096 {
		t.Errorf("a part of a T4 that nothing is told of has %d MiB, want what the cloud says", got)
	}
	for m, usable := range usableMiB {
		if usable >= m.memoryMiB || usable < m.memoryMiB*9/10 {
			t.Errorf("%s: %d of %d MiB", m.name, usable, m.memoryMiB)
		}
	}
}
