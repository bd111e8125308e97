// Package pricing solves the pricing problem of column generation: the load of a machine that is worth most at given duals, or an upper bound on it.
package pricing
