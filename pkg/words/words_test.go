package words_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/words"
)

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0 pods", 1: "1 pod", 2: "2 pods"} {
		if got := words.Count(n, "pod"); got != want {
			t.Errorf("Count(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestUSD(t *testing.T) {
	t.Parallel()
	for micro, want := range map[int64]struct{ rounded, floor, ceil, cents string }{
		0: {"0.000", "0.000", "0.000", "0.00"}, 1: {"0.000", "0.000", "0.001", "0.00"}, 499: {"0.000", "0.000", "0.001", "0.00"}, 500: {"0.001", "0.000", "0.001", "0.00"},
		526_000: {"0.526", "0.526", "0.526", "0.53"}, 999_999: {"1.000", "0.999", "1.000", "1.00"}, 12_000_000: {"12.000", "12.000", "12.000", "12.00"},
		1_234_567: {"1.235", "1.234", "1.235", "1.23"}, 500_010: {"0.500", "0.500", "0.501", "0.50"}, 5000: {"0.005", "0.005", "0.005", "0.01"},
	} {
		if got := words.USD(micro); got != want.rounded {
			t.Errorf("USD(%d) = %q, want %q", micro, got, want.rounded)
		}
		if got := words.FloorUSD(micro); got != want.floor {
			t.Errorf("FloorUSD(%d) = %q, want %q", micro, got, want.floor)
		}
		if got := words.CeilUSD(micro); got != want.ceil {
			t.Errorf("CeilUSD(%d) = %q, want %q", micro, got, want.ceil)
		}
		if got := words.Cents(micro); got != want.cents {
			t.Errorf("Cents(%d) = %q, want %q", micro, got, want.cents)
		}
	}
}

func TestAgesAreThoseOfKubectl(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", math.MinInt64: "0s", 0: "0s", 119 * time.Second: "119s", 5*time.Minute + 30*time.Second: "5m30s", 150 * time.Minute: "150m", 49 * time.Hour: "2d1h",
	} {
		if got := words.Age(d); got != want {
			t.Errorf("Age(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestSpansAreExactToTheMinute(t *testing.T) {
	t.Parallel()
	hour := float64(time.Hour)
	for d, want := range map[time.Duration]string{
		-time.Hour: "0m", math.MinInt64: "0m", 0: "0m", 29 * time.Second: "0m", 30 * time.Second: "1m", 59 * time.Minute: "59m", time.Hour: "1h", 150 * time.Minute: "2h30m",
		time.Duration(13.95 * hour): "13h57m", time.Duration(13.9499999 * hour): "13h57m", 49 * time.Hour: "2d1h", 287 * time.Hour: "11d23h", 744 * time.Hour: "31d",
		24*time.Hour + 5*time.Minute: "1d5m", 17_219 * time.Minute: "11d22h59m",
	} {
		if got := words.Span(d); got != want {
			t.Errorf("Span(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestNamesBeyondTheFirstAreCounted(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int]string{1: "b and 2 more", 2: "b, a and 1 more", 3: "b, a, b", 4: "b, a, b"} {
		if got := words.Named([]string{"b", "a", "b"}, limit); got != want {
			t.Errorf("at most %d: %q, want %q", limit, got, want)
		}
	}
	if got := words.Distinct([]string{"b", "a", "b"}); got != "a, b" {
		t.Errorf("distinct: %q", got)
	}
}

func TestSentencesJoinTheLastName(t *testing.T) {
	t.Parallel()
	for want, names := range map[string][]string{"": nil, "a": {"a"}, "a and b": {"a", "b"}, "a, b and c": {"a", "b", "c"}} {
		if got := words.And(names); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got, want := words.Or(names), strings.Replace(want, " and ", " or ", 1); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
