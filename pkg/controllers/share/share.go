// Package share writes to machines into how many replicas their GPUs are to be shared. That is no drift: the node agent follows the Node's annotation while the
// pods run, and lets go of replicas that are in use as their pods end.
package share

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

// Change is a machine whose GPUs are to be shared into another number of replicas.
type Change struct {
	Machine *snapshot.Machine
	// Replicas is that of each GPU.
	Replicas int64
	// why is the end of a sentence.
	why string
}

// Changes are the machines whose promise is not what their class says by now and, where that leaves a range, what the plan's placements need and the pods that
// may come allow.
func Changes(view *snapshot.View, placements []planner.Placement) []Change {
	placed := map[string]int64{}
	for _, p := range placements {
		placed[view.Nodes[p.Node].Name] += view.Replicas(p.Pods)
	}
	var all []Change
	for i := range view.Machines {
		m := &view.Machines[i]
		class := view.ClassOf(m.Pool())
		if class == nil || m.Type == nil || m.Leaving() || string(m.Promise.Resource) != class.Spec.Sharing.Resource() {
			continue
		}
		var want int64
		why := "since GPUNodeClass " + class.Name + " says so now"
		switch least, most := class.Spec.Sharing.ReplicasRange(m.Type.GPU.Name); {
		case least < most:
			want, why = within(m, least, placed[nameOf(m)])
		case !m.Started():
			continue
		default:
			want = least
		}
		if m.Promise.ReplicasPerGPU != want || m.Node != nil && m.Registered() && snapshot.PromiseOf(m.Node.Annotations).ReplicasPerGPU != want {
			all = append(all, Change{m, want, why})
		}
	}
	return all
}

// within is how many replicas each GPU of a machine is to have, least at any rate: as many as it has, or as pods hold and the placed ones need. What is more than
// is safe goes, which the agent lets last until the pods end that hold it.
func within(m *snapshot.Machine, least, placed int64) (replicas int64, why string) {
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

// nameOf is the machine's name in the planner's snapshot.
func nameOf(m *snapshot.Machine) string {
	if m.Node != nil {
		return m.Node.Name
	}
	return m.Claim.Name
}

// Write writes the number of replicas to the NodeClaim, which plans count by, and then to the Node, which the agent reads. Two controllers do: the one that finds the
// NodeClaim changed since it was read leaves it to the next look, so that a change is told once.
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
		return nil // Karpenter gives the Node what the claim says.
	}
	node := m.Node.DeepCopy()
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[nodecontract.ReplicasPerGPUAnnotation] = replicas
	if err := c.Patch(ctx, node, client.MergeFrom(m.Node)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the replicas to node %s: %w", node.Name, err)
	}
	if m.Promise.ReplicasPerGPU != change.Replicas {
		recorder.Eventf(node, claim, corev1.EventTypeNormal, "ReplicasChanged", "Share", "each GPU is to have %d %s instead of %d, %s",
			change.Replicas, m.Promise.Resource, m.Promise.ReplicasPerGPU, change.why)
	}
	return nil
}
