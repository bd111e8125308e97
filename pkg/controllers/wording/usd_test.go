package wording

import "testing"

func TestUSD(t *testing.T) {
	t.Parallel()
	for micro, want := range map[int64]string{
		0: "0.000", 1: "0.000001", 526_000: "0.526", 1_052_000: "1.052", 3_912_000: "3.912", 12_000_000: "12.000", 1_234_567: "1.234567", 500_010: "0.50001",
	} {
		if got := USD(micro); got != want {
			t.Errorf("USD(%d) = %q, want %q", micro, got, want)
		}
	}
}
