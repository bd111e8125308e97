// Package amount has the arithmetic of the planner: vectors of resources, usage of the limits of pools, and products and quotients that cannot overflow.
package amount
