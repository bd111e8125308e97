package reason

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

var now = snapshottest.Now

// machine returns an empty machine that has started.
func machine(edits ...func(*Machine)) *Machine {
	pool, kind := snapshottest.Pool("gpu", "gpu"), snapshottest.TypeNamed("g4dn.xlarge")
	claim := snapshottest.Claim("a", &pool, kind, snapshottest.Initialized(now.Add(-time.Hour)))
	node := snapshottest.Node(&claim, kind, 10)
	m := &Machine{
		Machine:  &records.Machine{Claim: &claim, Node: &node, Type: kind, Promise: facts.PromiseOf(claim.Annotations)},
		NodePool: &Pool{Name: "gpu", IdleAfter: new(time.Minute), Budgets: map[karpv1.DisruptionReason]int{"Empty": 1, "Drifted": 2, "Underutilized": 3, "Unhealthy": 4}},
	}
	for _, edit := range edits {
		edit(m)
	}
	return m
}

func busy(m *Machine) {
	pod := snapshottest.Pod("web", snapshottest.Running(m.Node.Name))
	m.Pods = append(m.Pods, &pod)
}

func hasDrifted(m *Machine) { m.Drift = &drift.Drift{Reason: drift.NodePool, Message: "it is old"} }

func saves(m *Machine) { m.Saving = Cheaper(1_000_000, 1) }

func ill(c repair.Case) func(*Machine) {
	c.Message = "a GPU is lost"
	return func(m *Machine) { m.Health = &c }
}

func expires(m *Machine) {
	life := 24 * time.Hour
	m.Claim.CreationTimestamp = metav1.NewTime(now.Add(ExpiryLead - life))
	m.Claim.Spec.ExpireAfter = karpv1.NillableDuration{Duration: &life}
}

func TestFirstMatchingReasonWins(t *testing.T) {
	t.Parallel()
	kept := ill(repair.Case{Kept: "too many are"})
	for name, c := range map[string]struct {
		machine *Machine
		word    string // "" for none
	}{
		"no reason":                             {machine(), ""},
		"drifted":                               {machine(hasDrifted), drift.NodePool},
		"unhealthy and drifted":                 {machine(hasDrifted, ill(repair.Case{})), Unhealthy},
		"unhealthy and kept":                    {machine(kept), Unhealthy},
		"unhealthy and kept, and drifted":       {machine(kept, hasDrifted), drift.NodePool},
		"unhealthy and kept, and underutilized": {machine(kept, saves), Unhealthy},
		"not unhealthy for long enough":         {machine(ill(repair.Case{Wait: time.Second}), saves), "Underutilized"},
		"unreachable kubelet":                   {machine(ill(repair.Case{Fault: repair.Fault{Forceful: true}})), ""},
		"drifted and underutilized":             {machine(hasDrifted, saves), drift.NodePool},
		"expiring, which Karpenter handles":     {machine(busy, expires), ""},
	} {
		got := First(c.machine, now)
		if got == nil {
			got = &Candidate{}
		}
		if got.Word != c.word {
			t.Errorf("%s: %q, want %q", name, got.Word, c.word)
		}
	}
}

func TestOnlyUsedMachineIsReplacedBeforeItExpires(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		machine *Machine
		want    bool
	}{
		"with a pod":         {machine(busy, expires), true},
		"with headroom":      {machine(expires, func(m *Machine) { m.Headroom = true }), true},
		"without pods":       {machine(expires), false},
		"that expires later": {machine(busy), false},
	} {
		if got := (expiring{}).Candidate(c.machine, now) != nil; got != c.want {
			t.Errorf("a machine %s: %t, want %t", name, got, c.want)
		}
	}
}

func TestReasonsHaveNamesAndBudgets(t *testing.T) {
	t.Parallel()
	for word, c := range map[string]struct {
		name    karpv1.DisruptionReason
		allowed int
	}{
		"Empty": {"Empty", 1}, "Drifted": {"Drifted", 2}, drift.Image: {"Drifted", 2}, "Underutilized": {"Underutilized", 3}, Unhealthy: {Unhealthy, 4}, Expiring: {Expiring, math.MaxInt},
	} {
		if r := Of(word); r.Name() != c.name || r.Allowed(machine().NodePool) != c.allowed {
			t.Errorf("%s is %s with a budget of %d, want %s with %d", word, r.Name(), r.Allowed(machine().NodePool), c.name, c.allowed)
		}
	}
}

