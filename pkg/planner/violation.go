package planner

import "fmt"

// Violation describes how a snapshot or a plan is invalid, and which objects it concerns, as indices into the lists of the snapshot. The lists are
// empty if the violation concerns no particular object.
type Violation struct { //nolint:errname // It is listed as what it is, and seldom returned as an error.
	Message string

	Classes, Nodes, Offerings, Pools, Rules, Stocks, Groups []int
}

// Error returns the message.
func (v *Violation) Error() string { return v.Message }

// Violations returns the violations that are joined in an error of check.Plan or [Validate].
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

// about returns a function that adds violations which concern the same objects.
func about(errs *[]error, what Violation) func(format string, args ...any) {
	return func(format string, args ...any) {
		v := what
		v.Message = fmt.Sprintf(format, args...)
		*errs = append(*errs, &v)
	}
}
