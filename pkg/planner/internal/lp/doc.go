// Package lp solves linear programs with the simplex method, in floating point. It only guides: every bound that is drawn from its duals is checked in integers.
package lp
