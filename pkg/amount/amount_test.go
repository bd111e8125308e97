package amount_test

import (
	"math"
	"math/big"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/amount"
)

func TestQuantitiesSaturate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ value, milli int64 }{
		"0":                     {0, 0},
		"-0":                    {0, 0},
		"1":                     {1, 1000},
		"300m":                  {1, 300},
		"1n":                    {1, 1},
		"1e-9":                  {1, 1},
		"4Gi":                   {4 << 30, 4 << 30 * 1000},
		"9223372036854775":      {9223372036854775, 9223372036854775000},
		"9223372036854776":      {9223372036854776, math.MaxInt64},
		"10000000000000000":     {10000000000000000, math.MaxInt64},
		"-10000000000000000":    {-10000000000000000, math.MinInt64},
		"9223372036854775807":   {math.MaxInt64, math.MaxInt64},
		"9223372036854775807Ei": {math.MaxInt64, math.MaxInt64},
		"1e30":                  {math.MaxInt64, math.MaxInt64},
		"-1e30":                 {math.MinInt64, math.MinInt64},
	} {
		q := resource.MustParse(text)
		before := q.DeepCopy()
		if got := amount.Value(q); got != want.value {
			t.Errorf("Value(%s) = %d, want %d", text, got, want.value)
		}
		if got := amount.Milli(q); got != want.milli {
			t.Errorf("Milli(%s) = %d, want %d", text, got, want.milli)
		}
		if !q.Equal(before) {
			t.Errorf("%s became %s", text, q.String())
		}
	}
}

func TestSumsOfQuantitiesSaturate(t *testing.T) {
	t.Parallel()
	q := resource.MustParse("9223372036854775807")
	q.Add(q.DeepCopy())
	if got := amount.Value(q); got != math.MaxInt64 {
		t.Errorf("twice the largest quantity is %d", got)
	}
	q.Neg()
	if got := amount.Value(q); got != math.MinInt64 {
		t.Errorf("twice the smallest quantity is %d", got)
	}
}

func TestArithmeticIsExactUntilItSaturates(t *testing.T) {
	t.Parallel()
	edge := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{math.MinInt64, math.MinInt64 + 1, -1, 0, 1, math.MaxInt64 - 1, math.MaxInt64}))
	clamp := func(x *big.Int) int64 {
		switch {
		case x.IsInt64():
			return x.Int64()
		case x.Sign() > 0:
			return math.MaxInt64
		}
		return math.MinInt64
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := edge.Draw(t, "a"), edge.Draw(t, "b")
		x, y := big.NewInt(a), big.NewInt(b)
		if got, want := amount.Add(a, b), clamp(new(big.Int).Add(x, y)); got != want {
			t.Fatalf("%d + %d = %d, want %d", a, b, got, want)
		}
		if got, want := amount.Sub(a, b), clamp(new(big.Int).Sub(x, y)); got != want {
			t.Fatalf("%d - %d = %d, want %d", a, b, got, want)
		}
	})
}
