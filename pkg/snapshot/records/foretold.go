package records

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Others than Karpenter write labels on a node after its launch. Package nodelabels says which values they will have.

// LaterLabelError reports that a pod depends on the value of a label that is not known before there is a node.
type LaterLabelError struct {
	Key string
	// Values describes the possible values, or is "".
	Values string
}

func (e LaterLabelError) Error() string {
	known := "is known only when there is a node"
	if e.Values != "" {
		known = "is known only roughly before there is a node (" + e.Values + ")"
	}
	return fmt.Sprintf("label %s %s: %s", e.Key, known, insteadOf(e.Key))
}

func insteadOf(key string) string {
	if e := nodelabels.Find(key); e != nil && e.Instead != "" {
		return e.Instead
	}
	return "use a label of the NodePool"
}

func LaterLabel(key string, labels nodelabels.Labels) error {
	doubt, _ := labels.Doubts.About(key)
	return LaterLabelError{key, doubt.String()}
}

// dependsOnLater reports whether a pod's node selector or required node affinity mentions labels that others write after the launch.
func dependsOnLater(pod *corev1.Pod) bool {
	later := func(key string) bool {
		e := nodelabels.Find(key)
		return e != nil && (e.Known == nodelabels.Later || nodelabels.Foretold(key))
	}
	for key := range pod.Spec.NodeSelector {
		if later(key) {
			return true
		}
	}
	return slices.ContainsFunc(RequiredTerms(pod), func(t corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return later(r.Key) })
	})
}

// RequiredTerms returns the terms of a pod's required node affinity, of which one must match.
func RequiredTerms(pod *corev1.Pod) []corev1.NodeSelectorTerm {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// judgeAffinity reports whether a node that does not show all its labels yet will meet the pod's required node affinity. If that depends on a label in doubt,
// it returns the label.
func (d *Demand) judgeAffinity(name string, labels nodelabels.Labels) (best nodelabels.Verdict, doubted string) {
	terms := RequiredTerms(d.Pod)
	if terms == nil {
		return nodelabels.Yes, ""
	}
	for i := range terms {
		if v, key := judgeTerm(&terms[i], name, labels); v > best {
			best, doubted = v, key
		}
	}
	return best, doubted
}

// judgeTerm judges a term. As in the scheduler, a term without requirements matches nothing.
func judgeTerm(t *corev1.NodeSelectorTerm, name string, labels nodelabels.Labels) (worst nodelabels.Verdict, doubted string) {
	if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
		return nodelabels.No, ""
	}
	worst = nodelabels.Yes
	for i := range t.MatchExpressions {
		if v := labels.Judge(&t.MatchExpressions[i]); v < worst {
			worst, doubted = v, t.MatchExpressions[i].Key
		}
	}
	named := nodelabels.Labels{Known: map[string]string{metav1.ObjectNameField: NodeOf(name, nil).Name}}
	for i := range t.MatchFields {
		worst = min(worst, named.Judge(&t.MatchFields[i]))
	}
	return worst, doubted
}

// runsOn reports whether a DaemonSet has a pod on a node with the taints and labels, or may have one: its pods take their room whenever the labels appear.
func (d *Demand) runsOn(taints []corev1.Taint, name string, labels nodelabels.Labels) bool {
	if !d.Later || labels.Doubts == nil {
		return d.Refusal(taints, name, labels) == nil
	}
	for _, key := range d.Selectors {
		if labels.Judge(&corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{d.Pod.Spec.NodeSelector[key]}}) == nodelabels.No {
			return false
		}
	}
	verdict, _ := d.judgeAffinity(name, labels)
	return verdict > nodelabels.No && d.Untolerated(taints, facts.KeepsPodsAway) == nil
}

// Matches reports whether a node with the labels meets the pod's node selector and required node affinity.
func (d *Demand) Matches(name string, labels nodelabels.Labels) bool {
	return d.whyOtherLabel(labels) == nil && d.whyOtherAffinity(name, labels) == nil
}

// whyOtherLabel returns which label of the pod's node selector a node does not have, or nil if it has all.
func (d *Demand) whyOtherLabel(labels nodelabels.Labels) error {
	for _, key := range d.Selectors {
		want := d.Pod.Spec.NodeSelector[key]
		if value, ok := labels.Known[key]; ok && value == want {
			continue
		}
		if d.Later && labels.Judge(&corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{want}}) == nodelabels.Maybe {
			return LaterLabel(key, labels)
		}
		return OtherLabelError{Key: key, Want: want, Has: labels.Known[key]}
	}
	return nil
}

// whyOtherAffinity returns why a node does not meet the pod's required node affinity, or nil if it does.
func (d *Demand) whyOtherAffinity(name string, labels nodelabels.Labels) error {
	if d.Later && labels.Doubts != nil && len(RequiredTerms(d.Pod)) > 0 {
		switch verdict, key := d.judgeAffinity(name, labels); verdict {
		case nodelabels.Maybe:
			return LaterLabel(key, labels)
		case nodelabels.Yes:
			return nil
		default:
			return d.AffinityError()
		}
	}
	matches, err := d.affinity().Match(NodeOf(name, labels.Known))
	if err != nil {
		return fmt.Errorf("reading the required node affinity: %w", err)
	}
	if !matches {
		return d.AffinityError()
	}
	return nil
}

// IsNitro reports whether the firmware of the machines says what their instance type is.
func IsNitro(t *catalog.InstanceType) bool {
	for key, value := range t.Labels {
		if strings.HasSuffix(key, "/instance-hypervisor") && value == "nitro" {
			return true
		}
	}
	return false
}

// foretold returns the labels that others write on the machine, as its promise says.
func (m *Machine) foretold() nodelabels.Labels {
	p := m.Promise
	n := nodelabels.Node{
		Resource: string(p.Resource), MinReplicas: p.ReplicasPerGPU, MaxReplicas: max(p.ReplicasPerGPU, m.MaxPerGPU), MPS: p.MPS != nodecontract.MPS{}, MIG: p.MIG, Slots: !p.Slots.IsZero(),
	}
	if m.MaxPerGPU > 0 {
		n.MinReplicas = 1
	}
	if m.Type != nil {
		n.Type, n.Nitro, n.GPU = m.Type.Name, IsNitro(m.Type), m.Type.GPU
	}
	return nodelabels.Of(&n)
}
