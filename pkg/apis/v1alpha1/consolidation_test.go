package v1alpha1

import "testing"

func TestRestartCostHasMicroDollarPrecision(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"": 50_000, "0.02": 20_000, "0": 0, "1": 1_000_000, "0.000001": 1, "999999.999999": 999_999_999_999, "12.5": 12_500_000} {
		if got, err := (Consolidation{RestartCost: text}).RestartMicroUSD(); err != nil || got != want {
			t.Errorf("%q is %d (%v), want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"x", "-1", "1.0000001", "1e3", "0.1.2", ".", "+1"} {
		if got, err := (Consolidation{RestartCost: text}).RestartMicroUSD(); err == nil {
			t.Errorf("%q is %d, want an error", text, got)
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

func TestFormatUSD(t *testing.T) {
	t.Parallel()
	for micro, want := range map[int64]string{
		0: "0.000", 1: "0.000001", 526_000: "0.526", 1_052_000: "1.052", 3_912_000: "3.912", 12_000_000: "12.000", 1_234_567: "1.234567", 500_010: "0.50001",
	} {
		if got := FormatUSD(micro); got != want {
			t.Errorf("FormatUSD(%d) = %q, want %q", micro, got, want)
		}
	}
}
