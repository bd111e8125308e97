package model

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// move is something that may happen at any time, with a probability proportional to its weight.
type move struct {
	name   string
	weight int
	does   func(*world)
}

var moves = []move{
	{"time passes", 10, func(w *world) { w.clock.Step(time.Duration(1+w.rng.IntN(60)) * time.Second) }},
	{"much time passes", 3, func(w *world) { w.clock.Step(time.Duration(1+w.rng.IntN(20)) * time.Minute) }},
	{"launch", 4, func(w *world) { w.runs("launch") }},
	{"readiness", 5, func(w *world) { w.runs("readiness") }},
	{"pool", 5, func(w *world) { w.runs("pool") }},
	{"disruption", 8, func(w *world) { w.runs("disruption") }},
	{"provisioning", 8, func(w *world) { w.runs("provisioning") }},
	{"Karve crashes", 1, (*world).begin},
	{"Karpenter", 14, func(w *world) {
		for _, claim := range w.claims() {
			if w.rng.IntN(3) > 0 {
				w.karpenter(claim)
			}
		}
	}},
	{"kubelets", 8, (*world).kubelets},
	{"everybody has turns", 3, func(w *world) {
		pause := []time.Duration{5 * time.Second, 20 * time.Second, time.Minute, 3 * time.Minute}[w.rng.IntN(4)]
		w.stepTimes(1+w.rng.IntN(4), pause)
	}},
	{"scheduler", 8, func(w *world) { w.replicate(); w.schedule() }},
	{"users scale", 5, func(w *world) {
		name := workloadNames[w.rng.IntN(len(workloadNames))]
		w.desired[name] = w.rng.IntN(most)
		if name == "squat" {
			w.desired[name] = w.rng.IntN(4)
		}
		w.logf("%d pods of %s", w.desired[name], name)
		w.replicate()
	}},
	{"a burst leaves squatters behind", 3, (*world).burst},
	{"a debug pod comes", 2, func(w *world) { w.anyNode(w.debug) }},
	{"a debug pod goes", 2, func(w *world) {
		if pods := w.debugPods(); len(pods) > 0 {
			w.store.remove(pods[w.rng.IntN(len(pods))])
		}
	}},
	{"a PodDisruptionBudget comes", 2, func(w *world) { w.pdb(workloadNames[w.rng.IntN(len(workloadNames))], w.rng.IntN(3)) }},
	{"a PodDisruptionBudget goes", 1, func(w *world) {
		if pdbs := all[*policyv1.PodDisruptionBudget](w.store); len(pdbs) > 0 {
			w.store.drop(pdbs[w.rng.IntN(len(pdbs))])
		}
	}},
	{"a pod is not to be disrupted", 1, func(w *world) {
		if pods := w.pods(); len(pods) > 0 {
			pod := pods[w.rng.IntN(len(pods))]
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, karpv1.DoNotDisruptAnnotationKey, "true")
			w.store.touch(pod)
		}
	}},
	{"a machine is not to be repaired", 1, func(w *world) {
		w.anyNode(func(node *corev1.Node) {
			w.logf("%s is not to be repaired", node.Name)
			node.Annotations[repair.DoNotRepair] = "true"
			w.store.touch(node)
		})
	}},
	{"a claim is deleted", 1, func(w *world) {
		if claims := w.claims(); len(claims) > 0 {
			claim := claims[w.rng.IntN(len(claims))]
			w.logf("somebody deletes %s", claim.Name)
			w.store.remove(claim)
		}
	}},
	{"a budget is edited", 1, func(w *world) {
		w.budget([]string{"0", "1", "10%", "100%"}[w.rng.IntN(4)])
	}},
	{"the pool is edited", 1, func(w *world) {
		w.made++
		pool := w.pool()
		snapshottest.Labeled(map[string]string{"generation": fmt.Sprint(w.made)})(pool)
		w.logf("the template of the pool changes")
		w.store.touch(pool)
	}},
	{"the class is edited", 1, func(w *world) {
		class := find[*v1alpha1.GPUNodeClass](w.store, "", poolName)
		class.Spec.Consolidation.Policy = []v1alpha1.ConsolidationPolicy{v1alpha1.ConsolidateWhenIdle, v1alpha1.ConsolidateWhenCheaper}[w.rng.IntN(2)]
		class.Generation++
		w.store.touch(class)
	}},
	{"the cloud refuses", 1, func(w *world) { w.refusing = !w.refusing }},
	{"the CSI driver breaks", 1, func(w *world) { w.csiBroken = !w.csiBroken }},
	{"the device plugin breaks", 1, func(w *world) { w.pluginBroken = !w.pluginBroken }},
	{"the network breaks", 1, func(w *world) { w.networkBroken = !w.networkBroken }},
	{"pods do not become ready", 1, func(w *world) { w.unready = !w.unready }},
	{"a kubelet dies", 1, func(w *world) {
		w.anyNode(func(node *corev1.Node) {
			w.logf("the kubelet of %s dies", node.Name)
			w.hardware[node.Name].dead = true
		})
	}},
	{"a machine does not register", 1, func(w *world) {
		for _, claim := range w.claims() {
			if h := w.hardware[claim.Name]; h == nil && claim.DeletionTimestamp.IsZero() {
				w.logf("%s will not register", claim.Name)
				w.hardware[claim.Name] = &hardware{connects: true, exposes: true, clears: true}
			}
		}
	}},
	{"a plugin dies", 1, func(w *world) {
		w.anyNode(func(node *corev1.Node) {
			w.logf("the plugin of %s dies", node.Name)
			w.hardware[node.Name].exposes = false
			delete(node.Status.Allocatable, v1alpha1.ResourceGPUShared)
			w.store.touch(node)
		})
	}},
	{"a Node is removed by force", 1, func(w *world) {
		w.anyNode(func(node *corev1.Node) {
			if w.hardware[node.Name].dead && node.DeletionTimestamp.IsZero() {
				w.logf("somebody removes Node %s by force", node.Name)
				w.store.drop(node)
			}
		})
	}},
}

