package machines

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/test/harness/aws"
)

// silence is the status that the node lifecycle controller sets once it has not heard from a kubelet for a while. Tests do not wait for that.
const silence = `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown","message":"Kubelet stopped posting node status."}]}}`

// Silence stops a Node's kubelet while its machine keeps running: heartbeats end, and the node's pods no longer change.
func (f *Fleet) Silence(ctx context.Context, node string) error {
	if err := f.forget(ctx, node); err != nil {
		return fmt.Errorf("silencing node %s: %w", node, err)
	}
	return nil
}

// forget makes kwok ignore a Node and sets the status of an unreachable node. A missing Node is not an error.
func (f *Fleet) forget(ctx context.Context, node string) error {
	nodes := f.client.CoreV1().Nodes()
	n, err := nodes.Get(ctx, node, metav1.GetOptions{})
	if err == nil && n.Annotations[keptAlive] != "" {
		_, err = nodes.Patch(ctx, node, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, keptAlive), metav1.PatchOptions{})
	}
	if err == nil {
		_, err = nodes.Patch(ctx, node, types.StrategicMergePatchType, []byte(silence), metav1.PatchOptions{}, "status")
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Speak resumes a silenced kubelet if its machine still runs. The Node and its running pods become ready again.
func (f *Fleet) Speak(ctx context.Context, node string) error {
	if !f.runs(node) {
		return nil
	}
	wake := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"fake"}}}`, keptAlive)
	_, err := f.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, wake, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("waking node %s: %w", node, err)
	}
	// kwok makes the Node ready, but it makes a pod ready only once.
	pods, err := f.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return fmt.Errorf("listing the pods of node %s: %w", node, err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		notReady := func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue }
		if pod.Status.Phase != corev1.PodRunning || !pod.DeletionTimestamp.IsZero() || !slices.ContainsFunc(pod.Status.Conditions, notReady) {
			continue
		}
		ready := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, pod.UID)
		_, err := f.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, ready, metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("waking pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

func (f *Fleet) runs(node string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.machines {
		if m.PrivateDNS == node && m.State == aws.Running {
			return true
		}
	}
	return false
}
