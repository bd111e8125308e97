package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

// WorkloadAnswer explains the pods of a workload.
type WorkloadAnswer struct {
	Kind string `json:"kind"`
	// Workload is namespace/name.
	Workload string `json:"workload"`
	Pods     int    `json:"pods"`
	// Groups have the pods in the same state, those that wait first.
	Groups []PodGroup `json:"groups"`
	// Controller says whether a controller works. It is nil if the caller has not asked.
	Controller *leader.Leader `json:"controller,omitempty"`
}

// PodGroup counts the pods of a workload in the same state for the same reason.
type PodGroup struct {
	Count  int            `json:"count"`
	State  PodState       `json:"state"`
	Reason planner.Reason `json:"reason,omitempty"`
	// Example explains the first of the pods.
	Example PodAnswer `json:"example"`
}

// Owner is what controls pods, in a namespace.
type Owner struct{ APIVersion, Kind, Name string }

// controllerOf returns what controls a pod, or the zero value.
func controllerOf(pod *corev1.Pod) Owner {
	if c := metav1.GetControllerOf(pod); c != nil {
		return Owner{c.APIVersion, c.Kind, c.Name}
	}
	return Owner{}
}

// OwnersIn returns what controls the pods of a namespace, each once.
func (x *Explainer) OwnersIn(namespace string) (all []Owner) {
	seen := map[Owner]bool{{}: true}
	for i := range x.cluster.Pods {
		if o := controllerOf(&x.cluster.Pods[i]); x.cluster.Pods[i].Namespace == namespace && !seen[o] {
			seen[o] = true
			all = append(all, o)
		}
	}
	return all
}

// Workload explains the pods of a workload: those that it controls, and those of what it controls in turn, which through names. It returns an error if there are none.
func (x *Explainer) Workload(kind, namespace, name string, through ...Owner) (WorkloadAnswer, error) {
	a := WorkloadAnswer{Kind: kind, Workload: namespace + "/" + name}
	type group struct {
		state  PodState
		reason planner.Reason
	}
	members := map[group][]string{}
	owns := map[Owner]bool{}
	for _, o := range through {
		owns[o] = true
	}
	now := x.planned()
	for i := range x.cluster.Pods {
		pod := &x.cluster.Pods[i]
		if pod.Namespace != namespace || !belongs(pod, kind, name) && !owns[controllerOf(pod)] {
			continue
		}
		state, reason := briefState(&now, pod)
		members[group{state, reason}] = append(members[group{state, reason}], pod.Name)
		a.Pods++
	}
	if a.Pods == 0 {
		return a, fmt.Errorf("no pods of %s %s exist: list pods with kubectl get pods -n %s", kind, a.Workload, namespace)
	}
	for g, names := range members {
		example, err := x.Pod(namespace, slices.Min(names))
		if err != nil {
			return a, err
		}
		a.Groups = append(a.Groups, PodGroup{len(names), g.state, g.reason, example})
	}
	order := []PodState{PodWaits, PodForeign, PodPlanned, PodComing, PodFits, PodRuns, PodEnded}
	slices.SortFunc(a.Groups, func(a, b PodGroup) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.State), slices.Index(order, b.State)), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	return a, nil
}

// belongs reports whether a workload created a pod. The ReplicaSets of a Deployment have its name and a hash without a dash.
func belongs(pod *corev1.Pod, kind, name string) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return false
	}
	if kind == "Deployment" {
		hash, ok := strings.CutPrefix(owner.Name, name+"-")
		return ok && owner.Kind == "ReplicaSet" && hash != "" && !strings.Contains(hash, "-")
	}
	if kind == "CronJob" {
		of, workload := facts.OwnerOf(pod)
		return of == kind && workload == name
	}
	return owner.Kind == kind && owner.Name == name
}

// briefState returns the state of a pod, and why it has no place if it has none. It is the state of the pod's answer, without the work for the rest.
func briefState(now *attempt, pod *corev1.Pod) (PodState, planner.Reason) {
	name := facts.PodName(pod)
	switch {
	case karpenter.IsTerminal(pod):
		return PodEnded, ""
	case facts.GPURequestOf(pod).Resource == "":
		return PodForeign, ""
	case pod.Spec.NodeName != "":
		return PodRuns, ""
	case notAsked(pod) != "":
		return PodWaits, ""
	case slices.ContainsFunc(now.view.Postponed, func(p *corev1.Pod) bool { return facts.PodName(p) == name }):
		return PodWaits, planner.ReasonNextRound
	case now.launch(name) != nil:
		return PodPlanned, ""
	}
	if node := now.node(name); node >= 0 {
		if now.view.MachineOn(node) != nil && now.view.Starting(node) {
			return PodComing, ""
		}
		return PodFits, ""
	}
	if refused := now.refusal(name); refused != nil {
		return PodWaits, refused.Reason
	}
	if pod.Status.NominatedNodeName != "" {
		return PodFits, ""
	}
	return PodForeign, ""
}

// Text returns the answer as text. Times are relative to now. If wide is true, it is like that of [PodAnswer.Text].
func (a *WorkloadAnswer) Text(now time.Time, wide bool) string {
	counts := make([]string, len(a.Groups))
	for i, g := range a.Groups {
		counts[i] = fmt.Sprintf("%d %s", g.Count, g.words())
	}
	var out page
	out.line(fmt.Sprintf("%s %s   %s: %s", a.Kind, a.Workload, words.Count(a.Pods, "pod"), strings.Join(counts, ", ")))
	for i := range a.Groups {
		out.WriteString("\n" + a.Groups[i].Example.Text(now, wide))
	}
	return out.String()
}

func (g *PodGroup) words() string {
	if g.Reason == "" {
		return string(g.State)
	}
	return fmt.Sprintf("%s (%s)", g.State, g.Reason)
}
