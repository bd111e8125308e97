// Package share sets how many replicas each GPU of a machine should have, unless it has slots of memory, which package slots sets. The node agent follows
// the annotation of the Node while pods run, and removes replicas that are in use when their pods end. A machine whose pods hold more than the new
// number drifts: see package drift.
package share

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// Change is a machine whose GPUs should have another number of replicas.
type Change struct {
	Machine *records.Machine
	// Replicas is the number for each GPU.
	Replicas int64
	// why completes the sentence of the event.
	why string
}

// Changes returns the machines whose number of replicas differs from what their GPUNodeClass sets. If it sets a range, the number depends on the plan's
// placements and on the pods that may arrive.
func Changes(view *snapshot.View, placements []planner.Placement) []Change {
	placed := map[string]int64{}
	for _, p := range placements {
		placed[view.Nodes[p.Node].Name] += view.Replicas(p.Pods)
	}
	var all []Change
	for i := range view.Machines {
		m := &view.Machines[i]
		class := view.ClassOf(m.Pool())
		if class == nil || m.Type == nil || m.Leaving() || !m.Promise.Slots.IsZero() || !slices.Contains(class.Spec.Sharing.Resources(), string(m.Promise.Resource)) {
			continue
		}
		share, ok := class.Spec.Sharing.ShareWith(m.Promise.MIG, m.Type.GPU.Name, m.Type.GPU.MemoryMiB, m.Type.GPU.Count)
		if !ok {
			continue // It has drifted.
		}
		var want int64
		why := "since GPUNodeClass " + class.Name + " says so now"
		switch least := share.Least; {
		case least < share.Most:
			want, why = within(m, least, placed[m.PlannerName()])
		case !m.Started():
			continue
		default:
			want = least
			if held := m.ReplicasInUse(); held > want*m.Promise.GPUs {
				why += fmt.Sprintf(". Its pods hold %s, so it is replaced, as for any drift", words.Count(held, "replica"))
			}
		}
		if m.Promise.ReplicasPerGPU != want || m.Node != nil && m.Registered() && facts.PromiseOf(m.Node.Annotations).ReplicasPerGPU != want {
			all = append(all, Change{m, want, why})
		}
	}
	return all
}

// within returns how many replicas each GPU of a machine should have within its range, and why. The result is never below least. It keeps the current
// number, unless the placed pods need more or the number is no longer safe. The agent keeps a replica that is in use until its pod ends.
func within(m *records.Machine, least, placed int64) (replicas int64, why string) {
	now, safe := m.Promise.ReplicasPerGPU, max(least, m.MostPerGPU)
	switch need := min(safe, each(m.ReplicasInUse()+placed, m.Promise.GPUs)); {
	case now < least:
		return least, "the least that its GPUNodeClass allows"
	case now > safe:
		return safe, "since a pod may come that states more device memory, or none"
	case placed > 0 && need > now:
		return need, "since waiting pods fit by the device memory that they state"
	}
	return now, ""
}

func each(replicas, gpus int64) int64 { return (replicas + max(1, gpus) - 1) / max(1, gpus) }

// Write writes the number of replicas to the NodeClaim, which plans use, and then to the Node, which the agent reads. Two controllers call it. If the
// NodeClaim has changed since it was read, Write does nothing, and a later reconciliation repeats it, so that the event is recorded once.
func Write(ctx context.Context, c client.Client, recorder events.EventRecorder, change Change, now time.Time) error {
	m, replicas := change.Machine, strconv.FormatInt(change.Replicas, 10)
	claim := m.Claim.DeepCopy()
	claim.Annotations[nodecontract.ReplicasPerGPUAnnotation] = replicas
	switch {
	case change.Replicas > m.Promise.ReplicasPerGPU:
		claim.Annotations[v1alpha1.ReplicasRaisedAnnotation] = now.UTC().Format(time.RFC3339)
	case change.Replicas < m.Promise.ReplicasPerGPU:
		delete(claim.Annotations, v1alpha1.ReplicasRaisedAnnotation)
	}
	err := c.Patch(ctx, claim, client.MergeFromWithOptions(m.Claim, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return nil
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the replicas to NodeClaim %s: %w", claim.Name, err)
	}
	log.FromContext(ctx).Info("Changed the replicas of a machine", "nodeClaim", klog.KObj(claim), "from", m.Promise.ReplicasPerGPU, "to", change.Replicas)
	if m.Node == nil {
		return nil // Karpenter copies the annotation to the Node.
	}
	node := m.Node.DeepCopy()
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, nodecontract.ReplicasPerGPUAnnotation, replicas)
	if err := c.Patch(ctx, node, client.MergeFrom(m.Node)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the replicas to node %s: %w", node.Name, err)
	}
	if m.Promise.ReplicasPerGPU != change.Replicas {
		recorder.Eventf(node, claim, corev1.EventTypeNormal, "ReplicasChanged", "Share", "each GPU is to have %d %s instead of %d, %s",
			change.Replicas, m.Promise.Resource, m.Promise.ReplicasPerGPU, change.why)
	}
	return nil
}
