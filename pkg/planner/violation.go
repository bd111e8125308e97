package planner

import "fmt"

// Violation is a rule that a snapshot or a plan for it breaks, and what of the snapshot it concerns: indices into its lists. A violation that concerns
// nothing in particular has none.
type Violation struct { //nolint:errname // It is listed as what it is, and seldom returned as an error.
	Message string

	Classes, Nodes, Offerings, Pools, Rules []int
}

// Error returns the message.
func (v *Violation) Error() string { return v.Message }

// Violations returns those that an error of check.Plan or [Validate] joins.
func Violations(err error) []*Violation {
	switch e := err.(type) { //nolint:errorlint // It walks the tree that errors.As finds only one leaf of.
	case nil:
		return nil
	case *Violation:
		return []*Violation{e}
	case interface{ Unwrap() []error }:
		var all []*Violation
		for _, joined := range e.Unwrap() {
			all = append(all, Violations(joined)...)
		}
		return all
	case interface{ Unwrap() error }:
		return Violations(e.Unwrap())
	}
	return []*Violation{{Message: err.Error()}}
}

// about returns how to note violations that concern the same.
func about(errs *[]error, what Violation) func(format string, args ...any) {
	return func(format string, args ...any) {
		v := what
		v.Message = fmt.Sprintf(format, args...)
		*errs = append(*errs, &v)
	}
}
