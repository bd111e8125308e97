// Package constraints plans for snapshots with constraints between machines: spread, affinity, preferences, priorities, weights of pools and minValues. It turns
// them into snapshots without such constraints, which the given solver solves.
package constraints
