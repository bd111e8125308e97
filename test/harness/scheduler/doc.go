// Package scheduler checks Karve's plans against the real kube-scheduler. It creates the machines of a plan. The scheduler's own filters must admit each
// pod to its planned machine, and must not admit a pod that the plan calls impossible to any machine.
package scheduler
