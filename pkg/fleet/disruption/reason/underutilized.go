package reason

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// underutilized is for machines whose removal saves cost. Several of them can be one step, so the controller proposes them together. A marked machine stays a
// candidate as long as its removal still saves.
type underutilized struct{ common }

// Candidate returns nil for machines that will be replaced because they are unhealthy.
func (underutilized) Candidate(m *Machine, now time.Time) *Candidate {
	if (unhealthy{}).Candidate(m, now) != nil {
		return nil
	}
	return m.Saving
}

// Blocked also returns pods that Karpenter would evict, because the only reason to remove the machine is cost.
func (underutilized) Blocked(m *Machine, c *Candidate, asked []*corev1.Pod, pods Pods) string {
	if why := blocked(m, c, asked, pods); why != "" {
		return why
	}
	return pods.Keeps(m.Machine)
}

// MarkedUnderutilized reports whether the machine is marked as underutilized.
func MarkedUnderutilized(m *records.Machine) bool {
	return m.Replacing() == string(karpv1.DisruptionReasonUnderutilized)
}

// Cheaper returns the candidate for each of several machines whose removal together gives the hourly saving. The message has no amount if the saving is
// 0 or less.
func Cheaper(saving planner.MicroUSD, machines int) *Candidate {
	c := Candidate{Reason: karpv1.DisruptionReasonUnderutilized, Word: string(karpv1.DisruptionReasonUnderutilized)}
	switch {
	case saving <= 0:
		c.Message = "the machines would cost less without it"
	case machines == 1:
		c.Message = fmt.Sprintf("the machines cost $%s an hour less without it", words.USD(saving))
	default:
		c.Message = fmt.Sprintf("the machines cost $%s an hour less without %d of them, of which it is one", words.USD(saving), machines)
	}
	return &c
}
