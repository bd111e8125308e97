// Package explain explains why a pod waits or is where it is, and why a node stays or goes and when. It makes no decisions of its own: the planner
// confirms each change that it proposes, and the disruption controller's code says what keeps a node. It has no client and no clock.
package explain
