package model

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot/facts"
)

// stepTimes runs n turns with a pause after each.
func (w *world) stepTimes(n int, pause time.Duration) {
	for range n {
		if w.turn(); w.failure != "" {
			return
		}
		w.clock.Step(pause)
	}
}

// ends ends all faults and checks that everything settles.
func (w *world) ends(t *testing.T) {
	t.Helper()
	w.heal()
	if w.settles(); w.failure != "" {
		t.Errorf("%s\n%s", w.failure, strings.Join(w.trace, "\n"))
	}
}

// asks returns a world whose workloads want these numbers of pods.
func asks(web, large, squat int) *world {
	w := newWorld(1)
	w.desired["web"], w.desired["large"], w.desired["squat"] = web, large, squat
	return w
}

func TestStartupTaintThatStays(t *testing.T) {
	t.Parallel()
	w := asks(2, 0, 0)
	w.csiBroken = true
	w.stepTimes(10, 10*time.Second)
	w.ends(t)
}

func TestDebugPodOnBrokenMachine(t *testing.T) {
	t.Parallel()
	w := asks(2, 0, 0)
	w.pluginBroken = true
	w.stepTimes(10, 10*time.Second)
	w.anyNode(w.debug)
	w.ends(t)
}

// A user keeps a machine that died before it was initialized. It does not count against the disruption budget.
func TestUninitializedMachineBesideIdleOne(t *testing.T) {
	t.Parallel()
	w := asks(2, 0, 0)
	w.stepTimes(20, 10*time.Second)
	w.csiBroken, w.desired["web"] = true, 4
	w.stepTimes(10, 10*time.Second)
	for _, claim := range w.claims() {
		if h := w.hardware[claim.Name]; !h.clears {
			h.dead = true
			node := w.node(claim)
			node.Annotations[repair.DoNotRepair] = "true"
			w.ready(node, corev1.ConditionUnknown)
		}
	}
	w.desired["web"] = 0
	w.ends(t)
}

// starting returns a world with a group of four pods, and the NodeClaims of the two machines that are launched for it.
func starting(t *testing.T, api facts.GroupAPI) (*world, *gang, []*karpv1.NodeClaim) {
	t.Helper()
	w := newWorld(1)
	g := w.newGang(api, 4)
	g.wanted = 4
	w.putPodGroup(g)
	w.replicate()
	w.schedule()
	w.runs("provisioning")
	claims := w.claims()
	if len(claims) != 2 {
		t.Fatalf("%d machines are launched for a group that fills two", len(claims))
	}
	return w, g, claims
}

func TestGroupIsRefusedHalfway(t *testing.T) {
	t.Parallel()
	for _, api := range facts.PodGroupAPIs() {
		w, g, claims := starting(t, api)
		w.karpenter(claims[0])
		w.refusing = true
		w.stepTimes(20, time.Minute)
		if len(w.claims()) > 0 {
			t.Errorf("%s: a machine stays although the rest is refused", api)
		}
		if w.ends(t); !g.runs {
			t.Errorf("%s: the group does not start", api)
		}
	}
}

func TestKarveRestartsWhileAGroupStarts(t *testing.T) {
	t.Parallel()
	w, g, _ := starting(t, facts.KubernetesGroups)
	for range 20 {
		w.begin()
		w.stepTimes(1, 10*time.Second)
	}
	if w.ends(t); !g.runs || len(w.claims()) != 2 {
		t.Errorf("the group runs: %v, on %d machines; want two", g.runs, len(w.claims()))
	}
}

func TestGroupIsDeletedWhileItStarts(t *testing.T) {
	t.Parallel()
	w, g, claims := starting(t, facts.PluginGroups)
	w.karpenter(claims[0])
	w.groupGoes(g)
	w.stepTimes(40, time.Minute)
	if w.ends(t); len(w.claims()) > 0 {
		t.Errorf("%d machines stay for a group that is gone", len(w.claims()))
	}
}

// A pod of a group is deleted after all machines were launched, and no other is created.
func TestGroupLosesAPodWhileItStarts(t *testing.T) {
	t.Parallel()
	w, g, _ := starting(t, facts.VolcanoGroups)
	g.wanted, g.size = 3, 3
	w.store.drop(w.membersOf(g)[0])
	w.stepTimes(60, time.Minute)
	if w.ends(t); len(w.claims()) > 0 {
		t.Errorf("%d machines stay for a group with too few pods", len(w.claims()))
	}
}

func TestGroupLargerThanTheLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(1)
	w.limit(1)
	g := w.newGang(facts.KAIGroups, 4)
	g.wanted = 4
	w.putPodGroup(g)
	if w.stepTimes(60, time.Minute); w.made > 5 || len(w.claims()) > 0 {
		t.Errorf("machines for a group that the limit does not allow: %s", strings.Join(w.trace, "\n"))
	}
	w.limit(2)
	if w.ends(t); !g.runs {
		t.Error("the group does not start once the limit allows it")
	}
}
