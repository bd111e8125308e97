package explain

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/fleet/disruption"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// judged has what the disruption controller decides about machines.
type judged struct {
	mu    sync.Mutex
	judge *disruption.Judge
	view  *snapshot.View
}

func (x *Explainer) judge() *judged {
	plan, headroom := checked.Suppose(x.view(), effort)
	s := x.settings
	diagnosis := repair.Diagnose(x.cluster, plan.View.Machines, s.Tolerations)
	return &judged{judge: disruption.NewJudge(disruption.Look(x.cluster, &plan, &headroom, diagnosis, s.Evictions, s.Settle)), view: &plan.View}
}

func (j *judged) of(claim string) disruption.Verdict {
	j.mu.Lock()
	defer j.mu.Unlock()
	v, _ := j.judge.Of(claim)
	return v
}

// Node explains why a node stays or goes, and when. The name is that of a Node or of a NodeClaim. It returns an error if there is none.
func (x *Explainer) Node(name string) (NodeAnswer, error) {
	view := x.view()
	for i := range view.Machines {
		if m := &view.Machines[i]; m.Claim.Name == name || m.Node != nil && m.Node.Name == name {
			return x.machine(m), nil
		}
	}
	if claim := x.cluster.Index.NodeClaim(name); claim != nil {
		return NodeAnswer{NodeClaim: name, Summary: notKarves(facts.IsCanary(claim))}, nil
	}
	if node, _ := x.cluster.Index.Node(name); node != nil {
		return NodeAnswer{Node: name, Summary: notKarves(node.Labels[v1alpha1.CanaryLabel] != "")}, nil
	}
	return NodeAnswer{}, fmt.Errorf("node %s does not exist: list nodes with kubectl get nodes, and those that are starting with kubectl get nodeclaims", name)
}

func notKarves(canary bool) string {
	if canary {
		return "is a canary that tests an image: see kubectl get gpuimagerollouts"
	}
	return "was not launched by Karve, so Karve does not delete it"
}

func (x *Explainer) machine(m *records.Machine) NodeAnswer {
	a := NodeAnswer{
		NodeClaim: m.Claim.Name, NodePool: m.Pool(), State: x.stateOf(m), Replicas: m.Exposed(), Held: m.ReplicasInUse(), Since: timeOrNil(m.Claim.CreationTimestamp.Time),
	}
	a.Price, a.ListPrice = priceOf(m)
	a.InstanceType, a.Zone, a.CapacityType = records.ShapeOf(m.Claim)
	if m.Node != nil {
		a.Node = m.Node.Name
	}
	for _, c := range x.judged().of(m.Claim.Name).Causes {
		if c.Applies || c.Message != "" {
			a.Causes = append(a.Causes, Cause{
				Reason: c.Reason, Applies: c.Applies, Message: c.Message, Since: timeOrNil(c.Since), Due: timeOrNil(c.Due), Kept: c.Kept, RetryAt: timeOrNil(c.RetryAt),
			})
		}
	}
	slices.SortStableFunc(a.Causes, func(a, b Cause) int { return rank(a) - rank(b) })
	if a.State != lifecycle.Started && a.State != lifecycle.Unhealthy {
		rule := lifecycle.Of(a.State)
		a.Next, a.Late = rule.Next, rule.Late
		a.Until = timeOrNil(x.until(m, a.State))
	}
	a.Cordon = cordonOf(m.Node)
	a.Goes = x.goes(&a)
	a.Summary = x.summary(&a, m)
	return a
}

// cordonOf returns, from the agent's condition, which GPUs of a node accept no new pods because somebody has cordoned them, or "" if there are none.
func cordonOf(node *corev1.Node) string {
	if node == nil {
		return ""
	}
	asked := node.Annotations[nodecontract.GPUCordonAnnotation]
	for _, c := range node.Status.Conditions {
		if c.Type == nodecontract.CordonCondition && (asked != "" || c.Status == corev1.ConditionTrue) {
			return c.Message
		}
	}
	if asked == "" {
		return ""
	}
	return fmt.Sprintf("no agent has acted on the annotation %s=%.64q yet: see kubectl karve doctor", nodecontract.GPUCordonAnnotation, asked)
}

func rank(c Cause) int {
	switch {
	case c.Applies && c.Kept == "":
		return 0
	case c.Applies:
		return 1
	}
	return 2
}

