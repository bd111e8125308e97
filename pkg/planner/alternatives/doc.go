// Package alternatives finds the other offerings that the NodeClaim of a launch may name: those that hold its pods as well, within the pool's premium.
package alternatives
