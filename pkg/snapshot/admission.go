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
}

func demandOf(pod *corev1.Pod) demand {
	return demand{pod: pod, requests: podRequests(pod), affinity: nodeaffinity.GetRequiredNodeAffinity(pod)}
}

// refusal says why the scheduler would not bind the pod to a node with the taints and labels; nil when it would. It is the scheduler's
// own matching, not Karpenter's requirement algebra: that takes two demands that contradict each other for one that the label be absent,
// so that machines would be launched for a pod that none of them gets. The name is "" for a node that does not exist yet.
func (d *demand) refusal(taints []corev1.Taint, name string, labels map[string]string) error {
	for _, taint := range taints {
		if keepsPodsAway(taint) && (scheduling.Taints{taint}).Tolerates(d.pod.Spec.Tolerations) != nil {
			return fmt.Errorf("taint %s is not tolerated", taint.ToString())
		}
	}
	for _, key := range sortedKeys(d.pod.Spec.NodeSelector) {
		if value, ok := labels[key]; !ok || value != d.pod.Spec.NodeSelector[key] {
			return fmt.Errorf("label %s is not %s", key, d.pod.Spec.NodeSelector[key])
		}
	}
	// Without a name, terms that ask for a name would be passed over.
	matches, err := d.affinity.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: cmp.Or(name, "(new)"), Labels: labels}})
	if err != nil {
		return fmt.Errorf("reading the required node affinity: %w", err)
	}
	if !matches {
		return errors.New("the required node affinity is not met")
	}
	return nil
}

// whenStarted are the labels of a node that has started, given those of its claim and its machine: Karpenter marks it, and kubelet and the
// cloud write some labels under their former names too.
func whenStarted(labels map[string]string) map[string]string {
	all := maps.Clone(labels)
	for former, key := range karpv1.NormalizedLabels {
		if value, ok := labels[key]; ok {
			all[former] = value
		}
	}
	all[karpv1.NodeRegisteredLabelKey] = "true"
	all[karpv1.NodeInitializedLabelKey] = "true"
	return all
}
