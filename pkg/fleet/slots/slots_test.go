package slots

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/records"
)

// t4 has room for slots of 14 GiB.
const t4 = 14 << 10

func kinds() nodecontract.Slots {
	return nodecontract.Slots{SizesMiB: []int64{2048, 4096, 8192}, ReserveMiB: 512, Enforcement: nodecontract.EnforceWatch}
}

func gpu(held, free []int64) records.GPUSlots {
	return records.GPUSlots{CapacityMiB: t4, Held: held, Free: free}
}

func TestLayout(t *testing.T) {
	t.Parallel()
	no := []int64{0, 0, 0}
	for name, c := range map[string]struct {
		gpus      []records.GPUSlots
		seated    []int64
		need      [][]int64
		want      [][]int64
		withdraws bool
	}{
		"nothing is needed":               {[]records.GPUSlots{gpu(no, []int64{3, 0, 0})}, no, [][]int64{no}, [][]int64{{3, 0, 0}}, false},
		"there is a free slot":            {[]records.GPUSlots{gpu(no, []int64{1, 0, 0}), gpu(no, no)}, no, [][]int64{no, {1, 0, 0}}, [][]int64{{1, 0, 0}, {0, 0, 0}}, false},
		"a slot is added":                 {[]records.GPUSlots{gpu([]int64{1, 0, 0}, no)}, no, [][]int64{{0, 1, 0}}, [][]int64{{1, 1, 0}}, false},
		"where the plan has the pod":      {[]records.GPUSlots{gpu(no, no), gpu(no, no)}, no, [][]int64{no, {0, 1, 0}}, [][]int64{{0, 0, 0}, {0, 1, 0}}, false},
		"where least is left otherwise":   {[]records.GPUSlots{gpu(no, no), gpu([]int64{0, 0, 1}, []int64{1, 0, 0})}, no, [][]int64{{1, 0, 0}, {1, 0, 0}}, [][]int64{{1, 0, 0}, {1, 0, 1}}, false},
		"free slots make way":             {[]records.GPUSlots{gpu(no, []int64{7, 0, 0})}, no, [][]int64{{0, 0, 1}}, [][]int64{{3, 0, 1}}, true},
		"held slots do not":               {[]records.GPUSlots{gpu([]int64{3, 0, 0}, []int64{4, 0, 0})}, no, [][]int64{{0, 0, 1}}, [][]int64{{3, 0, 1}}, true},
		"nor those that pods will hold":   {[]records.GPUSlots{gpu(no, []int64{3, 2, 0})}, []int64{2, 0, 0}, [][]int64{{0, 0, 1}}, [][]int64{{3, 0, 1}}, true},
		"a pod's slot that was not there": {[]records.GPUSlots{gpu(no, no)}, []int64{1, 0, 0}, [][]int64{no}, [][]int64{{1, 0, 0}}, false},
		"a slot for one pod on another GPU is in the way of another": {
			[]records.GPUSlots{gpu([]int64{3, 0, 0}, []int64{0, 1, 0}), gpu([]int64{0, 0, 1}, no)}, no, [][]int64{{0, 0, 1}, {0, 1, 0}}, [][]int64{{3, 0, 1}, {0, 1, 1}}, true,
		},
		"more than a GPU has": {[]records.GPUSlots{{CapacityMiB: 8192, Held: no, Free: []int64{0, 1, 1}}}, no, [][]int64{no}, [][]int64{{0, 0, 1}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, withdraws := layout(kinds(), c.gpus, c.seated, c.need)
			if diff := cmp.Diff(c.want, got); diff != "" || withdraws != c.withdraws {
				t.Errorf("withdraws: %t\n%s", withdraws, diff)
			}
		})
	}
}

// TestLayoutHasRoomForAllWhoFit draws GPUs and pods that fit on them, and checks that all of them get slots within the memory, that held slots stay, that a layout which
// withdraws nothing only adds, and that a second look changes nothing.
func TestLayoutHasRoomForAllWhoFit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		slots := kinds()
		var gpus []records.GPUSlots
		var need [][]int64
		seated := make([]int64, 3)
		for range rapid.IntRange(1, 4).Draw(t, "GPUs") {
			g := records.GPUSlots{CapacityMiB: rapid.Int64Range(0, 40<<10).Draw(t, "memory"), Held: make([]int64, 3), Free: make([]int64, 3)}
			left := g.CapacityMiB
			fill := func(what string, of []int64, left *int64) {
				for s, mib := range slots.SizesMiB {
					of[s] = rapid.Int64Range(0, *left/mib).Draw(t, what)
					*left -= of[s] * mib
				}
			}
			fill("held", g.Held, &left)
			rest := left
			fill("free", g.Free, &rest)
			needed := make([]int64, 3)
			fill("needed", needed, &left) // Free slots are in the way of pods, and held ones are not.
			gpus, need = append(gpus, g), append(need, needed)
		}
		got, withdraws := layout(slots, gpus, seated, need)
		spare := make([]int64, 3)
		for i, g := range gpus {
			if used := slots.UsedMiB(got[i]); used > g.CapacityMiB {
				t.Fatalf("GPU %d is to have %d MiB of slots, and has %d: %v", i, used, g.CapacityMiB, got)
			}
			for s := range slots.SizesMiB {
				free := got[i][s] - g.Held[s]
				if free < 0 || !withdraws && free < g.Free[s] {
					t.Fatalf("GPU %d has %d of size %d, of which pods hold %d and %d were free; withdraws: %t", i, got[i][s], s, g.Held[s], g.Free[s], withdraws)
				}
				spare[s] += free - need[i][s]
			}
		}
		if slices.Min(spare) < 0 {
			t.Fatalf("pods lack slots: %v of %v for %v", got, gpus, need)
		}
		for i := range gpus {
			for s := range slots.SizesMiB {
				gpus[i].Free[s] = got[i][s] - gpus[i].Held[s]
			}
		}
		if again, withdraws := layout(slots, gpus, seated, need); withdraws || !cmp.Equal(again, got) {
			t.Fatalf("a second look changes %v to %v", got, again)
		}
	})
}

func TestLayoutKeepsSlotsOfPodsWhoseGPUIsUnknown(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		slots := kinds()
		g := func() records.GPUSlots {
			return gpu(make([]int64, 3), []int64{rapid.Int64Range(0, 3).Draw(t, "2gb"), rapid.Int64Range(0, 2).Draw(t, "4gb"), 0})
		}
		gpus := []records.GPUSlots{g(), g()}
		seated := []int64{rapid.Int64Range(0, gpus[0].Free[0]+gpus[1].Free[0]).Draw(t, "seated"), 0, 0}
		need := [][]int64{{0, 0, 0}, {0, 0, 0}}
		for i := range gpus {
			if t4-min(seated[0], gpus[i].Free[0])*2048 >= 8192 {
				need[i][2] = 1 // As the planner sees it.
			}
		}
		got, _ := layout(slots, gpus, seated, need)
		for i := range gpus {
			if got[i][0] < min(seated[0], gpus[i].Free[0]) || got[i][2] < need[i][2] {
				t.Fatal(fmt.Sprint(got, " of ", gpus, " for ", need, " and ", seated))
			}
		}
	})
}
