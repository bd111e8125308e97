package disruption

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// roundsWorld is a cluster in which rounds of decisions follow each other. It carries out their commands, and everybody else acts in between.
type roundsWorld struct {
	*simulation
	memory Memory
	pdbs   []policyv1.PodDisruptionBudget
	// limits were read when there were as many PodDisruptionBudgets as limited. They use the clock.
	limits  *karpenter.Evictions
	limited int
	clock   *clocktesting.FakeClock
	// refuses reports whether the cloud refuses launches.
	refuses bool
	// log has what happened since the last line was read from it.
	log []string
}

func newRoundsWorld(t rapid.TB) *roundsWorld {
	return &roundsWorld{simulation: newSimulation(t, 0, 1, false, true)}
}

func (w *roundsWorld) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// evictions returns the PodDisruptionBudgets.
func (w *roundsWorld) evictions() karpenter.Evictions {
	if w.clock == nil {
		w.clock = clocktesting.NewFakeClock(w.cluster.Now)
	}
	w.clock.SetTime(w.cluster.Now)
	if w.limits != nil && w.limited == len(w.pdbs) {
		return *w.limits
	}
	scheme := runtime.NewScheme()
	if err := policyv1.AddToScheme(scheme); err != nil {
		w.Fatal(err)
	}
	store := fake.NewClientBuilder().WithScheme(scheme)
	for i := range w.pdbs {
		store.WithObjects(w.pdbs[i].DeepCopy())
	}
	evictions, err := karpenter.NewEvictions(context.Background(), store.Build(), w.clock)
	if err != nil {
		w.Fatal(err)
	}
	w.limits, w.limited = &evictions, len(w.pdbs)
	return evictions
}

// see returns what a round sees of the cluster.
func (w *roundsWorld) see() *Seen {
	read := *w.cluster
	read.NodeClaims, read.Nodes, read.Pods, read.NodePools = copies(read.NodeClaims), copies(read.Nodes), copies(read.Pods), copies(read.NodePools)
	plan, headroom := checked.Suppose(snapshot.Build(&read), 0)
	return Look(&read, &plan, &headroom, repair.Diagnose(&read, plan.View.Machines, tolerations), w.evictions(), settle)
}

// copies returns deep copies of objects, which a later change of the cluster does not change.
func copies[T any, P interface {
	*T
	DeepCopyInto(*T)
}](objects []T) []T {
	out := make([]T, len(objects))
	for i := range objects {
		P(&objects[i]).DeepCopyInto(&out[i])
	}
	return out
}

// round runs one round and carries out its commands. It returns when the next one is due.
func (w *roundsWorld) round() time.Duration {
	commands, memory := Next(w.see(), w.memory, Limits{Effort: simulatedEffort})
	for _, account := range commands.Accounts {
		for i := range w.cluster.GPUNodeClasses {
			if class := &w.cluster.GPUNodeClasses[i]; class.Name == account.Class {
				class.Status.Waste = account.Waste
			}
		}
		memory = memory.Written(account)
	}
	for _, c := range commands.Steps {
		w.note("%s", describe(c))
		memory = w.carryOut(c, memory)
	}
	for _, s := range commands.Steer {
		SetSurplusTaint(w.node(s.Machine.Node.Name), s.Away)
	}
	w.memory = memory
	return commands.Again
}

// describe returns a command as a line of a scenario. It has the event about a machine that stays, if there is a new one.
func describe(c Command) string {
	line := fmt.Sprintf("%s %s", c.Step, c.Machine.Claim.Name)
	switch {
	case c.Event != nil:
		line += fmt.Sprintf(": %s %s", c.Event.Reason, c.Event.Note)
	case c.Step.Reports():
	case c.Reason != "":
		line += ": " + c.Reason
	}
	if len(c.Pods) > 0 {
		line += fmt.Sprintf(" (%d pods)", len(c.Pods))
	}
	return line
}

func (w *roundsWorld) carryOut(c Command, memory Memory) Memory {
	claim, node := w.claim(c.Machine.Claim.Name), w.node(c.Machine.Node.Name)
	if c.Step == Stop || c.Step == GiveUp {
		ClearNode(node)
	} else {
		c.EditNode(node, w.cluster.Now)
	}
	c.EditClaim(claim, w.cluster.Now)
	switch {
	case c.Step == Remove, c.Step == Force && claim.DeletionTimestamp == nil:
		claim.DeletionTimestamp = &metav1.Time{Time: w.cluster.Now}
	case c.Step == HandOver:
		for _, pod := range c.Pods {
			w.evict(pod.UID)
		}
		memory = memory.HandedOver(c.Machine.Pool(), claim.Name, c.Pods, w.cluster.Now)
	}
	return memory
}

// others lets everybody else act: Karve's provisioning, the cloud, Karpenter, and the scheduler.
func (w *roundsWorld) others() {
	view := snapshot.Build(w.cluster)
	w.create(&view, solve.Solver{Effort: 1}.Plan(view.Snapshot).Launches)
	for _, name := range w.waiting() {
		kind, _, _ := records.ShapeOf(w.claim(name))
		if w.refuses {
			w.note("+ the cloud refuses a %s", kind)
		} else {
			if id := records.ReservationOf(w.claim(name)); id != "" {
				kind += " of " + id
			}
			w.note("+ a %s starts", kind)
		}
		w.start(name, w.refuses)
	}
	for range 3 * perXlarge { // A drain evicts all pods at once.
		for _, name := range w.deleting() {
			if w.drain(name); w.claim(name) == nil {
				w.note("+ %s is gone", name)
			}
		}
	}
	for w.bind(w.spreads) {
	}
	w.recount()
}

// recount makes the cloud say how many slots of the reservations are free now.
func (w *roundsWorld) recount() {
	state := w.cluster.NodeClasses[snapshottest.NodeClassRef]
	state.Reservations = slices.Clone(state.Reservations)
	for i := range state.Reservations {
		r := &state.Reservations[i]
		r.Free, r.Read = r.Total, w.cluster.Now.Add(time.Minute) // Whatever starts in this moment is counted.
		for _, m := range w.machines() {
			if m.Reservation == r.ID {
				r.Free--
			}
		}
		if r.Free < 0 {
			w.Fatalf("%d machines are in %s, which has %d", r.Total-r.Free, r.ID, r.Total)
		}
	}
	w.cluster.NodeClasses[snapshottest.NodeClassRef] = state
}

// end ends some of the running pods of a machine.
func (w *roundsWorld) end(node string, n int) {
	w.cluster.Pods = slices.DeleteFunc(w.cluster.Pods, func(p corev1.Pod) bool {
		if p.Spec.NodeName != node || n == 0 {
			return false
		}
		n--
		return true
	})
}

// state describes the machines.
func (w *roundsWorld) state() string {
	kinds := map[string]int{}
	for _, m := range w.machines() {
		kind, _, _ := records.ShapeOf(m.Claim)
		marks := ""
		switch {
		case m.Deleting():
			marks = " deleting"
		case m.Node != nil && Tainted(m.Node):
			marks = " tainted"
		case m.Replacing() != "":
			marks = " replacing"
		}
		kinds[fmt.Sprintf("%s with %d pods%s", kind, len(m.Pods), marks)]++
	}
	var lines []string
	for _, kind := range slices.SortedFunc(maps.Keys(kinds), cmp.Compare[string]) {
		lines = append(lines, fmt.Sprintf("%d %s", kinds[kind], kind))
	}
	return strings.Join(lines, ", ")
}