// pods has the reason why pods cannot be evicted, and the reason why they keep a machine that would be removed only to save cost.
type pods struct{ blocker, keeps string }

func (p pods) Blocker(asked []*corev1.Pod) string {
	if len(asked) == 0 {
		return ""
	}
	return p.blocker
}

func (p pods) Keeps(*records.Machine) string { return p.keeps }

func TestKeepReportsWhatProtectsCandidate(t *testing.T) {
	t.Parallel()
	protected := func(m *Machine) { m.Node.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true" }
	bounded := func(m *Machine) { m.NodePool.DrainBounded = true }
	for name, c := range map[string]struct {
		reason  Reason
		machine *Machine
		pods    pods
		keeps   bool
	}{
		"nothing":                        {drifted{}, machine(busy, hasDrifted), pods{}, false},
		"its Node":                       {drifted{}, machine(busy, hasDrifted, protected, bounded), pods{}, true},
		"a pod":                          {drifted{}, machine(busy, hasDrifted), pods{blocker: "no"}, true},
		"no pod if the drain is bounded": {drifted{}, machine(busy, hasDrifted, bounded), pods{blocker: "no"}, false},
		"a pod despite the bound if the reason is cost": {underutilized{}, machine(busy, saves, bounded), pods{blocker: "no"}, true},
		"a pod that Karpenter would drain":              {underutilized{}, machine(busy, saves), pods{keeps: "no"}, true},
		"no undrainable pod unless the reason is cost":  {drifted{}, machine(busy, hasDrifted), pods{keeps: "no"}, false},
		"its pool if it is idle":                        {empty{}, machine(func(m *Machine) { m.NodePool.KeepsIdle = "no" }), pods{}, true},
		"too many unhealthy machines":                   {unhealthy{}, machine(busy, bounded, ill(repair.Case{Kept: "no"})), pods{}, true},
	} {
		candidate := c.reason.Candidate(c.machine, now)
		if candidate == nil {
			t.Errorf("%s: no candidate", name)
		} else if why := c.reason.Blocked(c.machine, candidate, c.machine.Pods, c.pods); (why != "") != c.keeps {
			t.Errorf("%s: %q", name, why)
		}
	}
}

func TestEndedReportsWhichMarksNoLongerApply(t *testing.T) {
	t.Parallel()
	unready := machine(func(m *Machine) { m.NodePool.Unready = true })
	for word, want := range map[string]bool{drift.NodePool: false, Expiring: false, Unhealthy: true, "Underutilized": true} {
		if why, known := Of(word).Ended(unready); known != want || why == "" {
			t.Errorf("marked %s, of a pool that is not ready: %q, %t", word, why, known)
		}
		if _, known := Of(word).Ended(machine()); !known {
			t.Errorf("marked %s: it is not known whether it ended", word)
		}
	}
}

func TestMachinesLeaveWithTheirCapacityBlocks(t *testing.T) {
	t.Parallel()
	leaves := func(in time.Duration) func(*Machine) {
		return func(m *Machine) { m.Reservation, m.Leaves = "cr-1", now.Add(in) }
	}
	for name, c := range map[string]struct {
		machine *Machine
		expiry  time.Time
		why     string // "" if it does not expire soon
	}{
		"a reservation without an end": {machine(busy), time.Time{}, ""},
		"long before":                  {machine(busy, leaves(time.Hour)), now.Add(time.Hour), ""},
		"a moment too early":           {machine(busy, leaves(ExpiryLead+time.Second)), now.Add(ExpiryLead + time.Second), ""},
		"soon":                         {machine(busy, leaves(ExpiryLead)), now.Add(ExpiryLead), "its capacity block cr-1 ends soon"},
		"before it expires":            {machine(busy, expires, leaves(time.Minute)), now.Add(time.Minute), "its capacity block cr-1 ends soon"},
		"after it expires":             {machine(busy, expires, leaves(time.Hour)), now.Add(ExpiryLead), "it expires soon"},
	} {
		if at := Expiry(c.machine); !at.Equal(c.expiry) {
			t.Errorf("%s: it expires at %s, want %s", name, at, c.expiry)
		}
		got := Of(Expiring).Candidate(c.machine, now)
		if got == nil {
			got = &Candidate{}
		}
		if got.Message != c.why || (c.why != "") != Expires(c.machine, now) {
			t.Errorf("%s: %q, want %q", name, got.Message, c.why)
		}
	}
}
