package model

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// gang is a group of pods and the job that makes them.
type gang struct {
	name string
	api  facts.GroupAPI
	// min is how many pods are needed at once. The job has size pods in the end, and wanted now.
	min, size, wanted int
	// key is the key under which NodeClaims count the pods.
	key string
	// runs reports whether enough pods have a node, and since when that is so.
	runs  bool
	since time.Time
}

const (
	// gangs bounds how many groups there are at once, and members how many pods each has.
	gangs, members = 3, 5
	// jobTime is how long a group runs where others wait for its room.
	jobTime = 10 * time.Minute
	// giveBack bounds how long after its patience a machine may still be there for a group that has not started: it becomes idle, and machines are removed one after the other.
	giveBack = idleAfter + 30*time.Minute
)

var podGroupKinds = []schema.GroupVersionKind{
	facts.KubernetesGroups.PodGroupKind().WithVersion("v1beta1"), facts.PluginGroups.PodGroupKind().WithVersion("v1alpha1"),
	facts.VolcanoGroups.PodGroupKind().WithVersion("v1beta1"), facts.KAIGroups.PodGroupKind().WithVersion("v2alpha2"),
}

// groupComes creates a group, some of its pods, and usually its PodGroup.
func (w *world) groupComes() *gang {
	if len(w.gangs) >= gangs {
		return w.gangs[w.rng.IntN(len(w.gangs))]
	}
	apis := append(facts.PodGroupAPIs(), facts.KueueGroups, facts.KarveGroups)
	g := w.newGang(apis[w.rng.IntN(len(apis))], 1+w.rng.IntN(members))
	g.min = 1 + w.rng.IntN(g.size)
	if w.rng.IntN(2) == 0 {
		g.min = g.size
	}
	if w.rng.IntN(8) == 0 {
		g.min = g.size + 1
	}
	g.wanted = w.rng.IntN(g.size + 1)
	if w.rng.IntN(4) > 0 {
		w.putPodGroup(g)
	}
	w.logf("group %s of %s needs %d of %d pods", g.name, g.api, g.min, g.size)
	w.replicate()
	return g
}

// newGang adds a group of which nothing exists yet, and which needs all pods at once.
func (w *world) newGang(api facts.GroupAPI, size int) *gang {
	w.made++
	g := &gang{name: fmt.Sprintf("gang-%d", w.made), api: api, min: size, size: size}
	cluster := snapshottest.Shared()
	cluster.Pods = []corev1.Pod{g.pod("key")}
	view := snapshot.Build(cluster)
	g.key, _, _ = strings.Cut(view.PlannedPods(planner.Launch{Pods: slices.Collect(maps.Keys(view.Pods))}), "=")
	w.gangs = append(w.gangs, g)
	return g
}

// pod returns a pod of the group.
func (g *gang) pod(name string) corev1.Pod {
	pod := snapshottest.Pod(name, workloads["web"], snapshottest.WithLabels("app", g.name), snapshottest.OwnedBy("batch/v1", "Job", g.name))
	pod.OwnerReferences[0].UID = types.UID(g.name)
	switch g.api {
	case facts.KubernetesGroups:
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new(g.name)}
	case facts.PluginGroups:
		pod.Labels[facts.PluginGroupLabel] = g.name
	case facts.VolcanoGroups:
		pod.Annotations = map[string]string{facts.VolcanoGroupAnnotation: g.name}
	case facts.KAIGroups:
		pod.Annotations = map[string]string{facts.KAIGroupAnnotation: g.name}
	case facts.KueueGroups:
		pod.Labels[facts.KueueGroupLabel] = g.name
		pod.Annotations = map[string]string{facts.KueueTotalAnnotation: strconv.Itoa(g.min)}
	case facts.KarveGroups:
		pod.Annotations = map[string]string{v1alpha1.GroupAnnotation: g.name, v1alpha1.GroupMinMembersAnnotation: strconv.Itoa(g.min)}
	}
	return pod
}

