// Package search solves a packing problem: a primal search for a cheap plan, and at the same time a dual search for a lower bound on the price of any,
// with its proof.
package search
