// Package solve makes plans for a snapshot. It combines the packages below it: constraints splits a snapshot with constraints between machines, search solves
// each part, and the plan of firstfit is used if it is better.
package solve
