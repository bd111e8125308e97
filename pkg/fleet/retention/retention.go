// Package retention decides which machines stay though others would cost less: what pods on them keep them, whether their foreign pods would have another
// place, and for how long a machine is left alone after its pods got none. It is pure.
package retention

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/snapshot"
)

// Pods returns a function that says which pod keeps a machine from going only because others would cost less, though Karpenter would drain it; "" when none
// does. Such pods are one that nobody would make again, one of a Job that is more than half done, and a foreign pod that would have no place on another node that is there.
func Pods(c *snapshot.Cluster) func(*snapshot.Machine) string {
	jobs, others := jobsOf(c), NewOtherNodes(c)
	known := map[string]string{}
	return func(m *snapshot.Machine) string {
		why, ok := known[m.Claim.Name]
		if !ok {
			if why = jobs.keeps(m); why == "" {
				why = others.Hold([]*snapshot.Machine{m}, nil)
			}
			known[m.Claim.Name] = why
		}
		return why
	}
}

// jobs knows how long the pods of Jobs take: by their owner, those of its pods that have completed.
type jobs struct {
	now  time.Time
	took map[string][]time.Duration
}

func jobsOf(c *snapshot.Cluster) jobs {
	j := jobs{c.Now, map[string][]time.Duration{}}
	for i := range c.Pods {
		pod := &c.Pods[i]
		if owner := jobOf(pod); owner != "" && pod.Status.Phase == corev1.PodSucceeded {
			if end := endOf(pod); end.After(snapshot.StartTime(pod)) {
				j.took[owner] = append(j.took[owner], end.Sub(snapshot.StartTime(pod)))
			}
		}
	}
	for _, took := range j.took {
		slices.Sort(took)
	}
	return j
}

// jobOf is the UID of the Job that made the pod; "" for others.
func jobOf(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "Job" && owner.APIVersion == "batch/v1" {
		return pod.Namespace + "/" + owner.Name + "/" + string(owner.UID)
	}
	return ""
}

func endOf(pod *corev1.Pod) time.Time {
	var end time.Time
	for _, ctr := range pod.Status.ContainerStatuses {
		if t := ctr.State.Terminated; t != nil && t.FinishedAt.After(end) {
			end = t.FinishedAt.Time
		}
	}
	return end
}

// keeps says which pod keeps the machine: one that nobody would make again, and one of a Job that is more than half done, which ends sooner than it would
// be done again. That is judged by the pod's deadline and by what the middle one of the Job's pods that have completed took.
func (j jobs) keeps(m *snapshot.Machine) string {
	for _, pod := range m.Pods {
		if !snapshot.IsWorkload(pod) || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		if metav1.GetControllerOf(pod) == nil {
			return fmt.Sprintf("pod %s has no owner that would make it again", snapshot.PodName(pod))
		}
		owner := jobOf(pod)
		if owner == "" {
			continue
		}
		ran := j.now.Sub(snapshot.StartTime(pod))
		if took := j.took[owner]; len(took) > 0 && 2*ran > took[len(took)/2] {
			return fmt.Sprintf("pod %s of a Job has run for %s, and others of it took %s", snapshot.PodName(pod), ran.Round(time.Second), took[len(took)/2].Round(time.Second))
		}
		if d := pod.Spec.ActiveDeadlineSeconds; d != nil && 2*ran > time.Duration(*d)*time.Second {
			return fmt.Sprintf("pod %s of a Job has run for %s of the %ds that it has", snapshot.PodName(pod), ran.Round(time.Second), *d)
		}
	}
	return ""
}
