package plantest

import (
	"reflect"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
)

// Spoiled changes a few values of the snapshots of a generator, which then need not be valid: numbers are negative, very large or no index, names repeat, and lists lack
// an element or have one twice.
func Spoiled(snapshots *rapid.Generator[planner.Snapshot]) *rapid.Generator[planner.Snapshot] {
	number := rapid.OneOf(rapid.Int64Range(-2, 8), rapid.Int64(), rapid.Just(planner.Unlimited))
	return rapid.Custom(func(t *rapid.T) planner.Snapshot {
		s := snapshots.Draw(t, "valid")
		values := valuesIn(reflect.ValueOf(&s).Elem())
		for range rapid.IntRange(1, 8).Draw(t, "spoiled values") {
			switch v := values[rapid.IntRange(0, len(values)-1).Draw(t, "value")]; {
			case v.CanInt():
				v.SetInt(number.Draw(t, "number"))
			case v.Kind() == reflect.String:
				v.SetString(rapid.SampledFrom([]string{"", "pool-0", "node-0", "zone-a", "default/class-0-00000"}).Draw(t, "name"))
			case v.Len() > 0 && rapid.Bool().Draw(t, "twice"):
				v.Set(reflect.Append(v, v.Index(0)))
			case v.Len() > 0:
				v.SetLen(v.Len() - 1)
			}
		}
		return s
	})
}

// valuesIn returns the numbers, names and lists in a value.
func valuesIn(v reflect.Value) []reflect.Value {
	var out []reflect.Value
	switch {
	case v.CanInt(), v.Kind() == reflect.String:
		out = append(out, v)
	case v.Kind() == reflect.Struct:
		for _, field := range v.Fields() {
			out = append(out, valuesIn(field)...)
		}
	case v.Kind() == reflect.Slice:
		out = append(out, v)
		for i := range v.Len() {
			out = append(out, valuesIn(v.Index(i))...)
		}
	}
	return out
}
