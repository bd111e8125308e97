// Package constraints plans for snapshots with constraints between machines: spread, affinity, wishes, priorities, weights of pools and minValues. It turns
// them into snapshots without, and has those solved by the solver that it is given.
package constraints
