package constraints

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// rule is a planner.Rule that is prepared for planning. It has few classes and counted classes, so they are lists and not sets over all classes.
type rule struct {
	planner.Rule
	// constrained are the classes that the rule constrains, sorted by class. The classes that it counts are in Counted.
	constrained []constrained
	// domains is the number of domains, or 0 for PerNode. eligible reports which of them count for Spread. tooFew reports whether they are fewer than
	// MinDomains.
	domains  int
	eligible []bool
	tooFew   bool
}

// constrained is a class that a rule constrains until its pods have given up a number of preferences. If until is math.MaxInt, the rule always binds.
type constrained struct{ class, until int }

// until returns how many preferences pods of a class give up before the rule no longer constrains them. It is 0 if the rule does not constrain them at all.
func (r *rule) until(class int) int {
	if i, ok := slices.BinarySearchFunc(r.constrained, class, func(a constrained, class int) int { return cmp.Compare(a.class, class) }); ok {
		return r.constrained[i].until
	}
	return 0
}

// constrains reports whether the rule constrains pods of a class, possibly only as a preference.
func (r *rule) constrains(class int) bool { return r.until(class) > 0 }

// counts reports whether pods of a class are counted.
func (r *rule) counts(class int) bool {
	_, ok := slices.BinarySearch(r.Counted, class)
	return ok
}

// binds reports whether the rule constrains pods of a class that have given up a number of preferences.
func (r *rule) binds(class, given int) bool { return given < r.until(class) }

// always reports whether the rule constrains pods of a class whatever preferences they give up.
func (r *rule) always(class int) bool { return r.until(class) == math.MaxInt }

// classes returns the classes that are constrained or counted, sorted.
func (r *rule) classes() []int {
	all := slices.Clone(r.Counted)
	for _, a := range r.constrained {
		all = append(all, a.class)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (r *rule) present(d int) int64 {
	if d < 0 || d >= len(r.Present) {
		return 0
	}
	return r.Present[d]
}

// somewhere returns the number of counted pods that exist already.
func (r *rule) somewhere() int64 {
	n := r.Elsewhere
	for _, x := range r.Present {
		n += x
	}
	return n
}

// constrain adds a class to those that the rule constrains, or extends how long it constrains the class.
func (r *rule) constrain(a constrained) {
	i, ok := slices.BinarySearchFunc(r.constrained, a.class, func(x constrained, class int) int { return cmp.Compare(x.class, class) })
	if ok {
		r.constrained[i].until = a.until
		return
	}
	r.constrained = slices.Insert(r.constrained, i, a)
}

// key returns a string that is equal for rules with equal requirements.
func (r *rule) key() string {
	present := trimmed(r.Present)
	key := make([]byte, 0, 64+4*len(r.Counted)+len(r.eligible)+8*len(present))
	key = fmt.Appendf(key, "%s %d %d %t %d ", r.Kind, r.Topology, r.MaxSkew, r.tooFew, r.Elsewhere)
	for _, c := range r.Counted {
		key = binary.LittleEndian.AppendUint32(key, uint32(c))
	}
	key = append(key, ' ')
	for _, ok := range r.eligible {
		key = append(key, byte(truth(ok)))
	}
	for _, n := range present {
		key = binary.LittleEndian.AppendUint64(key, uint64(n))
	}
	return string(key)
}

// trimmed returns counts without the zeros at the end, which have no meaning.
func trimmed(xs []int64) []int64 {
	for len(xs) > 0 && xs[len(xs)-1] == 0 {
		xs = xs[:len(xs)-1]
	}
	return xs
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
