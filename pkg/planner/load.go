package planner

import "slices"

// load is a number of pods of each shape.
type load []int32

func (l load) empty() bool {
	for _, n := range l {
		if n > 0 {
			return false
		}
	}
	return true
}

func (l load) total() int64 {
	var t int64
	for _, n := range l {
		t += int64(n)
	}
	return t
}

func (l load) add(o load, times int32) {
	for k, n := range o {
		l[k] += n * times
	}
}

// under reports whether all of l is in o.
func (l load) under(o load) bool {
	for k, n := range l {
		if n > o[k] {
			return false
		}
	}
	return true
}

// within returns what of l there is in o.
func (l load) within(o load) load {
	out := slices.Clone(l)
	for k := range out {
		out[k] = min(out[k], o[k])
	}
	return out
}

// worth is the value of a load at the given values of pods, in units of valueScale.
func worth(values []int64, l load) int64 {
	var v int64
	for k, n := range l {
		v += values[k] * int64(n)
	}
	return v
}
