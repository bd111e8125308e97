package provisioning

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func untriedPod(pod *corev1.Pod) { pod.Status.Conditions = nil }

func TestNothingIsLaunchedForUntriedPodsWithoutASignOfTheScheduler(t *testing.T) {
	t.Parallel()
	large := Asking("cpu", "2", v1alpha1.ResourceGPUShared, "1")
	launch := func(pods ...string) planner.Launch { return planner.Launch{Pods: pods} }
	for name, c := range map[string]struct {
		alive    bool
		launches []planner.Launch
		want     []bool
	}{
		"alive":                          {true, []planner.Launch{launch("default/new-000", "default/new-001"), launch("default/big")}, []bool{false, false}},
		"for pods that it has not tried": {false, []planner.Launch{launch("default/big")}, []bool{true}},
		"for pods that it has tried":     {false, []planner.Launch{launch("default/marked-000", "default/marked-001")}, []bool{false}},
		"for pods that may be exchanged for ones that it has tried": {false, []planner.Launch{launch("default/new-000", "default/new-001")}, []bool{false}},
		"for more than those": {false, []planner.Launch{launch("default/marked-000", "default/new-000"), launch("default/marked-001", "default/new-001")}, []bool{false, true}},
		"for both":            {false, []planner.Launch{launch("default/marked-000", "default/big"), launch("default/marked-001", "default/new-001")}, []bool{true, false}},
		"for headroom":        {false, []planner.Launch{launch("headroom")}, []bool{false}},
	} {
		cluster := Shared()
		cluster.Pods = slices.Concat(Pods("marked", 2), Pods("new", 2, untriedPod), []corev1.Pod{Pod("big", large, untriedPod)})
		cluster.ReadAhead = facts.ReadAhead{Open: true, Alive: c.alive}
		view := snapshot.Build(cluster)
		if got := unproven(&view, c.launches); !slices.Equal(got, c.want) {
			t.Errorf("%s: they wait: %v, want %v", name, got, c.want)
		}
	}
}

func TestUntriedPodsExtendABatchAndNeverBeginOne(t *testing.T) {
	t.Parallel()
	b := newBatch(time.Second, 10*time.Second)
	if b.due(now) != 0 || !b.planned() {
		t.Error("the first plan does not include the pods that came before")
	}
	b.extend("a", now)
	if wait := b.due(now); wait != 0 || b.planned() {
		t.Errorf("an untried pod began a batch, for %s", wait)
	}
	b.add("b", now)
	b.extend("c", after(900*time.Millisecond))
	if wait := b.due(after(time.Second)); wait != 900*time.Millisecond {
		t.Errorf("the batch is open for %s", wait)
	}
	b.extend("c", after(1500*time.Millisecond)) // A later change of the same pod.
	if wait := b.due(after(1900 * time.Millisecond)); wait != 0 || !b.planned() {
		t.Errorf("the batch is open for %s", wait)
	}
	if b.due(after(2*time.Second)) != 0 || b.planned() {
		t.Error("the plan after that closes a batch too")
	}
	b.add("d", now)
	for i := range 20 {
		b.extend(Pod(string(rune('a'+i))).UID, after(time.Duration(i)*500*time.Millisecond))
	}
	if wait := b.due(after(9500 * time.Millisecond)); wait != 500*time.Millisecond {
		t.Errorf("the batch is open for %s, beyond its maximum", wait)
	}
}

func TestVerdictOnAnUntriedPodIsNoArrival(t *testing.T) {
	t.Parallel()
	b := newBatch(time.Second, 10*time.Second)
	b.due(now)
	b.planned()
	for i := range 100 { // They come within half a second, and the scheduler tries twenty a second.
		b.extend(types.UID(fmt.Sprint(i)), after(time.Duration(i)*5*time.Millisecond))
	}
	for i := range 25 {
		b.add(types.UID(fmt.Sprint(i)), after(time.Duration(i)*50*time.Millisecond))
	}
	if wait := b.due(after(1200 * time.Millisecond)); wait != 295*time.Millisecond {
		t.Errorf("the batch is open for %s, want a second after the last pod came", wait)
	}
	if wait := b.due(after(1500 * time.Millisecond)); wait != 0 || !b.planned() {
		t.Errorf("the batch is open for %s", wait)
	}
	// No plan has included the other pods, so the scheduler's verdicts on them are gathered as before.
	for i := 25; i < 100; i++ {
		b.add(types.UID(fmt.Sprint(i)), after(time.Duration(i)*100*time.Millisecond))
	}
	if wait := b.due(after(9900 * time.Millisecond)); wait != time.Second {
		t.Errorf("the next batch is open for %s, want a second after the last verdict", wait)
	}
}
