// Package alternatives finds the other offerings that the NodeClaim of a launch may name: those that also hold its pods, within the pool's premium.
package alternatives
