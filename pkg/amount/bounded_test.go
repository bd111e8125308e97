package amount_test

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"gopkg.in/inf.v0"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/amount"
)

// huge are quantities for which apimachinery's own arithmetic takes hours.
var huge = map[string]struct {
	q                  resource.Quantity
	value, milli, sign int64
}{
	"1e2000000000":            {resource.MustParse("1e2000000000"), math.MaxInt64, math.MaxInt64, 1},
	"-1e2000000000":           {resource.MustParse("-1e2000000000"), math.MinInt64, math.MinInt64, -1},
	"0e2000000000":            {resource.MustParse("0e2000000000"), 0, 0, 0},
	"0e-2000000000":           {resource.MustParse("0e-2000000000"), 0, 0, 0},
	"a zero with an exponent": {*resource.NewDecimalQuantity(*inf.NewDec(0, -2_000_000_000), resource.DecimalExponent), 0, 0, 0},
	"a large decimal":         {*resource.NewDecimalQuantity(*inf.NewDec(1, -2_000_000_000), resource.DecimalExponent), math.MaxInt64, math.MaxInt64, 1},
	"a small decimal":         {*resource.NewDecimalQuantity(*inf.NewDec(1, 2_000_000_000), resource.DecimalExponent), 1, 1, 1},
	"a small negative one":    {*resource.NewDecimalQuantity(*inf.NewDec(-1, 2_000_000_000), resource.DecimalExponent), -1, -1, -1},
	"a small scaled one":      {*resource.NewScaledQuantity(1, -2_000_000_000), 1, 1, 1},
	"ten thousand digits":     {resource.MustParse(strings.Repeat("9", 10_000)), math.MaxInt64, math.MaxInt64, 1},
	"ten thousand decimals":   {resource.MustParse("0." + strings.Repeat("9", 10_000)), 1, 1000, 1},
}

func TestHugeQuantitiesSaturate(t *testing.T) {
	t.Parallel()
	one := resource.MustParse("1")
	for name, h := range huge {
		if got := amount.Value(h.q); got != h.value {
			t.Errorf("%s: Value is %d, want %d", name, got, h.value)
		}
		if got := amount.Milli(h.q); got != h.milli {
			t.Errorf("%s: Milli is %d, want %d", name, got, h.milli)
		}
		bounded := amount.Clamp(h.q)
		if !amount.Bounded(bounded) || int64(bounded.Sign()) != h.sign {
			t.Errorf("%s: the closest bounded quantity is %s", name, bounded.String())
		}
		if bounded.Add(one); amount.Value(bounded) < h.value {
			t.Errorf("%s: one more is %s", name, bounded.String())
		}
		if got := amount.Cmp(h.q, resource.MustParse("-1e20")); (got < 0) != (h.value == math.MinInt64) {
			t.Errorf("%s: compared with -1e20 it is %d", name, got)
		}
		if got := amount.Text(h.q); len(got) > 20 {
			t.Errorf("%s: its text is %s", name, got)
		}
	}
}

func TestClampAllChangesOnlyHugeQuantities(t *testing.T) {
	t.Parallel()
	list := map[string]resource.Quantity{"a": resource.MustParse("1e2000000000"), "b": resource.MustParse("2")}
	clamped := amount.ClampAll(list)
	if a, b := clamped["a"], clamped["b"]; a.String() != "1e30" || b.String() != "2" {
		t.Errorf("clamped to %s and %s", a.String(), b.String())
	}
	if a := list["a"]; a.String() != "100e1999999998" {
		t.Errorf("the list itself changed: %s", a.String())
	}
	list["a"] = resource.MustParse("1")
	if clamped = amount.ClampAll(list); len(clamped) != 2 {
		t.Fatal(clamped)
	}
	if clamped["c"] = resource.MustParse("3"); len(list) != 3 {
		t.Error("a list of bounded quantities was copied")
	}
}

