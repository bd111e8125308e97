package amount

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// MaxText is the length of the longest amount that [Parse] reads, in bytes.
	MaxText = 64
	// MaxExponent is the largest exponent that [Parse] reads: 1e30 is far above the largest int64.
	MaxExponent = 30
)

// Parse returns the amount that a user wrote, such as 4Gi. Parsing 1e-2000000000 takes hours, so Parse checks the length and the exponent first.
func Parse(text string) (resource.Quantity, error) {
	if len(text) > MaxText {
		return resource.Quantity{}, fmt.Errorf("%.16q... has %d characters, and an amount may have %d: write one such as 4Gi", text, len(text), MaxText)
	}
	if at := strings.IndexAny(text, "eE"); at >= 0 {
		if exponent, err := strconv.Atoi(text[at+1:]); err == nil && (exponent > MaxExponent || exponent < -MaxExponent) {
			return resource.Quantity{}, fmt.Errorf("%q has an exponent beyond %d: write an amount such as 4Gi", text, MaxExponent)
		}
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return resource.Quantity{}, fmt.Errorf("%q is no amount: write one such as 4Gi", text)
	}
	return q, nil
}

// Bounded reports whether arithmetic on a quantity and other bounded ones takes bounded time: it is zero, or between 1n and 1e30. A
// zero can have an exponent too, such as 0e2000000000, and adding it to another quantity would write out that many digits.
func Bounded(q resource.Quantity) bool {
	if q.IsZero() {
		scale := q.AsDec().Scale() // q is a copy.
		return scale <= MaxExponent && scale >= -MaxExponent
	}
	size := magnitudeOf(q)
	return size < maxMagnitude && size >= minMagnitude
}

// A quantity of such a size has at most the 309 digits of a float, and an exponent to match. The API server rounds quantities up to multiples of resource.Nano.
const maxMagnitude, minMagnitude = 1.001e30, 1e-9 / 2 // With room for the error of a float.

// magnitudeOf returns the approximate size of a quantity, in time proportional to the digits that it has in memory. It is not a number or infinite for
// quantities with more digits than a float can have.
func magnitudeOf(q resource.Quantity) float64 { return math.Abs(q.AsApproximateFloat64()) }

// Clamp returns a quantity if it is bounded, and otherwise the closest bounded one: zero, 1n or 1e30.
func Clamp(q resource.Quantity) resource.Quantity {
	sign := int64(q.Sign())
	switch {
	case Bounded(q):
		return q
	case sign == 0:
		return resource.Quantity{Format: q.Format}
	case magnitudeOf(q) < minMagnitude:
		return *resource.NewScaledQuantity(sign, resource.Nano)
	}
	most := resource.NewScaledQuantity(sign, MaxExponent)
	most.Format = resource.DecimalExponent // The others have no suffix for it.
	return *most
}

// ClampAll returns the list with bounded quantities. It is the list itself if all are bounded.
func ClampAll[M ~map[K]resource.Quantity, K comparable](list M) M {
	var clamped M
	for name, q := range list {
		if Bounded(q) {
			continue
		}
		if clamped == nil {
			clamped = maps.Clone(list)
		}
		clamped[name] = Clamp(q)
	}
	if clamped == nil {
		return list
	}
	return clamped
}

// Cmp compares two quantities like [resource.Quantity.Cmp]. Quantities that are not bounded compare as their closest bounded ones.
func Cmp(a, b resource.Quantity) int {
	a, b = Clamp(a), Clamp(b)
	return a.Cmp(b)
}

// Equal reports whether two quantities are equal for [Cmp].
func Equal(a, b resource.Quantity) bool { return Cmp(a, b) == 0 }

// Sum returns the sum of two quantities in the format of the first. Quantities that are not bounded count as their closest bounded ones.
func Sum(a, b resource.Quantity) resource.Quantity {
	sum := Clamp(a).DeepCopy()
	sum.Add(Clamp(b))
	return sum
}

// Whole reports whether a quantity is a whole number that an int64 can hold.
func Whole(q resource.Quantity) bool {
	return Equal(q, *resource.NewQuantity(Value(q), resource.DecimalSI))
}

// Text formats a quantity for a message.
func Text(q resource.Quantity) string {
	q = Clamp(q)
	return q.String()
}
