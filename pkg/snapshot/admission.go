package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

// demand is what a pod asks of a node.
type demand struct {
	pod      *corev1.Pod
	requests corev1.ResourceList
	affinity nodeaffinity.RequiredNodeAffinity
	// selectors are the keys of the pod's node selector, sorted.
	selectors []string
	// places are where the pod's volumes can be had.
	places []*place
}

func demandOf(pod *corev1.Pod) demand {
	return demand{
		pod: pod, requests: PodRequests(pod), affinity: nodeaffinity.GetRequiredNodeAffinity(pod), selectors: sortedKeys(pod.Spec.NodeSelector),
	}
}

// refusal says why the scheduler would not bind the pod to a node with the taints and labels; nil when it would. It is the scheduler's
// own matching, not Karpenter's requirement algebra: that takes two demands that contradict each other for one that the label be absent,
// so that machines would be launched for a pod that none of them gets. The name is "" for a node that does not exist yet.
func (d *demand) refusal(taints []corev1.Taint, name string, labels map[string]string) error {
	if taint := d.untolerated(taints, keepsPodsAway); taint != nil {
		return fmt.Errorf("taint %s is not tolerated", taint.ToString())
	}
	for _, key := range d.selectors {
		if value, ok := labels[key]; !ok || value != d.pod.Spec.NodeSelector[key] {
			return fmt.Errorf("label %s is not %s", key, d.pod.Spec.NodeSelector[key])
		}
	}
	node := nodeOf(name, labels)
	matches, err := d.affinity.Match(node)
	if err != nil {
		return fmt.Errorf("reading the required node affinity: %w", err)
	}
	if !matches {
		return errors.New("the required node affinity is not met")
	}
	for _, p := range d.places {
		if !p.nodes.Match(node) {
			return fmt.Errorf("%s cannot be had there", p.volume)
		}
	}
	return nil
}

// nodeOf is a node as selectors see it. Without a name, terms that ask for a name would be passed over.
func nodeOf(name string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: cmp.Or(name, "(new)"), Labels: labels}}
}

// untolerated is the first of the taints that count that the pod does not tolerate; nil when there is none.
func (d *demand) untolerated(taints []corev1.Taint, counts func(corev1.Taint) bool) *corev1.Taint {
	for i := range taints {
		if counts(taints[i]) && (scheduling.Taints{taints[i]}).Tolerates(d.pod.Spec.Tolerations) != nil {
			return &taints[i]
		}
	}
	return nil
}

// selects says whether the pod's node selector and required node affinity select a node.
func (d *demand) selects(node *corev1.Node) bool {
	matches, err := d.affinity.Match(node)
	return err == nil && matches
}

// labelEBSZone is the zone under the name that the driver of EBS volumes gives it, on nodes as well as in volumes. Karpenter's provider for AWS knows
// it for an alias; it does not tell anybody.
const labelEBSZone = "topology.ebs.csi.aws.com/zone"

// whenStarted are the labels of a node that has started, given those of its claim and its machine: Karpenter marks it, and kubelet and the
// cloud write some labels under their former names too.
func whenStarted(labels map[string]string) map[string]string {
	all := maps.Clone(labels)
	for former, key := range karpv1.NormalizedLabels {
		if value, ok := labels[key]; ok {
			all[former] = value
		}
	}
	if zone, ok := labels[corev1.LabelTopologyZone]; ok {
		all[labelEBSZone] = zone
	}
	all[karpv1.NodeRegisteredLabelKey] = "true"
	all[karpv1.NodeInitializedLabelKey] = "true"
	return all
}
