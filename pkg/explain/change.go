package explain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Action is what a change does.
type Action string

// Actions. All but the first two change the pod.
const (
	// SetLimit sets the limit Key of a NodePool to Value.
	SetLimit Action = "SetLimit"
	// Reopen is not a change to a spec: the NodePool has to launch again.
	Reopen Action = "Reopen"
	// Tolerate adds a toleration of the taint Key with the effect Value.
	Tolerate Action = "Tolerate"
	// SetNodeSelector sets the label Key of the node selector to Value. RemoveNodeSelector removes it.
	SetNodeSelector    Action = "SetNodeSelector"
	RemoveNodeSelector Action = "RemoveNodeSelector"
	// RemoveNodeAffinity removes the required node affinity.
	RemoveNodeAffinity Action = "RemoveNodeAffinity"
	// SetRequest sets the requests and limits of the resource Key to Value. RenameRequest requests the resource Key instead of Value.
	SetRequest    Action = "SetRequest"
	RenameRequest Action = "RenameRequest"
	// SetAnnotation sets the annotation Key to Value. RemoveAnnotation removes it.
	SetAnnotation    Action = "SetAnnotation"
	RemoveAnnotation Action = "RemoveAnnotation"
	// RelaxSpread sets whenUnsatisfiable: ScheduleAnyway for the topology spread constraint at Index, which is over Key.
	RelaxSpread Action = "RelaxSpread"
	// RemovePodAffinity and RemovePodAntiAffinity remove the required term at Index, which is on Key.
	RemovePodAffinity     Action = "RemovePodAffinity"
	RemovePodAntiAffinity Action = "RemovePodAntiAffinity"
)

// Change is a change to a pod or a NodePool.
type Change struct {
	Action Action `json:"action"`
	// NodePool is the name of the NodePool to change, or "" for the pod.
	NodePool string `json:"nodePool,omitempty"`
	Key      string `json:"key,omitempty"`
	Value    string `json:"value,omitempty"`
	Index    int    `json:"index,omitempty"`
}

// String returns the change in a few words.
func (c Change) String() string {
	switch c.Action {
	case SetLimit, SetRequest, SetAnnotation:
		return c.Key + ": " + c.Value
	case Reopen:
		return "once the NodePool launches again"
	case Tolerate:
		return "tolerate " + c.Key
	case SetNodeSelector:
		return fmt.Sprintf("nodeSelector %s: %s", c.Key, c.Value)
	case RemoveNodeSelector:
		return "remove nodeSelector " + c.Key
	case RemoveNodeAffinity:
		return "remove the required node affinity"
	case RenameRequest:
		return fmt.Sprintf("request %s instead of %s", c.Key, c.Value)
	case RemoveAnnotation:
		return "remove the annotation " + c.Key
	case RelaxSpread:
		return "whenUnsatisfiable: ScheduleAnyway for the spread over " + c.Key
	case RemovePodAffinity:
		return "remove required podAffinity on " + c.Key
	case RemovePodAntiAffinity:
		return "remove required podAntiAffinity on " + c.Key
	}
	return string(c.Action)
}

// summary returns changes to the same object in a few words.
func summary(changes []Change) string {
	texts := make([]string, len(changes))
	for i, c := range changes {
		texts[i] = c.String()
	}
	text := strings.Join(texts, ", ")
	if changes[0].Action == SetLimit {
		return "limits " + text
	}
	return text
}

// helpOf returns the help that consists of changes to the same object.
func helpOf(changes ...Change) Help {
	h := Help{Change: summary(changes), Changes: changes, On: "pod"}
	if pool := changes[0].NodePool; pool != "" {
		h.On = "NodePool " + pool
	}
	if changes[0].Action == Reopen {
		h.On = ""
	}
	return h
}

// ApplyTo makes the change to a pod. The pod must have what the change names.
func (c Change) ApplyTo(p *corev1.Pod) {
	key := corev1.ResourceName(c.Key)
	switch c.Action {
	case SetLimit, Reopen: // They are about NodePools.
	case Tolerate:
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: c.Key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(c.Value)})
	case SetNodeSelector:
		if p.Spec.NodeSelector == nil {
			p.Spec.NodeSelector = map[string]string{}
		}
		p.Spec.NodeSelector[c.Key] = c.Value
	case RemoveNodeSelector:
		delete(p.Spec.NodeSelector, c.Key)
	case RemoveNodeAffinity:
		p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
	case SetRequest:
		eachList(p, func(list corev1.ResourceList) {
			if _, ok := list[key]; ok {
				list[key] = resource.MustParse(c.Value)
			}
		})
	case RenameRequest:
		eachList(p, func(list corev1.ResourceList) {
			if q, ok := list[corev1.ResourceName(c.Value)]; ok {
				delete(list, corev1.ResourceName(c.Value))
				list[key] = q
			}
		})
	case SetAnnotation:
		p.Annotations[c.Key] = c.Value
	case RemoveAnnotation:
		delete(p.Annotations, c.Key)
	case RelaxSpread:
		p.Spec.TopologySpreadConstraints[c.Index].WhenUnsatisfiable = corev1.ScheduleAnyway
	case RemovePodAffinity:
		all := &p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		*all = slices.Delete(*all, c.Index, c.Index+1)
	case RemovePodAntiAffinity:
		all := &p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		*all = slices.Delete(*all, c.Index, c.Index+1)
	}
}

// ApplyToNodePool makes the change to a NodePool.
func (c Change) ApplyToNodePool(np *karpv1.NodePool) {
	if c.Action == SetLimit {
		np.Spec.Limits[corev1.ResourceName(c.Key)] = resource.MustParse(c.Value)
	}
}

func eachList(p *corev1.Pod, f func(corev1.ResourceList)) {
	for _, containers := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range containers {
			f(containers[i].Resources.Requests)
			f(containers[i].Resources.Limits)
		}
	}
}

func changed(pod *corev1.Pod, changes []Change) *corev1.Pod {
	p := pod.DeepCopy()
	for _, c := range changes {
		c.ApplyTo(p)
	}
	return p
}

// suppose returns the plan after a change that helps a pod.
func (x *Explainer) suppose(pod *corev1.Pod, h *Help) attempt {
	after := *x.cluster
	after.Generation = 0
	switch {
	case h.At != nil:
		after.Refused = x.refusedAfter(h)
	case h.On == "pod":
		after.Index, _ = after.Index.With(facts.Changes{Pods: map[string]*corev1.Pod{facts.PodName(pod): changed(pod, h.Changes)}})
	default:
		after.NodePools = slices.Clone(after.NodePools)
		for i := range after.NodePools {
			if np := &after.NodePools[i]; np.Name == h.Changes[0].NodePool {
				*np = *np.DeepCopy()
				for _, c := range h.Changes {
					c.ApplyToNodePool(np)
				}
			}
		}
	}
	view := snapshot.Build(&after)
	for _, c := range h.Changes {
		for i := range view.Pools {
			if c.Action == Reopen && view.Pools[i].NodePool.Name == c.NodePool {
				view.Snapshot.Pools[i].Closed = nil
			}
		}
	}
	return plan(view)
}
