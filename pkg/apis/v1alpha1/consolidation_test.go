package v1alpha1

import (
	"testing"
	"time"
)

func TestSavingPerMoveHasMicroDollarPrecision(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"": 50_000, "0.02": 20_000, "0": 0, "1": 1_000_000, "0.000001": 1, "999999.999999": 999_999_999_999, "12.5": 12_500_000} {
		if got, err := (Consolidation{MinSavingPerMove: text}).SavingPerMove(); err != nil || got != want {
			t.Errorf("%q is %d (%v), want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"x", "-1", "1.0000001", "1e3", "0.1.2", ".", "+1"} {
		if got, err := (Consolidation{MinSavingPerMove: text}).SavingPerMove(); err == nil {
			t.Errorf("%q is %d, want an error", text, got)
		}
	}
}

func TestNearEnoughDefaultsToFourPercent(t *testing.T) {
	t.Parallel()
	for want, c := range map[int]Consolidation{4: {}, 0: {NearEnoughPercent: new(int32(0))}, 10: {NearEnoughPercent: new(int32(10))}} {
		if got := c.NearEnough(); got != want {
			t.Errorf("near enough are %d %%, want %d", got, want)
		}
	}
}

func TestSettleDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"": 5 * time.Minute, "30s": 30 * time.Second, "1h30m": 90 * time.Minute} {
		if got, err := (Consolidation{SettleAfter: text}).SettleDuration(); err != nil || got != want {
			t.Errorf("%q is %s (%v), want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"x", "-1s", "5"} {
		if got, err := (Consolidation{SettleAfter: text}).SettleDuration(); err == nil {
			t.Errorf("%q is %s, want an error", text, got)
		}
	}
}

func TestMovesPodsByDefault(t *testing.T) {
	t.Parallel()
	for policy, want := range map[ConsolidationPolicy]bool{"": true, ConsolidateWhenCheaper: true, ConsolidateWhenIdle: false} {
		if got := (Consolidation{Policy: policy}).MovesPods(); got != want {
			t.Errorf("%q moves pods: %t, want %t", policy, got, want)
		}
	}
}
