// Package search solves a packing problem. A primal search finds a cheap plan. In parallel, a dual search finds a lower bound on the price of any plan,
// with its proof. state.go has what both know, and cover.go what proves a bound.
package search
