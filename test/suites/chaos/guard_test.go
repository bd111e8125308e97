package chaos

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// guard checks that no group keeps a part of its places, and that no component takes a pod of an app away while its PodDisruptionBudget does not allow it. An app that loses pods with a dead node loses them
// by the script. It may lose one more by an eviction that was admitted before the loss was known.
type guard struct {
	mu sync.Mutex
	// atLeast is the number of healthy pods that the budget of each app requires.
	atLeast map[string]int
	pods    map[types.UID]guarded
	// dead are the Nodes that are dead or have just come back, with the time when they came back; zero for dead Nodes.
	dead map[string]time.Time
	// lost is when an app last lost a pod with a node.
	lost map[string]time.Time
	// missed is when the watch last reported pods that had gone while it was disconnected.
	missed time.Time
	// runs reports whether the machine of a Node runs. If a running machine's kubelet misses its heartbeats, as on a busy machine, no component has taken its
	// pods away.
	runs func(node string) bool
	tell func(format string, args ...any)
	// breaches are the violations found.
	breaches []string
	groups   map[string]*guardedGroup
	// evicted counts the evicted pods, died the pods lost with nodes.
	evicted, died int
}

type guarded struct {
	app, name, node string
	healthy         bool
}

const (
	// race is how long evictions may still be admitted after a node has died, because the disruption controller has not yet counted the loss. After its watch
	// was disconnected, the guard itself may be as late.
	race = 5 * time.Second
	// convalescence is how long the pods of a node that came back may still look unhealthy.
	convalescence = 30 * time.Second
)

func newGuard(atLeast map[string]int, runs func(node string) bool, tell func(format string, args ...any)) *guard {
	return &guard{atLeast: atLeast, runs: runs, tell: tell, pods: map[types.UID]guarded{}, dead: map[string]time.Time{}, lost: map[string]time.Time{}, groups: map[string]*guardedGroup{}}
}

// kills records that the script kills a node, revives that the node came back.
func (g *guard) kills(node string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dead[node] = time.Time{}
}

func (g *guard) recovers(node string, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dead[node] = now
}

// misses records that a pod went while the watch was disconnected, for instance while the API server was down: when and why is unknown. A watch reports all
// such pods before any new one.
func (g *guard) misses(pod *corev1.Pod, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.noteGroup(pod, true, now)
	delete(g.pods, pod.UID)
	g.missed = now
}

// note records a watch event of a pod.
func (g *guard) note(pod *corev1.Pod, gone bool, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.noteGroup(pod, gone, now)
	before := g.pods[pod.UID]
	after := guarded{app: pod.Labels["app"], name: pod.Name, node: pod.Spec.NodeName, healthy: !gone && healthy(pod)}
	g.pods[pod.UID] = after
	if gone {
		delete(g.pods, pod.UID)
	}
	if !before.healthy || after.healthy {
		return
	}
	left, why := g.healthy(after.app), reasonOf(pod)
	back, died := g.dead[after.node]
	switch {
	case died && (back.IsZero() || now.Before(back.Add(convalescence))), why == unheard && g.runs(after.node):
		g.lost[after.app] = now
		g.died++
		return
	case why == "EvictionByEvictionAPI":
		g.evicted++
	}
	if least, ok := g.atLeast[after.app]; ok && left < least && now.After(g.lost[after.app].Add(race)) && now.After(g.missed.Add(race)) {
		g.breached("%s: a PodDisruptionBudget is broken: %d healthy pods of %s are left, it asks for %d, since pod %s on node %s went (%s)",
			now.Format(clock), left, after.app, least, after.name, after.node, why)
	}
}

// breach records a violation.
func (g *guard) breach(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.breached(format, args...)
}

func (g *guard) breached(format string, args ...any) {
	breach := fmt.Sprintf(format, args...)
	g.breaches = append(g.breaches, breach)
	g.tell("May not happen: %s", breach)
}

func (g *guard) healthy(app string) int {
	n := 0
	for _, p := range g.pods {
		if p.app == app && p.healthy {
			n++
		}
	}
	return n
}

// healthy reports whether a pod is healthy by the rules of the disruption controller.
func healthy(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && pod.Status.Phase == corev1.PodRunning && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// unheard is the reason for a pod that no component has deleted.
const unheard = "not ready any more"

// reasonOf returns why the pod was taken away, from its conditions.
func reasonOf(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			return c.Reason
		}
	}
	if pod.DeletionTimestamp.IsZero() {
		return unheard
	}
	return "deleted"
}

