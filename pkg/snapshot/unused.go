package snapshot

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
)

// Holders are the pods that hold replicas of the machine; by name.
func (m *Machine) Holders() []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(m.Pods), func(pod *corev1.Pod) bool { return requests(pod, m.Promise.Resource).Replicas == 0 })
}

// Usage is what the machine's agent says of replicas that are held and not used.
func (m *Machine) Usage() (nodecontract.UnusedReport, error) {
	if m.Node == nil {
		return nodecontract.UnusedReport{}, nil
	}
	return nodecontract.ParseUnused(m.Node.Annotations[nodecontract.UnusedSinceAnnotation])
}

// UnusedFor is how long a pod of the machine is known not to have used its GPUs.
func UnusedFor(pod *corev1.Pod, report nodecontract.UnusedReport, now time.Time) time.Duration {
	if pod.Status.StartTime == nil {
		return 0
	}
	return report.For(PodName(pod), pod.Status.StartTime.Time, now)
}

// NobodyUses says whether the machine is there for nothing: pods hold replicas of it, and none of them has used a GPU for as long as its class allows. It says for how
// long none has.
func (m *Machine) NobodyUses(class *v1alpha1.GPUNodeClass, now time.Time) (time.Duration, bool) {
	if class == nil || m.Leaving() {
		return 0, false
	}
	after, never, err := class.Spec.Consolidation.UnusedDuration()
	if err != nil || never {
		return 0, false
	}
	report, err := m.Usage()
	if err != nil || len(report.Since) == 0 {
		return 0, false
	}
	least := time.Duration(-1)
	for _, pod := range m.Holders() {
		if d := UnusedFor(pod, report, now); least < 0 || d < least {
			least = d
		}
	}
	return least, least > 0 && least >= after
}
