package disruption

import (
	"math"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
)

// Words for why machines are replaced, beside Karpenter's Drifted and Underutilized.
const (
	// Expiring is the reason of a machine that Karpenter is about to take because its time is over.
	Expiring = "Expiring"
	// Unhealthy is the kind and the reason of a machine that is sick.
	Unhealthy = repair.Unhealthy
)

// cause is why a machine is to be replaced. A mark stays as long as its machine has one.
type cause struct {
	// kind is Drifted, Underutilized or Unhealthy: the word by which budgets, events and metrics speak of it.
	kind karpv1.DisruptionReason
	// reason is the word that the mark carries, where there are several of a kind; message says more.
	reason, message string
	// kept says what else than its pods keeps the machine for now; "" when nothing does.
	kept string
	// forceful says that pods cannot keep the machine where the pool bounds how long it may drain, as with Karpenter.
	forceful bool
}

func drifted(d *drift.Drift) cause {
	return cause{kind: karpv1.DisruptionReasonDrifted, reason: d.Reason, message: d.Message, forceful: true}
}

func unhealthy(sick repair.Case) cause {
	return cause{kind: Unhealthy, reason: Unhealthy, message: sick.Message, kept: sick.Kept, forceful: true}
}

// rank puts those first that can least wait.
func (c cause) rank() int {
	if c.kind == Unhealthy {
		return 0
	}
	return 1
}

// budgeted says whether the NodePool's disruption budgets bound it. Karpenter has none for sick machines, of which a part of the pool is replaced at once at most.
func (c cause) budgeted() bool { return c.kind != Unhealthy }

// allows is how many machines of the pool may be on their way out at once for such a cause.
func (s *state) allows(pool string, c cause) int {
	if !c.budgeted() {
		return math.MaxInt
	}
	return s.allowed[pool][c.kind]
}

// why says why a machine is replaced.
func (s *state) why(m *snapshot.Machine, reason string) string {
	if c, ok := s.causes[m.Claim.Name]; ok && reason != Expiring {
		return c.message
	}
	return "it expires soon"
}
