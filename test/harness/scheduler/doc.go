// Package scheduler holds Karve's plans against the real kube-scheduler: the machines of a plan are made, and the scheduler's own filters
// must let each pod onto the machine that was planned for it, and no pod that the plan calls impossible onto any machine.
package scheduler
