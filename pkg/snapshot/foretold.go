package snapshot

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodelabels"
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

func laterLabel(key string, labels nodelabels.Labels) error {
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
	return slices.ContainsFunc(requiredTerms(pod), func(t corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return later(r.Key) })
	})
}

// requiredTerms returns the terms of a pod's required node affinity, of which one must match.
func requiredTerms(pod *corev1.Pod) []corev1.NodeSelectorTerm {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// judge reports whether a node that does not show all its labels yet will meet the pod's required node affinity. If it depends on a label in doubt, judge
// returns the label.
func (d *demand) judge(name string, labels nodelabels.Labels) (best nodelabels.Verdict, doubted string) {
	terms := requiredTerms(d.pod)
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
	named := nodelabels.Labels{Known: map[string]string{metav1.ObjectNameField: nodeOf(name, nil).Name}}
	for i := range t.MatchFields {
		worst = min(worst, named.Judge(&t.MatchFields[i]))
	}
	return worst, doubted
}

// runsOn reports whether a DaemonSet has a pod on a node with the taints and labels, or may have one: its pods take their room whenever the labels appear.
func (d *demand) runsOn(taints []corev1.Taint, name string, labels nodelabels.Labels) bool {
	if !d.later || labels.Doubts == nil {
		return d.refusal(taints, name, labels) == nil
	}
	for _, key := range d.selectors {
		if labels.Judge(&corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{d.pod.Spec.NodeSelector[key]}}) == nodelabels.No {
			return false
		}
	}
	verdict, _ := d.judge(name, labels)
	return verdict > nodelabels.No && d.untolerated(taints, keepsPodsAway) == nil
}

// matches reports whether a node with the labels meets the pod's node selector and required node affinity.
func (d *demand) matches(name string, labels nodelabels.Labels) bool {
	return d.otherLabel(labels) == nil && d.otherAffinity(name, labels) == nil
}

// otherLabel returns which label of the pod's node selector a node does not have, or nil if it has all.
func (d *demand) otherLabel(labels nodelabels.Labels) error {
	for _, key := range d.selectors {
		want := d.pod.Spec.NodeSelector[key]
		if value, ok := labels.Known[key]; ok && value == want {
			continue
		}
		if d.later && labels.Judge(&corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{want}}) == nodelabels.Maybe {
			return laterLabel(key, labels)
		}
		return OtherLabelError{Key: key, Want: want, Has: labels.Known[key]}
	}
	return nil
}

// otherAffinity returns why a node does not meet the pod's required node affinity, or nil if it does.
func (d *demand) otherAffinity(name string, labels nodelabels.Labels) error {
	if d.later && labels.Doubts != nil && len(requiredTerms(d.pod)) > 0 {
		switch verdict, key := d.judge(name, labels); verdict {
		case nodelabels.Maybe:
			return laterLabel(key, labels)
		case nodelabels.Yes:
			return nil
		default:
			return d.affinityError()
		}
	}
	matches, err := d.affinity().Match(nodeOf(name, labels.Known))
	if err != nil {
		return fmt.Errorf("reading the required node affinity: %w", err)
	}
	if !matches {
		return d.affinityError()
	}
	return nil
}

// isNitro reports whether the firmware of the machines says what their instance type is.
func isNitro(t *catalog.InstanceType) bool {
	for key, value := range t.Labels {
		if strings.HasSuffix(key, "/instance-hypervisor") && value == "nitro" {
			return true
		}
	}
	return false
}

// foretold returns the labels that others write on a machine of the pool with the share.
func (p *Pool) foretold(t *catalog.InstanceType, share *v1alpha1.Share, least int64) nodelabels.Labels {
	return nodelabels.Of(&nodelabels.Node{
		Type: t.Name, Nitro: isNitro(t), GPU: t.GPU, Resource: share.Resource, Least: min(least, share.Least), Most: share.Most,
		MPS: p.Class.Spec.Sharing.MPSSettings() != nodecontract.MPS{}, MIG: share.MIG, Slots: !share.Slots.IsZero(),
	})
}

// foretold returns the labels that others write on the machine, as its promise says.
func (m *Machine) foretold() nodelabels.Labels {
	p := m.Promise
	n := nodelabels.Node{
		Resource: string(p.Resource), Least: p.ReplicasPerGPU, Most: max(p.ReplicasPerGPU, m.MostPerGPU), MPS: p.MPS != nodecontract.MPS{}, MIG: p.MIG, Slots: !p.Slots.IsZero(),
	}
	if m.MostPerGPU > 0 {
		n.Least = 1
	}
	if m.Type != nil {
		n.Type, n.Nitro, n.GPU = m.Type.Name, isNitro(m.Type), m.Type.GPU
	}
	return nodelabels.Of(&n)
}
