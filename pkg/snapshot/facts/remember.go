package facts

import "sync/atomic"

// Slot keeps the last result that Remember computed for an entry of the index. It is part of the entry, so it ends when the entry's objects change. It is
// safe for concurrent use. All calls for a slot must have the same types.
type Slot struct{ last atomic.Value }

type remembered[In comparable, Out any] struct {
	in  In
	out Out
}

// Remember returns the result of compute for the entry that has the slot. The result must depend on nothing but the entry and in: it is computed again if in is
// not equal to that of the last call.
func Remember[In comparable, Out any](s *Slot, in In, compute func() Out) Out {
	if last, ok := s.last.Load().(*remembered[In, Out]); ok && last.in == in {
		return last.out
	}
	made := &remembered[In, Out]{in, compute()}
	s.last.Store(made)
	return made.out
}

// Identity identifies a slice by its memory, so that two slices can be compared at once. Nobody changes the objects of a cluster.
type Identity[T any] struct {
	first *T
	size  int
}

// IdentityOf returns the identity of a slice.
func IdentityOf[T any](all []T) Identity[T] {
	if len(all) == 0 {
		return Identity[T]{}
	}
	return Identity[T]{&all[0], len(all)}
}
