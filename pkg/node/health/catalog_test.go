package health_test

import (
	"strings"
	"testing"

	"karve.sh/karve/pkg/node/health"
)

// The numbers are facts of two sources of NVIDIA that do not depend on each other: the immediate actions of the XID catalog, and the names in nverror.h of
// the open kernel modules 595.45.04.

func TestClassesFollowActionsOfNVIDIAsCatalog(t *testing.T) {
	t.Parallel()
	// different has the XIDs whose class is not that of the action. The comment of the table has the reasons.
	different := map[int]health.Class{43: health.ClassApplication, 63: health.ClassReset, 94: health.ClassReset, 109: health.ClassApplication}
	for _, c := range []struct {
		action string
		class  health.Class
		xids   []int
	}{
		{"IGNORE", health.ClassInformation, []int{37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161}},
		{"RESTART_APP", health.ClassApplication, []int{
			8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105,
			126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 139,
		}},
		{"RESET_GPU", health.ClassReset, []int{46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}},
		{"WORKFLOW_XID_48", health.ClassReset, []int{48}},
		{"WORKFLOW_XID_45", health.ClassApplication, []int{45}},
		{"RESTART_BM, RESTART_VM, CHECK_MECHANICALS, WORKFLOW_NVLINK_ERR", health.ClassReplace, []int{54, 74, 79, 151}},
		{"WORKFLOW_NVLINK5_ERR, CHECK_UVM", health.ClassUnknown, []int{144, 145, 146, 147, 148, 149, 150, 159}},
		{"XID_154, UPDATE_SWFW", health.ClassInformation, []int{78, 154}},
	} {
		for _, xid := range c.xids {
			want := c.class
			if class, ok := different[xid]; ok {
				want = class
			}
			if got := health.Look(xid); got.Class != want || got.Means == "" {
				t.Errorf("%s: XID %d is %+v, want %s", c.action, xid, got, want)
			}
		}
	}
}

func TestEveryNumberOfNVIDIAsSourcesHasMeaning(t *testing.T) {
	t.Parallel()
	for xid := 1; xid <= 176; xid++ {
		x := health.Look(xid)
		if strings.Contains(x.Means, "this agent") || x.Means == "" {
			t.Errorf("XID %d: %+v", xid, x)
		}
	}
	if x := health.Look(177); x.Class != health.ClassUnknown || !strings.Contains(x.Means, "this agent") {
		t.Errorf("XID 177: %+v", x)
	}
	// Engines that several XIDs are about, by a word of their meaning.
	for word, xids := range map[string][]int{
		"copy engine":             {39, 40, 41, 70, 71, 72, 75, 76, 77, 85, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135}, // ROBUST_CHANNEL_CE*_ERROR
		"video decoder":           {68, 83, 84, 88, 89, 96, 97, 98},                                                           // ROBUST_CHANNEL_NVDEC*_ERROR
		"JPEG engine":             {82, 99, 100, 101, 102, 103, 104, 105},                                                     // ROBUST_CHANNEL_NVJPG*_ERROR
		"optical flow":            {86, 139},                                                                                  // ROBUST_CHANNEL_OFA*_ERROR
		"NVLink":                  {74, 108, 136, 137, 144, 145, 146, 147, 148, 149, 150, 155, 166, 170},                      // NVLINK_*, ALI_TRAINING_FAIL
		"power smoothing":         {162, 163, 164, 165},                                                                       // ISINK_*
		"micro-controller halted": {62, 169},                                                                                  // PMU_HALT_ERROR, SEC2_HALT_ERROR
		"uncorrectable":           {48, 94, 95, 171, 172},                                                                     // *_ECC_DBE, *CONTAINED_ERROR, UNCORRECTABLE_*
		"between CPU and GPU":     {121, 159, 173},                                                                            // C2C_*, *_CHI_*
		"retired":                 {156, 157, 160, 161},                                                                       // *_RETIREMENT_*
	} {
		for _, xid := range xids {
			if x := health.Look(xid); !strings.Contains(x.Means, word) {
				t.Errorf("XID %d is %q, want %q in it", xid, x.Means, word)
			}
		}
	}
}
