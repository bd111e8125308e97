package usage

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/usage"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/records"
)

// step is an action about a machine or one of its pods.
type step string

const (
	// report records that nobody uses a machine.
	report step = "Report"
	// unreadable records that the report of a machine's agent is invalid.
	unreadable step = "Unreadable"
	// evict evicts a pod that has not used its GPU for as long as it allows.
	evict step = "Evict"
	// blocked records why such a pod stays.
	blocked step = "Blocked"
	// refuse records that a pod's annotation is invalid.
	refuse step = "Refuse"
)

type action struct {
	step    step
	machine *records.Machine
	// pod is nil if the action is about the machine.
	pod *corev1.Pod
	// unused is how long nobody has used the machine, or the pod its GPU.
	unused time.Duration
	// reason is why a pod stays, or what is invalid.
	reason string
}

// state is the input of the decision.
type state struct {
	now      time.Time
	machines []records.Machine
	// classes has the GPUNodeClasses by name.
	classes map[string]*v1alpha1.GPUNodeClass
	// blocker returns what prevents the eviction of pods, or "" if nothing does.
	blocker func([]*corev1.Pod) string
}

// decide returns the actions for machines and their pods, sorted by name.
func decide(s state) []action {
	var actions []action
	for i := range s.machines {
		m := &s.machines[i]
		said, err := usage.Of(m)
		if err != nil {
			actions = append(actions, action{step: unreadable, machine: m, reason: err.Error()})
		}
		if d, ok := usage.NobodyUses(m, s.classes[m.Claim.Labels[v1alpha1.GPUNodeClassLabel]], s.now); ok {
			actions = append(actions, action{step: report, machine: m, unused: d})
		}
		if m.Leaving() {
			continue // Its pods leave anyway.
		}
		for _, pod := range m.Holders() {
			if a := s.about(pod, said); a != nil {
				a.machine = m
				actions = append(actions, *a)
			}
		}
	}
	return actions
}

// about returns the action for a pod that holds replicas, or nil if there is none.
func (s *state) about(pod *corev1.Pod, report nodecontract.UnusedReport) *action {
	overdue, d, err := overdue(pod, report, s.now)
	switch {
	case err != nil:
		return &action{step: refuse, pod: pod, reason: err.Error()}
	case !overdue:
		return nil
	}
	if why := s.blocker([]*corev1.Pod{pod}); why != "" {
		return &action{step: blocked, pod: pod, unused: d, reason: why}
	}
	return &action{step: evict, pod: pod, unused: d}
}

// overdue reports whether a pod has not used its GPU for as long as it allows, and returns how long it has not used it.
func overdue(pod *corev1.Pod, report nodecontract.UnusedReport, now time.Time) (bool, time.Duration, error) {
	after, asks, err := v1alpha1.EvictWhenUnused(pod.Annotations)
	if err != nil || !asks || !pod.DeletionTimestamp.IsZero() {
		return false, 0, err
	}
	d := usage.For(pod, report, now)
	return d >= after, d, nil
}