func TestParseRefusesWhatItCannotReadQuickly(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"1e2000000000":                          "exponent beyond 30",
		"0e2000000000":                          "exponent beyond 30",
		"1e-2000000000":                         "exponent beyond 30",
		"1E+000002000000000":                    "exponent beyond 30",
		"0." + strings.Repeat("0", 40) + "1e31": "exponent beyond 30",
		strings.Repeat("9", 10_000):             "10000 characters",
		strings.Repeat("9", 65):                 "65 characters",
		"":                                      "is no amount",
		"4GiB":                                  "is no amount",
		"1e99999999999999999999":                "is no amount",
		"1e5e6":                                 "is no amount",
	} {
		q, err := amount.Parse(text)
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "4Gi") || len(err.Error()) > 200 {
			t.Errorf("Parse(%.20q) = %s, %v; want an error with %q", text, q.String(), err, says)
		}
	}
	for _, text := range []string{"0", "4Gi", "1e30", "1e-30", "1E", "9Ei", "-3", "+.5", strings.Repeat("9", 64)} {
		if got, err := amount.Parse(text); err != nil || !got.Equal(resource.MustParse(text)) {
			t.Errorf("Parse(%q) = %s, %v", text, got.String(), err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"4Gi", "1e2000000000", "1e-2000000000", "0e-9", "-1.5", "9223372036854775807", ".1E3", "1e+030", "00000000000000000000e-3"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		q, err := amount.Parse(text)
		if err != nil {
			return
		}
		if plain, err := resource.ParseQuantity(text); err != nil || q.Cmp(plain) != 0 {
			t.Fatalf("Parse(%q) = %s, apimachinery has %s, %v", text, q.String(), plain.String(), err)
		}
		check(t, q)
	})
}

func FuzzConversions(f *testing.F) { f.Fuzz(rapid.MakeFuzz(conversions)) }

func TestConversions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, conversions)
}

// conversions draws quantities in both of apimachinery's forms.
func conversions(t *rapid.T) {
	scale := rapid.OneOf(rapid.Int32Range(-40, 40), rapid.Int32Range(-math.MaxInt32, math.MaxInt32), rapid.SampledFrom([]int32{-math.MaxInt32, math.MaxInt32})).Draw(t, "scale")
	format := rapid.SampledFrom([]resource.Format{resource.DecimalSI, resource.BinarySI, resource.DecimalExponent}).Draw(t, "format")
	if rapid.Bool().Draw(t, "int64") {
		q := resource.NewScaledQuantity(rapid.Int64().Draw(t, "value"), resource.Scale(scale))
		q.Format = format
		check(t, *q)
		return
	}
	digits := rapid.StringMatching("-?[0-9]{1,60}").Draw(t, "digits")
	unscaled, _ := new(big.Int).SetString(digits, 10)
	check(t, *resource.NewDecimalQuantity(*inf.NewDecBig(unscaled, inf.Scale(scale)), format))
}

// check compares the conversions with exact arithmetic, and with apimachinery where that is right.
func check(t interface{ Fatalf(string, ...any) }, q resource.Quantity) {
	before := q.DeepCopy()
	for name, c := range map[string]struct {
		got   int64
		scale resource.Scale
	}{"Value": {amount.Value(q), 0}, "Milli": {amount.Milli(q), resource.Milli}} {
		if want := rounded(q.DeepCopy(), c.scale); c.got != want {
			t.Fatalf("%s of %v is %d, want %d", name, before, c.got, want)
		}
		if amount.Bounded(q) && q.Sign() > 0 && c.got < math.MaxInt64 {
			if plain := q.DeepCopy(); plain.ScaledValue(c.scale) != c.got {
				t.Fatalf("%s of %v is %d, apimachinery has %d", name, before, c.got, plain.ScaledValue(c.scale))
			}
		}
	}
	bounded := amount.Clamp(q)
	if !amount.Bounded(bounded) || bounded.Sign() != before.Sign() || amount.Bounded(before) && bounded.Cmp(before) != 0 {
		t.Fatalf("the closest bounded quantity to %v is %s", before, bounded.String())
	}
	if amount.Value(bounded) != amount.Value(before) {
		t.Fatalf("Value is %d for %v and %d for the closest bounded quantity", amount.Value(before), before, amount.Value(bounded))
	}
}

// rounded returns the quantity at a scale, rounded away from zero and saturating.
func rounded(q resource.Quantity, scale resource.Scale) int64 {
	dec := q.AsDec()
	exponent := -int64(dec.Scale()) - int64(scale)
	n := new(big.Int).Abs(dec.UnscaledBig())
	switch {
	case n.Sign() == 0:
		return 0
	case exponent > 100:
		n.SetUint64(math.MaxUint64)
	case exponent < -100:
		n.SetInt64(1)
	case exponent >= 0:
		n.Mul(n, new(big.Int).Exp(big.NewInt(10), big.NewInt(exponent), nil))
	default:
		divisor := new(big.Int).Exp(big.NewInt(10), big.NewInt(-exponent), nil)
		n.Add(n, divisor).Sub(n, big.NewInt(1)).Quo(n, divisor)
	}
	switch {
	case n.IsInt64() && n.Int64() < math.MaxInt64:
		return n.Int64() * int64(dec.UnscaledBig().Sign())
	case dec.UnscaledBig().Sign() > 0:
		return math.MaxInt64
	}
	return math.MinInt64
}
