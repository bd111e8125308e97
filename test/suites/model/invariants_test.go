package model

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// removal is what Karve removes in one reconcile of the disruption controller.
type removal struct {
	// idle are the claims of idle machines that were deleted.
	idle []string
	// due are the claims of machines whose idle time was over before the reconcile. disrupted are the claims that used up the budget before it.
	due       []string
	disrupted map[string]bool
}

// reconcilesDisruption runs the disruption controller, which returns when to requeue, and checks what it does and what it leaves.
func (w *world) reconcilesDisruption(look func() time.Duration) {
	w.removal = removal{due: w.dueMachines(), disrupted: w.disrupted()}
	if again := look(); again > time.Second { // Otherwise it has not finished.
		w.givesBack()
	}
	w.keepsSquatters()
	w.removal = removal{}
}

// deleted is called for each object that Karve deletes.
func (w *world) deleted(o client.Object) {
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok {
		return
	}
	w.logf("%s deletes %s", w.acting, claim.Name)
	if w.acting != "disruption" || w.hardware[claim.Name].dead {
		return
	}
	w.drainsAlone(claim)
	if claim.Annotations[v1alpha1.ReplacingAnnotation] == "" {
		w.removal.idle = append(w.removal.idle, claim.Name)
	}
}

// drainsAlone checks that no other machine drains pods of a PodDisruptionBudget that also covers pods of the removed machine.
func (w *world) drainsAlone(claim *karpv1.NodeClaim) {
	for _, pdb := range all[*policyv1.PodDisruptionBudget](w.store) {
		drains := func(c *karpv1.NodeClaim) bool {
			return !c.DeletionTimestamp.IsZero() && slices.ContainsFunc(w.on(c.Name), func(p *corev1.Pod) bool { return p.DeletionTimestamp.IsZero() && w.covers(pdb, p) })
		}
		for _, other := range w.claims() {
			if other.Name != claim.Name && drains(claim) && drains(other) {
				w.failf("%s and %s are drained at once, with pods of the PodDisruptionBudget %s", other.Name, claim.Name, pdb.Name)
			}
		}
	}
}

// disrupted returns the machines that count against the disruption budget as Karpenter counts: initialized machines that are not ready or being removed.
func (w *world) disrupted() map[string]bool {
	disrupted := map[string]bool{}
	for _, claim := range w.claims() {
		if node := w.node(claim); w.initialized(claim) && (!isReady(node) || !claim.DeletionTimestamp.IsZero() || tainted(node, v1alpha1.DisruptingTaintKey)) {
			disrupted[claim.Name] = true
		}
	}
	return disrupted
}

func (w *world) initialized(claim *karpv1.NodeClaim) bool {
	node := w.node(claim)
	return node != nil && node.Labels[karpv1.NodeInitializedLabelKey] == "true"
}

// allowed returns how many machines may be disrupted at once, as Karpenter counts.
func (w *world) allowed() int {
	total := len(slices.DeleteFunc(w.claims(), func(c *karpv1.NodeClaim) bool { return !w.initialized(c) }))
	return w.pool().MustGetAllowedDisruptions(w.clock, total, karpv1.DisruptionReasonEmpty)
}

// dueMachines returns the claims of machines without pods that have been idle long enough to be removed.
func (w *world) dueMachines() []string {
	var due []string
	for _, claim := range w.claims() {
		if w.idlesStill(claim) {
			due = append(due, claim.Name)
		}
	}
	return due
}

// idlesStill reports whether the machine has been idle long enough, is not being removed and is not kept.
func (w *world) idlesStill(claim *karpv1.NodeClaim) bool {
	node := w.node(claim)
	if !w.initialized(claim) || !claim.DeletionTimestamp.IsZero() || claim.Annotations[v1alpha1.ReplacingAnnotation] != "" || len(w.on(claim.Name)) > 0 || tainted(node, v1alpha1.DisruptingTaintKey) {
		return false
	}
	since, err := time.Parse(time.RFC3339, node.Annotations[v1alpha1.IdleSinceAnnotation])
	return err == nil && !w.now().Before(since.Add(idleAfter))
}

// givesBack checks that no machine that was due before the reconcile remains while the budget allows its removal and no pod of a draining machine may need it.
func (w *world) givesBack() {
	if slices.ContainsFunc(w.claims(), func(c *karpv1.NodeClaim) bool { return !c.DeletionTimestamp.IsZero() && len(w.squatters(c)) > 0 }) {
		return
	}
	disrupted := w.disrupted()
	maps.Copy(disrupted, w.removal.disrupted)
	for _, name := range w.removal.due {
		if claim := find[*karpv1.NodeClaim](w.store, "", name); claim.Annotations[v1alpha1.ReplacingAnnotation] != "" {
			disrupted[name] = true // It had its turn as an idle machine before it was marked.
		}
	}
	for _, claim := range w.claims() {
		if !slices.Contains(w.removal.due, claim.Name) || !w.idlesStill(claim) {
			continue
		}
		free := len(disrupted)
		if disrupted[claim.Name] {
			free-- // The machine itself is among them.
		}
		if allowed := w.allowed(); free < allowed {
			w.failf("%s is idle and stays, though the budget allows %d and Karpenter counts %d besides it", claim.Name, allowed, free)
			w.show()
		}
	}
}