func (g *guard) found() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.breaches)
}

func (g *guard) counts() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return fmt.Sprintf("%d pods were evicted, %d were lost with their nodes", g.evicted, g.died)
}

func TestOnlyEvictionsBreachBudget(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pod := func(i int, ready bool, reason string) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i)), Name: fmt.Sprint("web-", i), Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: fmt.Sprint("node-", i)},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}},
		}
		if ready {
			p.Status.Conditions[0].Status = corev1.ConditionTrue
		}
		if reason != "" {
			p.DeletionTimestamp = new(metav1.NewTime(began))
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason})
		}
		return p
	}
	const evicted = "EvictionByEvictionAPI"
	for name, c := range map[string]struct {
		then func(g *guard)
		want int
	}{
		"one eviction within the budget": {func(g *guard) { g.note(pod(1, true, evicted), false, began) }, 0},
		"two evictions": {func(g *guard) {
			g.note(pod(1, true, evicted), false, began)
			g.note(pod(2, true, evicted), false, began)
		}, 1},
		"one eviction reported twice": {func(g *guard) {
			g.note(pod(1, true, evicted), false, began)
			g.note(pod(1, true, evicted), true, began)
		}, 0},
		"two evictions with one replacement": {func(g *guard) {
			g.note(pod(1, true, evicted), false, began)
			g.note(pod(4, true, ""), false, began)
			g.note(pod(2, true, evicted), false, began)
		}, 0},
		"two dead nodes": {func(g *guard) {
			g.kills("node-1")
			g.kills("node-2")
			g.note(pod(1, false, ""), false, began)
			g.note(pod(2, true, "DeletionByPodGC"), true, began)
		}, 0},
		"pods of nodes that were not killed": {func(g *guard) {
			g.note(pod(1, true, "DeletionByPodGC"), true, began)
			g.note(pod(2, true, "DeletionByPodGC"), true, began)
		}, 1},
		"an eviction as a node dies": {func(g *guard) {
			g.kills("node-1")
			g.note(pod(1, false, ""), false, began)
			g.note(pod(2, true, evicted), false, began.Add(race))
		}, 0},
		"an eviction long after a node has died": {func(g *guard) {
			g.kills("node-1")
			g.note(pod(1, false, ""), false, began)
			g.note(pod(2, true, evicted), false, began.Add(race+1))
		}, 1},
		"two unready pods on a running machine": {func(g *guard) {
			g.runs = func(string) bool { return true }
			g.note(pod(1, false, ""), false, began)
			g.note(pod(2, false, ""), false, began)
		}, 0},
		"two unready pods on stopped machines": {func(g *guard) {
			g.note(pod(1, false, ""), false, began)
			g.note(pod(2, false, ""), false, began)
		}, 1},
		"two pods lost while the watch was broken": {func(g *guard) {
			g.misses(pod(1, true, ""), began)
			g.misses(pod(2, true, ""), began)
			g.note(pod(3, true, evicted), false, began)
			g.note(pod(4, true, ""), false, began)
		}, 0},
		"one pod lost during a broken watch and a later eviction": {func(g *guard) {
			g.misses(pod(1, true, ""), began)
			g.note(pod(2, true, evicted), false, began.Add(race+1))
		}, 1},
		"two evictions from a running machine": {func(g *guard) {
			g.runs = func(string) bool { return true }
			g.note(pod(1, true, evicted), false, began)
			g.note(pod(2, true, evicted), false, began)
		}, 1},
		"two pods lost from a node that recovered long ago": {func(g *guard) {
			g.kills("node-1")
			g.recovers("node-1", began)
			g.note(pod(2, true, evicted), false, began)
			g.note(pod(1, true, evicted), false, began.Add(convalescence))
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuard(map[string]int{"web": 2}, func(string) bool { return false }, t.Logf)
			for i := range 3 {
				g.note(pod(i+1, false, ""), false, began)
				g.note(pod(i+1, true, ""), false, began)
			}
			c.then(g)
			if got := g.found(); len(got) != c.want {
				t.Errorf("got %q, want %d breaches", got, c.want)
			}
		})
	}
}
