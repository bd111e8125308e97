package disruption

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/fleet/layout"
	"karve.sh/karve/pkg/fleet/retention"
	"karve.sh/karve/pkg/fleet/waste"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// Judge explains what is decided about single machines. It is a round without memory of earlier rounds: every candidate counts as one that has lasted long
// enough, and no step has failed before. It is not safe for concurrent use.
type Judge struct {
	decider
	view     *snapshot.View
	placed   map[string]string
	progress progress
}

// Verdict is what is decided about a machine.
type Verdict struct {
	// Causes are the reasons to disrupt machines, in the order in which they are considered.
	Causes []Cause
	// Saving is how much less the machines would cost per hour without this one. It is nil if pods do not move to reduce cost. Restarts is the restart
	// cost of each pod.
	Saving   *planner.MicroUSD
	Restarts map[string]planner.MicroUSD
	// Waste is how far the account of the GPUNodeClass covers the step that removes the machine. It is nil if there is no known step.
	Waste *waste.Step
}

// Cause is a reason to disrupt a machine, whether or not the machine has it.
type Cause struct {
	Reason karpv1.DisruptionReason
	// Applies reports whether the machine has the reason. If it does not, Message says why, or is "".
	Applies bool
	Message string
	// Since is when the machine began to have the reason. Due is when the controller acts on it. They are zero if unknown.
	Since, Due time.Time
	// Kept is what keeps the machine although it has the reason, or "" if nothing does. RetryAt is when the controller tries again, if known.
	Kept    string
	RetryAt time.Time
}

// NewJudge returns a judge of what was seen.
func NewJudge(seen *Seen) *Judge {
	j := &Judge{decider: decider{fleet: seen.copied(), waiting: seen.waiting}, view: seen.view, placed: seen.placed}
	j.whatIf = newWhatIf(seen.view, seen.others, seen.unhealthy(), func() bool { return true })
	for _, m := range j.machines {
		if reason.MarkedUnderutilized(m.Machine) {
			m.Saving = reason.Cheaper(0, 1)
		}
		m.Steady = true
	}
	j.choose()
	j.progress = j.begins()
	return j
}

// Of returns the verdict on the machine of a NodeClaim. It returns false if there is none.
func (j *Judge) Of(claim string) (Verdict, bool) {
	m := j.named(claim)
	if m == nil {
		return Verdict{}, false
	}
	var v Verdict
	switch {
	case m.Deleting() || m.Node == nil || !m.Started():
		if m.Health != nil {
			v.Causes = append(v.Causes, j.causeUnhealthy(m))
		}
	case m.Replacing() != "":
		v.Causes = append(v.Causes, j.causeMarked(m))
	default:
		v.Causes = append(v.Causes, j.causeUnhealthy(m), j.causeDrifted(m), j.causeIdle(m))
		v.Causes = append(v.Causes, j.causeUnderutilized(m, &v))
	}
	v.Causes = append(v.Causes, j.causeExpiring(m))
	return v, true
}

// causeMarked returns the cause of a machine that the controller is already replacing.
func (j *Judge) causeMarked(m *reason.Machine) Cause {
	word := m.Replacing()
	c := Cause{Reason: reason.Of(word).Name(), Applies: true, Message: "Karve replaces it: " + word}
	if since := timeIn(m.Claim.Annotations[v1alpha1.ReplacingSinceAnnotation]); since != nil {
		c.Since = *since
	}
	if reason.MarkedUnderutilized(m.Machine) && m.NodePool.MovesPods {
		// Only this mark is checked. The others are assumed to be right.
		before, again := verdicts{pending: []string{m.Claim.Name}}, *m
		again.Saving = j.standing(j.whatIf, before, func() bool { return true }).stand[m.Claim.Name]
		again.Candidate = reason.First(&again, j.now)
		m = &again
	}
	if m.Candidate == nil {
		if why, known := reason.Of(word).Ended(m); known {
			c.Kept = why
		}
		return c
	}
	c.Message = m.Candidate.Message
	if o := j.obstacle(m, m.Candidate, &j.progress); o.why != "" {
		c.Kept = o.why
		return c
	}
	c.Due = j.now.Add(j.settle)
	if since := j.since(m.Machine, v1alpha1.DisruptingSinceAnnotation); since != nil {
		c.Due = since.Add(j.settle)
	}
	return c
}

func (j *Judge) causeUnhealthy(m *reason.Machine) Cause {
	c := Cause{Reason: reason.Unhealthy}
	if m.Health == nil {
		return c
	}
	c.Applies, c.Message, c.Due = true, m.Health.Message, j.now.Add(m.Health.Wait)
	c.Kept = m.Health.Kept
	if candidate := reason.Of(reason.Unhealthy).Candidate(m, j.now); candidate != nil {
		c.Kept, c.RetryAt = j.keeps(m, candidate)
	}
	return c
}

func (j *Judge) causeDrifted(m *reason.Machine) Cause {
	c := Cause{Reason: karpv1.DisruptionReasonDrifted}
	candidate := reason.Of(karpv1.DisruptionReasonDrifted).Candidate(m, j.now)
	if candidate == nil {
		if m.NodePool.Unready {
			c.Message = "its NodePool is not ready, so whether it has drifted is not known"
		}
		return c
	}
	c.Applies, c.Message = true, candidate.Word+": "+candidate.Message
	c.Kept, c.RetryAt = j.keeps(m, candidate)
	return c
}

