package pack

import "slices"

// Load is a number of pods of each shape.
type Load []int32

// Empty reports whether there are no pods.
func (l Load) Empty() bool {
	for _, n := range l {
		if n > 0 {
			return false
		}
	}
	return true
}

// Total returns the number of pods of all shapes.
func (l Load) Total() int64 {
	var t int64
	for _, n := range l {
		t += int64(n)
	}
	return t
}

// Add adds times as many pods of each shape as o has.
func (l Load) Add(o Load, times int32) {
	for k, n := range o {
		l[k] += n * times
	}
}

// Under reports whether l has at most as many pods of each shape as o.
func (l Load) Under(o Load) bool {
	for k, n := range l {
		if n > o[k] {
			return false
		}
	}
	return true
}

// Within returns the part of l that is in o.
func (l Load) Within(o Load) Load {
	out := slices.Clone(l)
	for k := range out {
		out[k] = min(out[k], o[k])
	}
	return out
}

// Worth returns the worth of a load for the given worths of pods, in units of 1/pricing.Scale micro-dollars.
func Worth(values []int64, l Load) int64 {
	var v int64
	for k, n := range l {
		v += values[k] * int64(n)
	}
	return v
}
