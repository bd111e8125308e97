package v1alpha1_test

import (
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

func TestUnusedDuration(t *testing.T) {
	t.Parallel()
	for unusedAfter, want := range map[string]struct {
		d      time.Duration
		never  bool
		failed bool
	}{
		"2h": {d: 2 * time.Hour}, "": {d: time.Hour}, "0s": {}, "Never": {never: true}, "never": {failed: true}, "-1h": {failed: true}, "1d": {failed: true},
	} {
		d, never, err := v1alpha1.Consolidation{UnusedAfter: unusedAfter}.UnusedDuration()
		if d != want.d || never != want.never || (err != nil) != want.failed {
			t.Errorf("%q: %s, %t, %v", unusedAfter, d, never, err)
		}
	}
}

func TestEvictWhenUnused(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		"10m": 10 * time.Minute, "2h": 2 * time.Hour, "1h30m": 90 * time.Minute, "720h": 720 * time.Hour,
		"9m59s": 0, "720h1s": 0, "-2h": 0, "": 0, "2": 0, "1d": 0, "true": 0, "Never": 0, strings.Repeat("9", 200) + "h": 0,
	} {
		after, ok, err := v1alpha1.EvictWhenUnused(map[string]string{v1alpha1.EvictWhenUnusedAnnotation: value})
		if !ok || after != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %s, %t, %v", value, after, ok, err)
		}
		if err != nil && len(err.Error()) > 200 {
			t.Errorf("%d bytes of complaint", len(err.Error()))
		}
	}
	if after, ok, err := v1alpha1.EvictWhenUnused(nil); after != 0 || ok || err != nil {
		t.Errorf("a pod that says nothing: %s, %t, %v", after, ok, err)
	}
}
