package model

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// removal is what Karve gives back in one look at the machines.
type removal struct {
	// idle are the claims whose machines were idle.
	idle []string
	// due are the idle machines whose time was over before the look, disrupted those that used up the budget, by claim.
	due       []string
	disrupted map[string]bool
}

// looks runs a look of the disruption controller, which says when the next one is, and checks what it does and what it leaves.
func (w *world) looks(look func() time.Duration) {
	w.removal = removal{due: w.dueMachines(), disrupted: w.disrupted()}
	if again := look(); again > time.Second { // Otherwise it is not done.
		w.givesBack()
	}
	w.keepsSquatters()
	w.removal = removal{}
}

// deleted is told of what Karve deletes.
func (w *world) deleted(o client.Object) {
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok {
		return
	}
	w.tell("%s deletes %s", w.acting, claim.Name)
	if w.acting != "disruption" || w.hardware[claim.Name].dead {
		return
	}
	w.drainsAlone(claim)
	if claim.Annotations[v1alpha1.ReplacingAnnotation] == "" {
		w.removal.idle = append(w.removal.idle, claim.Name)
	}
}

// drainsAlone checks that no other machine is being drained with pods of a PodDisruptionBudget of which the removed machine has pods.
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

// disrupted are the machines that use up the disruption budget, by Karpenter's arithmetic: of those that are initialised the ones that are not ready or on their way out.
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

// allowed is how many machines may be disrupted at once, by Karpenter's arithmetic.
func (w *world) allowed() int {
	total := len(slices.DeleteFunc(w.claims(), func(c *karpv1.NodeClaim) bool { return !w.initialized(c) }))
	return w.pool().MustGetAllowedDisruptions(w.clock, total, karpv1.DisruptionReasonEmpty)
}

// dueMachines are the claims of machines without pods which have idled for long enough to go.
func (w *world) dueMachines() []string {
	var due []string
	for _, claim := range w.claims() {
		if w.idlesStill(claim) {
			due = append(due, claim.Name)
		}
	}
	return due
}

// idlesStill says that the machine has idled for long enough, and that it is neither about to go nor kept.
func (w *world) idlesStill(claim *karpv1.NodeClaim) bool {
	node := w.node(claim)
	if !w.initialized(claim) || !claim.DeletionTimestamp.IsZero() || claim.Annotations[v1alpha1.ReplacingAnnotation] != "" || len(w.on(claim.Name)) > 0 || tainted(node, v1alpha1.DisruptingTaintKey) {
		return false
	}
	since, err := time.Parse(time.RFC3339, node.Annotations[v1alpha1.IdleSinceAnnotation])
	return err == nil && !w.now().Before(since.Add(idleAfter))
}

// givesBack checks that no idle machine is left whose time was over before the look while the budget allows it to go, and no pod of a machine that drains may need it.
func (w *world) givesBack() {
	if slices.ContainsFunc(w.claims(), func(c *karpv1.NodeClaim) bool { return !c.DeletionTimestamp.IsZero() && len(w.squatters(c)) > 0 }) {
		return
	}
	disrupted := w.disrupted()
	maps.Copy(disrupted, w.removal.disrupted)
	for _, name := range w.removal.due {
		if claim := find[*karpv1.NodeClaim](w.store, "", name); claim.Annotations[v1alpha1.ReplacingAnnotation] != "" {
			disrupted[name] = true // It had its turn as an idle one before it was marked.
		}
	}
	for _, claim := range w.claims() {
		if !slices.Contains(w.removal.due, claim.Name) || !w.idlesStill(claim) {
			continue
		}
		free := len(disrupted)
		if disrupted[claim.Name] {
			free-- // It counts itself.
		}
		if allowed := w.allowed(); free < allowed {
			w.failf("%s is idle and stays, though the budget allows %d and Karpenter counts %d besides it", claim.Name, allowed, free)
			w.show()
		}
	}
}

// keepsSquatters checks that the pods without replicas of idle machines that Karve removes have a place on the nodes that stay, all together: those of machines that it has just
// removed, and those of machines that it had removed before if they had one until now.
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

// squatters are the pods without replicas on a machine that are not going yet.
func (w *world) squatters(claim *karpv1.NodeClaim) []*corev1.Pod {
	return slices.DeleteFunc(w.on(claim.Name), func(p *corev1.Pod) bool { return p.Labels["app"] != "squat" || !p.DeletionTimestamp.IsZero() })
}

// placed is for how many pods there is a place on nodes that stay, the named ones among them.
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
