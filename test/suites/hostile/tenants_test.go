package hostile_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"karve.sh/karve/test/harness/hostile"
)

// firstSeed returns KARVE_HOSTILE_SEED, or 1.
func firstSeed() uint64 { return numberOr("KARVE_HOSTILE_SEED", 1) }

// clusters returns how many clusters a test generates: a tenth of KARVE_HOSTILE, or 100, or half as many in short tests.
func clusters() uint64 {
	if testing.Short() {
		return numberOr("KARVE_HOSTILE", 500) / 10
	}
	return numberOr("KARVE_HOSTILE", 1000) / 10
}

func numberOr(variable string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(variable), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// validator starts a validator that answers within a time, or counts as rejecting an object.
func validator(t *testing.T, answersWithin time.Duration) *hostile.Validator {
	t.Helper()
	v, err := hostile.NewValidator(answersWithin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.Close() })
	return v
}

// TestNoTextOfATenantStopsOrSlowsOthers replaces one part of an object of a tenant with something bad that the API server accepts. All others must have the same
// places, and a round must not take longer. It does not run in parallel, because it measures CPU time and memory.
func TestNoTextOfATenantStopsOrSlowsOthers(t *testing.T) {
	v, tried, rejected := validator(t, 2*time.Second), map[string]int{}, 0
	for seed := firstSeed(); seed < firstSeed()+clusters(); seed++ {
		a, n := draw(v, seed)
		rejected += n
		tried[fmt.Sprintf("%T", a.objects[a.bad])]++
		if harm := a.harm(t.Context(), v); harm != nil {
			t.Logf("%s\n%.500q", a, harm)
			if !errors.Is(harm, errEndless) { // What does not end goes on in the background, and would be counted.
				a, harm = a.smallest(t.Context(), v, harm, time.Now().Add(time.Minute))
			}
			t.Fatalf("%s\n%.5000v", a, harm)
		}
	}
	t.Logf("bad objects: %v; the API server rejected %d others", tried, rejected)
}