// putPodGroup creates the PodGroup of a group, or writes its minimum.
func (w *world) putPodGroup(g *gang) {
	if !g.api.HasObjects() {
		return
	}
	u := w.podGroup(g)
	if u == nil {
		u = &unstructured.Unstructured{Object: map[string]any{}}
		u.SetGroupVersionKind(podGroupKinds[slices.IndexFunc(podGroupKinds, func(k schema.GroupVersionKind) bool { return k.Group == string(g.api) })])
		u.SetNamespace("default")
		u.SetName(g.name)
		u.SetUID(types.UID("group-" + g.name))
		u.SetCreationTimestamp(metav1.NewTime(w.now()))
	}
	u.Object["spec"] = map[string]any{"minMember": int64(g.min)}
	if g.api == facts.KubernetesGroups {
		u.Object["spec"] = map[string]any{"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": int64(g.min)}}}
	}
	w.store.put(u)
}

// podGroup returns the PodGroup of a group; nil if there is none.
func (w *world) podGroup(g *gang) *unstructured.Unstructured {
	return find[*unstructured.Unstructured](w.store, "default", g.name)
}

// membersOf returns the pods of a group that are not terminating.
func (w *world) membersOf(g *gang) []*corev1.Pod {
	return slices.DeleteFunc(w.pods(), func(p *corev1.Pod) bool { return p.Labels["app"] != g.name || !p.DeletionTimestamp.IsZero() })
}

// lacks returns how many more pods of a group need a place at once, and how many exist for it.
func (w *world) lacks(g *gang) (need, waiting int) {
	need = g.min
	for _, pod := range w.membersOf(g) {
		if pod.Spec.NodeName == "" {
			waiting++
		} else {
			need--
		}
	}
	return max(0, need), waiting
}

// anyGang calls does with a random group.
func (w *world) anyGang(does func(*gang)) {
	if len(w.gangs) > 0 {
		does(w.gangs[w.rng.IntN(len(w.gangs))])
	}
}

// groupGoes deletes a job.
func (w *world) groupGoes(g *gang) {
	w.logf("group %s goes", g.name)
	for _, pod := range w.pods() {
		if pod.Labels["app"] == g.name {
			w.store.remove(pod)
		}
	}
	if u := w.podGroup(g); u != nil {
		w.store.drop(u)
	}
	w.gangs = slices.DeleteFunc(w.gangs, func(other *gang) bool { return other == g })
}

// groupChanges changes the minimum of a group. Pods of Kueue and those with Karve's annotations keep theirs.
func (w *world) groupChanges(g *gang) {
	if g.api.HasObjects() {
		g.min = 1 + w.rng.IntN(g.size)
		w.logf("group %s needs %d pods", g.name, g.min)
		w.putPodGroup(g)
	}
}

// groupFails starts a group of several machines. Then the cloud refuses some of them for a while, one of them fails, or a pod goes. Karve may crash meanwhile.
func (w *world) groupFails() {
	w.repairAll()
	g := w.groupComes()
	g.wanted = g.size
	w.putPodGroup(g)
	w.stepTimes(1, 5*time.Second)
	w.runs("provisioning")
	which, failed := w.rng.IntN(5), false
	for _, claim := range w.claims() {
		if has(claim, karpv1.ConditionTypeLaunched) || seats(claim, g.key) == 0 {
			continue
		}
		w.refusing = which < 2 && w.rng.IntN(2) == 0
		if which == 2 && !failed && w.hardware[claim.Name] == nil {
			w.logf("%s will not register", claim.Name)
			w.hardware[claim.Name] = &hardware{connects: true, exposes: true, clears: true}
			failed = true
		}
		w.karpenter(claim)
	}
	w.refusing = which < 2
	if pods := w.membersOf(g); which == 3 && len(pods) > 0 {
		w.logf("a pod of %s goes", g.name)
		g.wanted--
		w.store.remove(pods[w.rng.IntN(len(pods))])
	}
	if w.rng.IntN(4) == 0 {
		w.logf("Karve crashes")
		w.begin()
	}
	if failed {
		w.stepTimes(5, 3*time.Minute) // Until the controller gives it up.
	} else {
		w.stepTimes(1+w.rng.IntN(6), []time.Duration{20 * time.Second, time.Minute, 3 * time.Minute}[w.rng.IntN(3)])
	}
	w.refusing = false
}

