// Package retention decides which machines stay although a layout without them would cost less. Pods may keep a machine, foreign pods may have no room
// elsewhere, or a replacement may have failed recently. The package has no clock and no client.
package retention

import (
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// Pods returns a function that names the pod that keeps a machine from being removed to save cost, although Karpenter would drain it. The function
// returns "" if no pod does. A pod keeps the machine if nothing would recreate it, if it is too large to be read, if it belongs to a Job and is more than half done, or if it is
// foreign and has no room on another existing node.
func Pods(c *facts.Cluster) func(*records.Machine) string {
	jobs, others := jobsOf(c), NewOtherNodes(c)
	known := map[string]string{}
	return func(m *records.Machine) string {
		why, ok := known[m.Claim.Name]
		if !ok {
			if why = jobs.keeps(m); why == "" {
				why = others.Hold([]*records.Machine{m}, nil)
			}
			known[m.Claim.Name] = why
		}
		return why
	}
}

// jobs has the sorted durations of the completed pods of each Job.
type jobs struct {
	now  time.Time
	took func() map[string][]time.Duration
}

func jobsOf(c *facts.Cluster) jobs {
	return jobs{c.Now, sync.OnceValue(func() map[string][]time.Duration {
		all := map[string][]time.Duration{}
		for _, pod := range c.Indexed().Ended() {
			if owner := jobOf(pod); owner != "" {
				if end := endOf(pod); end.After(facts.StartTime(pod)) {
					all[owner] = append(all[owner], end.Sub(facts.StartTime(pod)))
				}
			}
		}
		for _, took := range all {
			slices.Sort(took)
		}
		return all
	})}
}

// jobOf returns a key of the Job that controls the pod, or "" for other pods.
func jobOf(pod *corev1.Pod) string {
	if owner := facts.JobOf(pod); owner != nil {
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

// keeps returns the pod that keeps the machine, or "". A pod keeps it if nothing would recreate it, or if it belongs to a Job and is more than half
// done, so that it ends sooner than it could run again. The pod's deadline or the median duration of the Job's completed pods determines the half.
func (j jobs) keeps(m *records.Machine) string {
	for _, pod := range m.Pods {
		if !facts.IsWorkload(pod) || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		if metav1.GetControllerOf(pod) == nil {
			return fmt.Sprintf("pod %s has no owner that would make it again", facts.PodName(pod))
		}
		if why := facts.TooLarge(pod); why != "" {
			return fmt.Sprintf("pod %s %s", facts.PodName(pod), why)
		}
		owner := jobOf(pod)
		if owner == "" {
			continue
		}
		ran := j.now.Sub(facts.StartTime(pod))
		if took := j.took()[owner]; len(took) > 0 && 2*ran > took[len(took)/2] {
			return fmt.Sprintf("pod %s of a Job has run for %s, and others of it took %s", facts.PodName(pod), words.Age(ran), words.Age(took[len(took)/2]))
		}
		if d := pod.Spec.ActiveDeadlineSeconds; d != nil && 2*ran > time.Duration(*d)*time.Second {
			return fmt.Sprintf("pod %s of a Job has run for %s of the %s that it has", facts.PodName(pod), words.Age(ran), words.Age(time.Duration(*d)*time.Second))
		}
	}
	return ""
}
