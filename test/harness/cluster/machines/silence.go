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

// silence is what the node lifecycle controller makes of a node whose kubelet is not heard of for a while; here nobody waits for that.
const silence = `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown","message":"Kubelet stopped posting node status."}]}}`

// Silence has a Node's kubelet fall silent while its machine runs on: its heartbeats end, and so does all that happens to its pods.
func (f *Fleet) Silence(ctx context.Context, node string) error {
	if err := f.forget(ctx, node); err != nil {
		return fmt.Errorf("silencing node %s: %w", node, err)
	}
	return nil
}

// forget has kwok leave a Node alone, and says of it what is said of one that is not heard of. One that is gone is no error.
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

// Speak has a kubelet that was silenced speak again, if its machine still runs: it says that the Node is ready, and so are its pods that ran.
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
	// kwok makes the Node ready, but pods only once in their life.
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