// limit sets the number of GPUs of which the pool may have machines, or none for 0.
func (w *world) limit(gpus int) {
	pool := w.pool()
	w.logf("the pool may have %d GPUs (0: any number)", gpus)
	pool.Spec.Limits = nil
	if gpus > 0 {
		pool.Spec.Limits = karpv1.Limits(snapshottest.Amounts("nvidia.com/gpu", strconv.Itoa(gpus)))
	}
	w.store.touch(pool)
}

// together reports whether the scheduler of the group's API binds its pods together. The default scheduler binds those of Kueue and of Karve's annotations one by one.
func (g *gang) together() bool { return g.api.HasObjects() }

// gangOf returns the group of a pod; nil if it has none or it is gone.
func (w *world) gangOf(pod *corev1.Pod) *gang {
	for _, g := range w.gangs {
		if pod.Labels["app"] == g.name {
			return g
		}
	}
	return nil
}

// scheduleGangs is what schedulers do for groups: they bind enough pods of a group, or none. They hold back groups of which too few pods exist.
func (w *world) scheduleGangs() {
	for _, g := range w.gangs {
		if !g.together() || w.readAhead && w.rng.IntN(2) == 0 {
			continue
		}
		need, waiting := w.lacks(g)
		pods := slices.DeleteFunc(w.membersOf(g), func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
		u := w.podGroup(g)
		if u == nil || waiting < max(1, need) {
			continue
		}
		var bound []*corev1.Pod
		for _, pod := range pods {
			if node := w.choose(pod); node != nil {
				pod.Spec.NodeName = node.Name // So that the room is taken for the others.
				bound = append(bound, pod)
			}
		}
		fits := len(bound) >= need
		for _, pod := range pods {
			before := pod.DeepCopy()
			before.Spec.NodeName = ""
			reason := corev1.PodReasonUnschedulable
			switch taken := pod.Spec.NodeName != ""; {
			case taken && fits:
				w.started(pod)
				w.watched(before, pod)
				continue
			case taken && g.api == facts.VolcanoGroups:
				reason = "Schedulable" // It says so of pods that would fit alone.
			}
			pod.Spec.NodeName, pod.Status.NominatedNodeName = "", ""
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason}}
			w.store.touch(pod)
			w.watched(before, pod)
		}
		w.setScheduled(g, u, fits)
	}
}

// setScheduled sets the condition of a PodGroup that says whether there is room.
func (w *world) setScheduled(g *gang, u *unstructured.Unstructured, fits bool) {
	var c map[string]any
	switch {
	case g.api == facts.KubernetesGroups && fits:
		c = map[string]any{"type": "PodGroupScheduled", "status": "True", "reason": "Scheduled"}
	case g.api == facts.KubernetesGroups:
		c = map[string]any{"type": "PodGroupScheduled", "status": "False", "reason": corev1.PodReasonUnschedulable}
	case g.api == facts.VolcanoGroups && !fits:
		c = map[string]any{"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources"}
	}
	u.Object["status"] = map[string]any{}
	if c != nil {
		u.Object["status"] = map[string]any{"conditions": []any{c}}
	}
	w.store.touch(u)
}

// exposes reports whether a machine has its replicas and its kubelet works.
func (w *world) exposes(claim *karpv1.NodeClaim) bool {
	node, h := w.node(claim), w.hardware[claim.Name]
	if node == nil || h == nil || h.dead || !isReady(node) || !claim.DeletionTimestamp.IsZero() {
		return false
	}
	q := node.Status.Allocatable[v1alpha1.ResourceGPUShared]
	return q.Value() >= perGPU
}

// rooms returns how many more pods each machine with its replicas has room for.
func (w *world) rooms() map[string]int {
	rooms := map[string]int{}
	for _, claim := range w.claims() {
		if !w.exposes(claim) {
			continue
		}
		rooms[claim.Name] = perGPU
		for _, pod := range w.on(claim.Name) {
			q := pod.Spec.Containers[0].Resources.Requests[v1alpha1.ResourceGPUShared]
			rooms[claim.Name] -= int(q.Value())
		}
	}
	return rooms
}

// planned is what the last plan saw: the room on machines, and of each group how many pods need a place at once and how many wait.
type planned struct {
	rooms          map[string]int
	needs, waiting map[*gang]int
}

