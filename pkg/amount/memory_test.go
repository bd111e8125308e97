package amount_test

import (
	"strings"
	"testing"

	"karve.sh/karve/pkg/amount"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "1Mi": 1 << 20, "1048576": 1 << 20, "8Gi": 8 << 30, "8000M": 8_000_000_000, "8000Mi": 8000 << 20, "8e9": 8_000_000_000, "1024Ki": 1 << 20,
		"1e30": amount.Max,
	} {
		if got, err := amount.Memory(text); err != nil || got != want {
			t.Errorf("%s is %d (%v), want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"8000":    `"8000" is 8,000 bytes, and no pod needs less than 1Mi of device memory: did you mean 8000Mi?`,
		"1048575": `"1048575" is 1,048,575 bytes,`,
		"16k":     `"16k" is 16,000 bytes, and no pod needs less than 1Mi of device memory: did you mean 16Mi?`,
		"512Ki":   `did you mean 512Mi?`,
		"4000m":   `"4000m" is 4 bytes, and no pod needs less than 1Mi of device memory: did you mean 4000Mi?`,
		"0.5":     `"0.5" is 1 bytes, and no pod needs less than 1Mi of device memory: did you mean 0.5Mi?`,
		"8e3":     `did you mean 8000Mi?`,
		"+12":     `did you mean 12Mi?`,
		"8000mb":  "is no amount: write one such as 4Gi", "8 Gi": "is no amount: write one such as 4Gi", "-1Gi": "is negative: write one such as 4Gi", "": "is no amount",
	} {
		if got, err := amount.Memory(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is %d, and the error is %v, want %s", text, got, err, want)
		}
	}
}
