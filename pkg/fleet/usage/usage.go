// Package usage reads, from the reports of node agents, how long the GPUs of a machine or of a pod have been unused. The package has no clock and no
// client.
package usage

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Of returns the agent's report of the replicas of a machine that are held but unused. It is empty if the machine has no Node.
func Of(m *records.Machine) (nodecontract.UnusedReport, error) {
	if m.Node == nil {
		return nodecontract.UnusedReport{}, nil
	}
	return nodecontract.ParseUnused(m.Node.Annotations[nodecontract.UnusedSinceAnnotation])
}

// For returns how long a pod of the machine is known not to have used its GPUs. It is 0 if the pod has not started.
func For(pod *corev1.Pod, report nodecontract.UnusedReport, now time.Time) time.Duration {
	if pod.Status.StartTime == nil {
		return 0
	}
	return report.For(facts.PodName(pod), pod.Status.StartTime.Time, now)
}

// NobodyUses reports whether pods hold replicas of the machine and none of them has used a GPU for as long as the GPUNodeClass allows. It also returns for how
// long.
func NobodyUses(m *records.Machine, class *v1alpha1.GPUNodeClass, now time.Time) (time.Duration, bool) {
	if class == nil || m.Leaving() {
		return 0, false
	}
	after, never, err := class.Spec.Consolidation.UnusedDuration()
	if err != nil || never {
		return 0, false
	}
	report, err := Of(m)
	if err != nil || len(report.Since) == 0 {
		return 0, false
	}
	least := time.Duration(-1)
	for _, pod := range m.Holders() {
		if d := For(pod, report, now); least < 0 || d < least {
			least = d
		}
	}
	return least, least > 0 && least >= after
}
