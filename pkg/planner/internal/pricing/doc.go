// Package pricing solves the pricing problem of column generation: it finds the load of a machine with the greatest worth at given duals, or an upper bound on
// that worth.
package pricing
