package reason

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/controllers/wording"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

// underutilized is for machines without which the others cost less. Several of them can be one step, so that the controller proposes them together; a machine
// that is marked stays a candidate as long as the others still cost less without it.
type underutilized struct{}

func (underutilized) Name() karpv1.DisruptionReason { return karpv1.DisruptionReasonUnderutilized }

// Candidate leaves out machines that are unhealthy: what they cost is another matter.
func (underutilized) Candidate(m *Machine, now time.Time) *Candidate {
	if (unhealthy{}).Candidate(m, now) != nil {
		return nil
	}
	return m.Saving
}

// Blocked lets pods keep the machine that Karpenter would drain: nothing but cost asks for it to go.
func (underutilized) Blocked(m *Machine, c *Candidate, asked []*corev1.Pod, pods Pods) string {
	if why := blocked(m, c, asked, pods); why != "" {
		return why
	}
	return pods.Keeps(m.Machine)
}

func (underutilized) Allowed(p *Pool) int { return p.Budgets[karpv1.DisruptionReasonUnderutilized] }

func (underutilized) Ended(*Machine) (string, bool) { return asToday, true }

// MarkedUnderutilized reports whether the machine is marked to go because the others cost less without it.
func MarkedUnderutilized(m *snapshot.Machine) bool {
	return m.Replacing() == string(karpv1.DisruptionReasonUnderutilized)
}

// Cheaper returns the candidate for each of so many machines without which the others cost less by the saving.
func Cheaper(saving planner.MicroUSD, machines int) *Candidate {
	c := Candidate{Reason: karpv1.DisruptionReasonUnderutilized, Word: string(karpv1.DisruptionReasonUnderutilized)}
	switch {
	case saving <= 0:
		c.Message = "the machines would cost less without it"
	case machines == 1:
		c.Message = fmt.Sprintf("the machines cost $%s an hour less without it", wording.USD(int64(saving)))
	default:
		c.Message = fmt.Sprintf("the machines cost $%s an hour less without %d of them, of which it is one", wording.USD(int64(saving)), machines)
	}
	return &c
}
