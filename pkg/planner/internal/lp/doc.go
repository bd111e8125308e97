// Package lp solves linear programs with the simplex method, in floating point. Its results are only heuristic: every bound that is derived from its
// duals is verified in integers.
package lp
