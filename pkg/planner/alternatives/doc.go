// Package alternatives finds the other offerings that the claim of a launch may name: those that hold its pods as well, for little more.
package alternatives
