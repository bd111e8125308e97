// Package solve plans for a snapshot. It composes the packages below it: a snapshot with constraints between machines is split by constraints, each part is
// solved by search, and the plan of firstfit is taken where that is better.
package solve