// groupMoves happen in half of the runs, because groups make them slower.
var groupMoves = []move{
	{"a group comes", 2, func(w *world) { w.groupComes() }},
	{"a group fails halfway", 2, (*world).groupFails},
	{"members of a group come", 2, func(w *world) {
		w.anyGang(func(g *gang) {
			g.wanted = min(g.size, g.wanted+1+w.rng.IntN(members))
			w.putPodGroup(g)
			w.replicate()
		})
	}},
	{"a member of a group is deleted", 1, func(w *world) {
		w.anyGang(func(g *gang) {
			if pods := w.membersOf(g); len(pods) > 0 {
				g.wanted -= w.rng.IntN(2)
				w.store.remove(pods[w.rng.IntN(len(pods))])
			}
		})
	}},
	{"a group goes", 1, func(w *world) { w.anyGang(w.groupGoes) }},
	{"a group changes", 1, func(w *world) { w.anyGang(w.groupChanges) }},
	{"the limit is edited", 1, func(w *world) { w.limit(w.rng.IntN(5)) }},
}

// begins draws the weights of the moves and the disruption budget of the run. Most runs drop some moves and repeat others, so that rare moves coincide.
func (w *world) begins() {
	if w.groups {
		w.moves = slices.Concat(moves, groupMoves)
	}
	for _, m := range w.moves {
		weight := m.weight
		if weight < rare {
			weight *= []int{0, 0, 1, 2, 6}[w.rng.IntN(5)]
		}
		w.habit = append(w.habit, weight)
	}
	w.budget([]string{"10%", "100%"}[w.rng.IntN(2)])
}

// rare is the weight below which runs may drop a move or repeat it.
const rare = 3

// step makes one random move.
func (w *world) step() {
	total := 0
	for _, weight := range w.habit {
		total += weight
	}
	n := w.rng.IntN(total)
	for i := range w.moves {
		if n -= w.habit[i]; n < 0 {
			w.logf("%s", w.moves[i].name)
			w.moves[i].does(w)
			return
		}
	}
}

// anyNode calls does with the Node of a random machine.
func (w *world) anyNode(does func(*corev1.Node)) {
	nodes := slices.DeleteFunc(w.nodes(), func(n *corev1.Node) bool { return n.Name == stock })
	if len(nodes) > 0 {
		does(nodes[w.rng.IntN(len(nodes))])
	}
}

// budget sets the disruption budget of the pool.
func (w *world) budget(nodes string) {
	w.logf("the budget is %s", nodes)
	pool := w.pool()
	pool.Spec.Disruption.Budgets[0].Nodes = nodes
	w.store.touch(pool)
}

// burst launches machines that are idle soon, with pods without replicas that settle on them while the stock node is cordoned. The stock node has room for two
// of these pods, or for none. It first ends the current faults. Machines that never become ready may be on order too.
func (w *world) burst() {
	w.repairAll()
	there := 2 * w.rng.IntN(2)
	w.desired["web"], w.desired["squat"] = 3+w.rng.IntN(most-2), there
	w.stepTimes(4, 20*time.Second)
	w.cordon(true)
	w.desired["squat"] = there + 1 + w.rng.IntN(3-there/2)
	switch w.rng.IntN(4) {
	case 0:
		w.logf("the network breaks, and more is asked for")
		w.networkBroken = true
		w.desired["large"] = 1 + w.rng.IntN(2)
	case 1:
		w.pdb("squat", 1)
		w.budget("100%")
	case 2:
		w.budget("100%")
	}
	w.stepTimes(2, 20*time.Second)
	w.cordon(false)
	w.desired["web"], w.desired["large"] = 0, 0
	w.stepTimes(3+w.rng.IntN(3), 2*time.Minute)
}

// cordon cordons or uncordons the stock node.
func (w *world) cordon(on bool) {
	node := find[*corev1.Node](w.store, "", stock)
	node.Spec.Unschedulable = on
	w.store.touch(node)
}

// debug creates a pod as kubectl debug node does.
func (w *world) debug(node *corev1.Node) {
	w.made++
	w.logf("somebody debugs %s", node.Name)
	pod := snapshottest.Pod(fmt.Sprintf("debug-%d", w.made), snapshottest.Asking("cpu", "10m"), snapshottest.Running(node.Name), func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	})
	pod.Status.StartTime = &metav1.Time{Time: w.now()}
	w.store.put(&pod)
}

func (w *world) debugPods() []*corev1.Pod {
	return slices.DeleteFunc(w.pods(), func(p *corev1.Pod) bool { return p.Labels["app"] != "" })
}

// pdb creates a PodDisruptionBudget for the pods of a workload.
func (w *world) pdb(name string, unavailable int) {
	w.logf("a PodDisruptionBudget of %d for %s", unavailable, name)
	w.store.put(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(int32(unavailable))), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
		},
	})
	w.budgets()
}