// stateOf returns the state of a machine, including states that depend on the time.
func (x *Explainer) stateOf(m *records.Machine) lifecycle.State {
	state := m.State()
	switch {
	case m.Broken(x.cluster.Now, x.cluster.ReplicasTimeout):
		return lifecycle.Broken
	case (state == lifecycle.Started || state == lifecycle.Replacing) && m.Node != nil && facts.HasTaint(m.Node, v1alpha1.DisruptingTaintKey):
		return lifecycle.Disrupting
	case state == lifecycle.Started && x.settings.Tolerations.Fault(m, x.cluster.Now) != nil:
		return lifecycle.Unhealthy
	}
	return state
}

// until returns when the time limit of a state ends, or the zero time if unknown.
func (x *Explainer) until(m *records.Machine, state lifecycle.State) time.Time {
	switch state {
	case lifecycle.Requested:
		return m.Claim.CreationTimestamp.Add(lifecycle.Of(state).Limit.Default)
	case lifecycle.Launched, lifecycle.Registered, lifecycle.Initializing, lifecycle.NodeMissing:
		until, _ := m.BrokenSince(x.cluster.ReplicasTimeout)
		return until
	case lifecycle.Broken:
		if since, ok := m.BrokenSince(x.cluster.ReplicasTimeout); ok {
			return since.Add(x.cluster.ReplicasTimeout)
		}
	case lifecycle.Replacing:
		if since := facts.TimeOf(m.Claim.Annotations[v1alpha1.ReplacingSinceAnnotation]); !since.IsZero() {
			return since.Add(lifecycle.ReplacingPatience)
		}
	case lifecycle.Disrupting:
		if since := facts.TimeOf(m.Node.Annotations[v1alpha1.DisruptingSinceAnnotation]); !since.IsZero() {
			return since.Add(x.settings.Settle)
		}
	case lifecycle.Draining:
		return facts.TimeOf(m.Claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey])
	case lifecycle.Started, lifecycle.Unhealthy:
	}
	return time.Time{}
}

// goes returns the earliest time at which Karve deletes the node, if nothing keeps it and its NodeClaim is watched for the settle time.
func (x *Explainer) goes(a *NodeAnswer) *time.Time {
	if a.State == lifecycle.Draining {
		return a.Until
	}
	var first time.Time
	for _, c := range a.Causes {
		if c.Due == nil || c.Kept != "" || !c.Applies && c.Reason != reason.Expiring {
			continue
		}
		due := *c.Due
		if c.Reason != reason.Expiring {
			if due.Before(x.cluster.Now) {
				due = x.cluster.Now
			}
			if a.State != lifecycle.Disrupting {
				due = due.Add(x.settings.Settle)
			}
		}
		if first.IsZero() || due.Before(first) {
			first = due
		}
	}
	return timeOrNil(first)
}

// summary returns one sentence without the name of the node.
func (x *Explainer) summary(a *NodeAnswer, m *records.Machine) string {
	switch a.State {
	case lifecycle.Draining:
		return fmt.Sprintf("is being deleted: Karpenter evicts its %s", words.Count(len(m.Moving()), "pod"))
	case lifecycle.Broken:
		return fmt.Sprintf("did not start in time, so it does not count as room: its NodeClaim was created %s ago", age(x.cluster.Now, m.Claim.CreationTimestamp.Time))
	case lifecycle.Started, lifecycle.Unhealthy, lifecycle.Replacing, lifecycle.Disrupting:
	default:
		return fmt.Sprintf("is starting, and is %s (%s), %s after its NodeClaim was created", a.State, lifecycle.Of(a.State).Means, age(x.cluster.Now, m.Claim.CreationTimestamp.Time))
	}
	for _, c := range a.Causes {
		switch {
		case !c.Applies:
			continue
		case c.Kept != "":
			return fmt.Sprintf("stays although %s: %s", clause(c), c.Kept)
		case c.Reason == reason.Expiring && a.Goes != nil:
			return "will be deleted: it expires at " + clockTime(*a.Goes)
		case c.Due != nil && c.Due.After(x.cluster.Now):
			return fmt.Sprintf("will be deleted in %s at the earliest: %s", words.Age(c.Due.Sub(x.cluster.Now)), clause(c))
		default:
			return "will be deleted once its pods have room elsewhere: " + clause(c)
		}
	}
	if a.Goes != nil {
		return fmt.Sprintf("stays until it expires in %s", words.Age(a.Goes.Sub(x.cluster.Now)))
	}
	return "stays"
}

// clause returns the message of a cause as part of a sentence.
func clause(c Cause) string { return strings.TrimSuffix(c.Message, ".") }

func clockTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// priceOf returns the price of a machine per hour and that in the cloud's list, or nil if unknown.
func priceOf(m *records.Machine) (own, list *planner.MicroUSD) {
	price := planner.MicroUSD(m.MicroUSDPerHour())
	if m.Reservation != "" {
		price = planner.MicroUSD(m.Promise.MicroUSDPerHour) // What its slot costs, whoever uses it.
	}
	if price <= 0 {
		return nil, nil
	}
	return &price, new(planner.MicroUSD(m.ListMicroUSDPerHour()))
}

func (x *Explainer) running(a *PodAnswer, pod *corev1.Pod) {
	a.Rules = rulesOf(pod)
	view := x.view()
	i := slices.IndexFunc(view.Machines, func(m records.Machine) bool { return m.Node != nil && m.Node.Name == pod.Spec.NodeName })
	if i < 0 {
		a.Place = &Place{Node: pod.Spec.NodeName, Replicas: a.Wants.Replicas}
		a.Summary = fmt.Sprintf("runs on node %s, which Karve did not launch and does not delete", pod.Spec.NodeName)
		return
	}
	m := &view.Machines[i]
	a.Place = &Place{
		Node: pod.Spec.NodeName, NodeClaim: m.Claim.Name, NodePool: m.Pool(), Replicas: a.Wants.Replicas, NodeReplicas: m.Promise.Replicas(),
	}
	a.Place.NodePrice, a.Place.NodeListPrice = priceOf(m)
	a.Place.InstanceType, a.Place.Zone, a.Place.CapacityType = records.ShapeOf(m.Claim)
	if gpus := reportedGPUs(m, pod, x.cluster.Now); len(gpus) > 0 {
		a.Place.GPUs, a.Place.Reported = gpus, true
	} else if gpu, ok := m.GPUsHeld()[pod]; ok && gpu >= 0 && !m.Promise.MIG.Mixed() {
		a.Place.GPUs = []int{gpu}
	}
	if price := a.Place.NodePrice; price != nil {
		share := shareOf(pod, m, *price)
		a.Place.Price = &share
	}
	a.Summary = fmt.Sprintf("has run on %s of NodePool %s for %s, with %d of its %s", pod.Spec.NodeName, m.Pool(),
		age(x.cluster.Now, facts.StartTime(pod)), a.Place.Replicas, words.Count(a.Place.NodeReplicas, "replica"))
	a.Move = x.move(pod, m)
}

// reportedGPUs returns the indices of the GPUs that the agent of the node reports for a pod, or none if it has not reported recently.
func reportedGPUs(m *records.Machine, pod *corev1.Pod, now time.Time) []int {
	report, ok, err := nodecontract.ParseHolders(m.Node.Annotations[nodecontract.HoldersAnnotation])
	if !ok || err != nil || !report.FreshAt(now) {
		return nil
	}
	var gpus []int
	for _, gpu := range report.GPUs {
		if slices.ContainsFunc(gpu.Holders, func(h nodecontract.GPUHolder) bool { return h.Pod == facts.PodName(pod) }) {
			gpus = append(gpus, gpu.Index)
		}
	}
	return gpus
}

// shareOf returns the part of a machine's price that a pod's replicas pay for.
func shareOf(pod *corev1.Pod, m *records.Machine, price planner.MicroUSD) planner.MicroUSD {
	holders := m.Holders()
	held := make([]int64, len(holders))
	for i, holder := range holders {
		held[i] = m.SharesOf(holder)
	}
	shares, _ := bill.Split(int64(price), m.Shares(), held)
	for i, holder := range holders {
		if facts.PodName(holder) == facts.PodName(pod) {
			return planner.MicroUSD(shares[i])
		}
	}
	return 0
}

// move reports whether consolidation would move a pod off its machine.
func (x *Explainer) move(pod *corev1.Pod, m *records.Machine) *Move {
	j := x.judged()
	v := j.of(m.Claim.Name)
	move := &Move{Saving: v.Saving}
	if cost, ok := v.Restarts[facts.PodName(pod)]; ok {
		move.Cost = &cost
	}
	if move.Kept = j.judge.Blocker(pod); move.Kept != "" {
		return move
	}
	for _, c := range v.Causes {
		switch {
		case c.Applies && c.Kept == "" && c.Reason != reason.Expiring:
			return &Move{Cost: move.Cost, Saving: move.Saving}
		case c.Reason == "Underutilized" && !c.Applies:
			move.Kept = c.Message
		case c.Applies && c.Kept != "":
			move.Kept = c.Kept
		}
	}
	return move
}
