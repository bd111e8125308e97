package health_test

import (
	"testing"

	"karve.sh/karve/pkg/node/health"
)

// The test vectors of NVIDIA's device plugin v0.20.0, internal/rm/health_test.go. docs/node.md lists the differences that users notice.

// ignoredByNVIDIA are the XIDs of application errors, which NVIDIA's plugin ignores unless they are enabled.
var ignoredByNVIDIA = []int{13, 31, 43, 45, 68, 109}

func TestXIDListsParseLikeNVIDIA(t *testing.T) {
	t.Parallel()
	for input, want := range map[string][]int{ // NVIDIA's vectors have 67 and 68, which Karve ignores by default.
		"": nil, ",": nil, "not-an-int": nil, "-79": nil, "79": {79}, "79  ": {79}, "79,": {79}, ",79": {79}, "79,74": {74, 79}, "79,not-an-int,74": {74, 79},
	} {
		p, _ := health.ParsePolicy(input, "")
		for _, xid := range []int{74, 79} {
			disabled := false
			for _, w := range want {
				disabled = disabled || w == xid
			}
			if p.Counts(xid) == disabled {
				t.Errorf("%q: XID %d counts: %t", input, xid, !disabled)
			}
		}
	}
}

func TestXIDsAreDisabledLikeNVIDIA(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		disable, enable string
		off             bool
		disabled        bool // of those that are ignored by default
		others          map[int]bool
	}{
		"empty envvars are default disabled": {"", "", false, true, map[int]bool{555: false}},
		"disabled is all":                    {"all", "", true, true, map[int]bool{555: true}},
		"disabled is xids":                   {"xids", "", true, true, map[int]bool{555: true}},
		"enabled is all":                     {"", "all", false, false, map[int]bool{555: false}},
		"enabled overrides disabled":         {"11", "11", false, true, map[int]bool{11: false, 555: false}},
		// NVIDIA's plugin does not look at the XID: all are disabled, so it watches nothing, although its comment says that it does.
		"enabled overrides disabled all": {"all", "79", false, true, map[int]bool{79: false, 555: true}},
	} {
		p, _ := health.ParsePolicy(c.disable, c.enable)
		if p.Off() != c.off {
			t.Errorf("%s: off is %t", name, p.Off())
		}
		for _, xid := range ignoredByNVIDIA {
			c.others[xid] = c.disabled
		}
		for xid, disabled := range c.others {
			if p.Counts(xid) == disabled {
				t.Errorf("%s: XID %d is disabled: %t, want %t", name, xid, !disabled, disabled)
			}
		}
	}
}
