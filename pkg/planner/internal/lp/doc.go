// Package lp solves linear programs with the simplex method, in floating point. Its results are only heuristic: every bound is derived from its duals in
// integers.
package lp
