// Package search solves a packing problem. A primal search finds a cheap plan. In parallel, a dual search finds a lower bound on the price of any plan,
// with its proof.
package search
