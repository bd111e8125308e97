// Package explain explains why a pod waits or is where it is, and why a node stays or goes and when. It uses the planner and the controllers' own
// decisions, and makes none of its own: a change that it proposes was planned with, and what keeps a node comes from the disruption controller. It has
// no client and no clock.
package explain
