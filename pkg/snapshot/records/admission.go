package records

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Demand is what a pod requires of a node.
type Demand struct {
	Pod      *corev1.Pod
	Requests corev1.ResourceList
	// affinity returns the pod's node selector and required node affinity. They are parsed once, when they are first needed.
	affinity func() nodeaffinity.RequiredNodeAffinity
	// Selectors are the keys of the pod's node selector, sorted.
	Selectors []string
	// Later reports whether they, or the required node affinity, mention labels that others write on nodes after the launch.
	Later bool
	// Places has, for each of the pod's volumes, the nodes on which it is available.
	Places []*volumePlace
}

func DemandOf(pod *corev1.Pod) Demand {
	return Demand{
		Pod: pod, Requests: facts.PodRequests(pod), Selectors: slices.Sorted(maps.Keys(pod.Spec.NodeSelector)), Later: dependsOnLater(pod),
		affinity: sync.OnceValue(func() nodeaffinity.RequiredNodeAffinity { return nodeaffinity.GetRequiredNodeAffinity(pod) }),
	}
}

// Refusal returns why the scheduler would not bind the pod to a node with the taints and labels, or nil if it would. The name is "" for a node that
// does not exist yet. It matches like the scheduler and does not use Karpenter's requirements, which combine two contradictory demands for a label into
// the demand that the label is absent. Machines would then be launched for a pod that cannot run on any of them.
func (d *Demand) Refusal(taints []corev1.Taint, name string, labels nodelabels.Labels) error {
	if taint := d.Untolerated(taints, facts.KeepsPodsAway); taint != nil {
		return UntoleratedTaintError{*taint}
	}
	if err := d.whyOtherLabel(labels); err != nil {
		return err
	}
	if err := d.whyOtherAffinity(name, labels); err != nil {
		return err
	}
	node := NodeOf(name, labels.Known)
	for _, p := range d.Places {
		if !p.nodes.Match(node) {
			return fmt.Errorf("%s cannot be had there", p.volume)
		}
	}
	return nil
}

// UntoleratedTaintError reports that a pod does not tolerate a taint.
type UntoleratedTaintError struct{ Taint corev1.Taint }

func (e UntoleratedTaintError) Error() string {
	return fmt.Sprintf("taint %s is not tolerated", e.Taint.ToString())
}

// OtherLabelError reports that a pod's node selector wants another value of a label. Has is "" if there is no such label.
type OtherLabelError struct{ Key, Want, Has string }

func (e OtherLabelError) Error() string {
	text := fmt.Sprintf("label %s is not %s", e.Key, e.Want)
	switch entry := nodelabels.Find(e.Key); {
	case entry == nil:
		return text
	case entry.Known == nodelabels.Never:
		return fmt.Sprintf("%s: %s writes it; %s", text, entry.By, entry.Instead)
	case e.Has != "" && nodelabels.Foretold(e.Key):
		return text + " but " + e.Has
	}
	return text
}

// ErrNodeAffinity reports that a pod's required node affinity is not met.
var ErrNodeAffinity = errors.New("the required node affinity is not met")

// AffinityError returns ErrNodeAffinity, with what to select by instead of a label that no node has.
func (d *Demand) AffinityError() error {
	for _, term := range RequiredTerms(d.Pod) {
		for i := range term.MatchExpressions {
			if e := nodelabels.Find(term.MatchExpressions[i].Key); e != nil && e.Known == nodelabels.Never && !e.Free {
				return fmt.Errorf("%w: %s writes label %s. %s", ErrNodeAffinity, e.By, term.MatchExpressions[i].Key, e.Instead)
			}
		}
	}
	return ErrNodeAffinity
}

// NodeOf returns a node for selectors to match. It always has a name, because terms with a field selector for the name are skipped for nodes without one.
func NodeOf(name string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: cmp.Or(name, "(new)"), Labels: labels}}
}

// Untolerated returns the first taint that counts and that the pod does not tolerate, or nil if there is none.
func (d *Demand) Untolerated(taints []corev1.Taint, counts func(corev1.Taint) bool) *corev1.Taint {
	for i := range taints {
		if counts(taints[i]) && (scheduling.Taints{taints[i]}).Tolerates(d.Pod.Spec.Tolerations) != nil {
			return &taints[i]
		}
	}
	return nil
}