// keepsSquatters checks that the pods without replicas on idle machines that Karve removes all fit together on the remaining nodes. These are the pods of
// machines removed in this reconcile, and of machines removed earlier if they fitted until now.
func (w *world) keepsSquatters() {
	if len(w.removal.idle) == 0 {
		return
	}
	var before, now []*corev1.Pod
	for _, claim := range w.claims() {
		switch squatters := w.squatters(claim); {
		case slices.Contains(w.removal.idle, claim.Name):
			now = append(now, squatters...)
		case w.idled[claim.Name]:
			before = append(before, squatters...)
		}
	}
	for _, name := range w.removal.idle {
		w.idled[name] = true
	}
	had, have := w.placed(before, w.removal.idle), w.placed(append(before, now...), nil)
	if have < had+len(now) {
		w.failf("%d pods without replicas of idle machines that Karve removes have a place, of %d", have, had+len(now))
		w.show()
	}
}

// squatters returns the pods without replicas on a machine that are not terminating.
func (w *world) squatters(claim *karpv1.NodeClaim) []*corev1.Pod {
	return slices.DeleteFunc(w.on(claim.Name), func(p *corev1.Pod) bool { return p.Labels["app"] != "squat" || !p.DeletionTimestamp.IsZero() })
}

// placed returns how many of the pods fit on the remaining nodes and the named ones.
func (w *world) placed(pods []*corev1.Pod, also []string) (n int) {
	stays := map[string][]*corev1.Pod{}
	for _, node := range w.nodes() {
		claim := find[*karpv1.NodeClaim](w.store, "", node.Name)
		kept := claim != nil && claim.DeletionTimestamp.IsZero() && !tainted(node, v1alpha1.DisruptingTaintKey)
		if isReady(node) && (node.Name == stock || kept || slices.Contains(also, node.Name)) {
			stays[node.Name] = w.on(node.Name)
		}
	}
	for _, pod := range pods {
		for _, node := range w.nodes() {
			if there, ok := stays[node.Name]; ok && w.holds(node, there, pod) {
				stays[node.Name] = append(there, pod)
				n++
				break
			}
		}
	}
	return n
}

// shapeKeys has the keys under which NodeClaims count the pods of each workload that requests replicas.
var shapeKeys = sync.OnceValue(func() map[string]string {
	keys := map[string]string{}
	for _, name := range []string{"web", "large"} {
		cluster := snapshottest.Shared()
		cluster.Pods = []corev1.Pod{snapshottest.Pod(name, workloads[name], snapshottest.WithLabels("app", name), snapshottest.OwnedBy("apps/v1", "ReplicaSet", name))}
		view := snapshot.Build(cluster)
		for pod := range view.Pods {
			keys[name], _, _ = strings.Cut(view.PlannedPods(planner.Launch{Pods: []string{pod}}), "=")
		}
	}
	return keys
})

// launchesOnce runs the provisioning controller and checks that it launches no second machine for a pod: if it launches a machine for pods of a workload or group, machines that start and work have no
// more places for those than pods wait, or have to leave their machines.
func (w *world) launchesOnce(look func()) {
	before := map[string]bool{}
	for _, c := range w.claims() {
		before[c.Name] = true
	}
	look()
	launched := slices.DeleteFunc(w.claims(), func(c *karpv1.NodeClaim) bool { return before[c.Name] })
	leaves := func(c *karpv1.NodeClaim) bool {
		h := w.hardware[c.Name]
		return !c.DeletionTimestamp.IsZero() || c.Annotations[v1alpha1.ReplacingAnnotation] != "" || h != nil && (h.dead || !h.registers || !h.connects || !h.exposes || !h.clears)
	}
	keys := maps.Clone(shapeKeys())
	for _, g := range w.gangs {
		keys[g.name] = g.key
	}
	for name, key := range keys {
		if !slices.ContainsFunc(launched, func(c *karpv1.NodeClaim) bool { return seats(c, key) > 0 }) {
			continue
		}
		places, pods := 0, 0
		for _, c := range w.claims() {
			if !leaves(c) && !has(c, karpv1.ConditionTypeInitialized) && w.now().Sub(c.CreationTimestamp.Time) <= replicasTimeout {
				places += seats(c, key)
			}
		}
		for _, pod := range w.pods() {
			if pod.Labels["app"] == name && pod.DeletionTimestamp.IsZero() && (pod.Spec.NodeName == "" || slices.ContainsFunc(w.claims(), func(c *karpv1.NodeClaim) bool { return c.Name == pod.Spec.NodeName && leaves(c) })) {
				pods++
			}
		}
		if places > pods {
			w.failf("machines for %d pods of %s start, and %d wait", places, name, pods)
		}
	}
}

// seats returns for how many pods with a key a machine was launched.
func seats(claim *karpv1.NodeClaim, key string) int {
	for part := range strings.SplitSeq(claim.Annotations[v1alpha1.PlannedPodsAnnotation], ",") {
		if of, text, _ := strings.Cut(part, "="); of == key {
			n, _ := strconv.Atoi(text)
			return n
		}
	}
	return 0
}