func (j *Judge) causeIdle(m *reason.Machine) Cause {
	c := Cause{Reason: karpv1.DisruptionReasonEmpty}
	switch {
	case !m.Idle():
		c.Message = "its replicas are held by " + words.Count(len(m.Holders()), "pod")
		if len(m.Holders()) == 0 {
			c.Message = "pods run on it, and its NodePool does not move pods"
		}
		return c
	case m.NodePool.IdleAfter == nil:
		c.Message = "it is idle, and its GPUNodeClass keeps idle nodes"
		return c
	}
	c.Applies, c.Message = true, "it is idle"
	if since := j.since(m.Machine, v1alpha1.IdleSinceAnnotation); since != nil {
		c.Since, c.Due = *since, since.Add(*m.NodePool.IdleAfter)
	}
	empty := reason.Of(karpv1.DisruptionReasonEmpty).Candidate(m, j.now)
	switch {
	case m.Wanted:
		c.Kept = "pods that wait have their place on it"
	case m.Headroom:
		c.Kept = "its free replicas are headroom"
	case m.NodePool.HeadroomComing:
		c.Kept = "the headroom of its NodePool is still starting"
	case empty != nil:
		c.Kept = j.refusesIdle(m, empty, &j.progress)
	}
	return c
}

// causeUnderutilized returns how far the step that removes the machine is paid for. If the controller has found no such step, it returns whether the
// remaining machines would cost less without this machine.
func (j *Judge) causeUnderutilized(m *reason.Machine, v *Verdict) Cause {
	c := Cause{Reason: karpv1.DisruptionReasonUnderutilized}
	pool := j.view.PoolNamed(m.Pool())
	if m.NoReplicasHeld() || pool == nil {
		return c // The machine is deleted when it has been idle for long enough.
	}
	if c.Message = layout.Unmovable(pool, m.Machine, j.now); c.Message != "" {
		return c
	}
	claim := m.Claim.Name
	l := layout.Build(j.view, &layout.Part{Machines: map[string]bool{claim: true}, Placed: j.placed}, func(*records.Machine) string { return "" })
	if len(l.Machines) == 0 {
		c.Message = l.Kept[claim]
		return c
	}
	p := Proposal{Claims: []string{claim}}
	v.Restarts = map[string]planner.MicroUSD{}
	for i, pod := range l.Layout.Machines[0].Pods {
		v.Restarts[pod.Name] = l.Restarts[0][i]
	}
	saving, why := j.whatIf.saves(markedForCost(j.machines), p)
	v.Saving = &saving
	steps := waste.Steps(pool.Class, j.now)
	step := slices.IndexFunc(steps, func(step waste.Step) bool { return slices.Contains(step.NodeClaims, claim) })
	if why != "" && (step < 0 || len(steps[step].NodeClaims) == 1) {
		c.Message = why
		return c
	}
	c.Applies, c.Message = true, reason.Cheaper(saving, 1).Message
	if step >= 0 {
		v.Waste = &steps[step]
		if v.Waste.Covered != nil {
			c.Due = *v.Waste.Covered
		}
		if nodes := len(v.Waste.NodeClaims); nodes > 1 {
			c.Message = fmt.Sprintf("the machines would cost less without %d of them, of which it is one", nodes)
		}
		c.Message += ", and have " + v.Waste.String()
	}
	c.Kept = j.keepsInLayout(m, refusal{})
	switch {
	case c.Kept != "":
	case m.NodePool.Launching:
		c.Kept = "machines of its NodePool are starting"
	case m.Wanted:
		c.Kept = "pods that wait have their place on it"
	default:
		c.Kept = j.refusesTogether([]*reason.Machine{m}, j.progress.tally)
	}
	return c
}

func (j *Judge) causeExpiring(m *reason.Machine) Cause {
	c := Cause{Reason: reason.Expiring, Due: reason.Expiry(m), Applies: reason.Expires(m, j.now)}
	switch {
	case c.Due.IsZero():
		c.Message = "it does not expire"
	case c.Due.Equal(m.Leaves):
		c.Message = fmt.Sprintf("capacity block %s ends, and Karpenter deletes its machines before", m.Reservation)
	default:
		c.Message = fmt.Sprintf("expireAfter is %s", *m.Claim.Spec.ExpireAfter.Duration)
	}
	return c
}

// keeps returns what keeps a candidate that is not marked yet, and when the controller tries again if known.
func (j *Judge) keeps(m *reason.Machine, c *reason.Candidate) (why string, retry time.Time) {
	if why = j.refuses(m, c, j.progress.tally); why != "" {
		return why, retention.BackoffUntil(m.Machine, j.now)
	}
	if m.Wanted && !c.Urgent {
		return "pods that wait have their place on it", time.Time{}
	}
	if occupied(m) > 0 && !reason.Forced(m) {
		return j.whatIf.planned([]string{m.Claim.Name}), time.Time{}
	}
	return "", time.Time{}
}

// Blocker returns what keeps the pods from being evicted, or "" if nothing does.
func (j *Judge) Blocker(pods ...*corev1.Pod) string { return j.pods.Blocker(pods) }