// remembers records what the provisioning controller saw.
func (w *world) remembers() {
	w.last = planned{w.rooms(), map[*gang]int{}, map[*gang]int{}}
	for _, g := range w.gangs {
		w.last.needs[g], w.last.waiting[g] = w.lacks(g)
	}
}

// opensTogether runs the readiness controller. It checks that a machine for a group opens only if machines with replicas have room for enough of its pods, now or when the last plan was
// made, and that none waits longer for others than it should.
func (w *world) opensTogether(look func()) {
	closed := map[string]bool{}
	for _, claim := range w.claims() {
		if node := w.node(claim); node != nil {
			closed[claim.Name] = tainted(node, v1alpha1.ReplicasNotReadyTaintKey)
		}
	}
	look()
	rooms := w.rooms()
	for name, room := range w.last.rooms {
		rooms[name] = max(rooms[name], room)
	}
	total := 0
	for _, room := range rooms {
		total += room
	}
	for _, claim := range w.claims() {
		node := w.node(claim)
		if node == nil || !closed[claim.Name] {
			continue
		}
		overdue := w.now().Sub(facts.Condition(claim.Status.Conditions, karpv1.ConditionTypeRegistered).LastTransitionTime.Time) >= snapshot.GroupPatience
		if tainted(node, v1alpha1.ReplicasNotReadyTaintKey) {
			if overdue && w.exposes(claim) && len(w.on(node.Name)) == 0 {
				w.failf("%s has its replicas, and is neither opened nor given back after %s", claim.Name, snapshot.GroupPatience)
			}
			continue
		}
		for _, g := range w.gangs {
			need, waiting := w.lacks(g)
			if before, known := w.last.needs[g]; known {
				need = min(need, before)
			}
			if waiting > 0 { // Otherwise the group is gone.
				waiting = max(waiting, w.last.waiting[g])
			}
			if waiting > 0 && seats(claim, g.key) > 0 && !overdue && min(total, waiting) < need {
				w.failf("%s opens for %s, which needs %d of %d pods, and there is room for %d", claim.Name, g.name, need, waiting, total)
				w.show()
			}
		}
	}
}

// halfStarted says which machine has waited too long for a group that has not started; "" if none has.
func (w *world) halfStarted() string {
	for _, claim := range w.claims() {
		c := facts.Condition(claim.Status.Conditions, karpv1.ConditionTypeRegistered)
		if !c.IsTrue() || !w.exposes(claim) || len(w.on(claim.Name)) > 0 || w.keptByUser(claim.Name) {
			continue
		}
		for _, g := range w.gangs {
			since := slices.MaxFunc([]time.Time{c.LastTransitionTime.Time, w.healed, g.since}, time.Time.Compare)
			if !g.runs && seats(claim, g.key) > 0 && w.now().Sub(since) > snapshot.GroupPatience+giveBack {
				return fmt.Sprintf("%s waits for %s for %s", claim.Name, g.name, w.now().Sub(since))
			}
		}
	}
	return ""
}

// fits reports whether a group can start: all of its pods can exist, and the limit of the pool allows the machines.
func (w *world) fits(g *gang) bool {
	if g.size < g.min || g.api.HasObjects() && w.podGroup(g) == nil {
		return false
	}
	limit, limited := w.pool().Spec.Limits["nvidia.com/gpu"]
	if !limited {
		return true
	}
	kept := 0
	for _, claim := range w.claims() {
		if w.keptByUser(claim.Name) {
			kept++
		}
	}
	return (g.min+perGPU-1)/perGPU <= int(limit.Value())-kept
}

// finish is what job controllers do if the pool has a limit, so that others can start: they end the jobs of groups that have run for a while, and restart those that have lost pods for as long.
func (w *world) finish() {
	for _, g := range slices.Clone(w.gangs) {
		need, _ := w.lacks(g)
		if runs := need == 0; runs != g.runs || g.since.IsZero() {
			g.runs, g.since = runs, w.now()
		}
		if len(w.pool().Spec.Limits) == 0 || w.now().Sub(g.since) < jobTime {
			continue
		}
		if g.runs {
			w.groupGoes(g)
			continue
		}
		for _, pod := range w.membersOf(g) {
			if pod.Spec.NodeName != "" {
				w.store.remove(pod)
			}
		}
	}
}
