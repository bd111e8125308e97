// Package explain says why a pod waits or is where it is, and why a node stays or goes and when. It asks the planner and the controllers' own decisions, and makes
// none of its own: a change that it proposes was planned with, and what keeps a node is what the disruption controller says. It has no client and no clock.
package explain
