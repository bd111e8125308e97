package launch

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// Reasons of Karpenter's events about NodeClaims: its core tells of a launch that the provider refused (pkg/events), its AWS provider of notices from
// EC2 (pkg/controllers/interruption/events).
const (
	insufficientCapacity = "InsufficientCapacityError"
	spotInterrupted      = "SpotInterrupted"
)

// AboutNodeClaims selects the events that the controller reads, for the manager's cache.
func AboutNodeClaims() fields.Selector {
	return fields.OneTermEqualSelector("involvedObject.kind", "NodeClaim")
}

// claimOf is the claim that an event tells something of.
func claimOf(_ context.Context, o client.Object) []reconcile.Request {
	event, ok := o.(*corev1.Event)
	if !ok || event.Reason != insufficientCapacity && event.Reason != spotInterrupted {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: event.InvolvedObject.Name}}}
}

// eventOf is the event with the reason about the very claim, whose name may have been that of another before; nil when there is none.
func (c *Controller) eventOf(ctx context.Context, claim string, uid types.UID, reason string) (*corev1.Event, error) {
	var list corev1.EventList
	if err := c.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("reading the events of NodeClaim %s: %w", claim, err)
	}
	for i := range list.Items {
		if e := &list.Items[i]; e.Reason == reason && e.InvolvedObject.Kind == "NodeClaim" && e.InvolvedObject.Name == claim && e.InvolvedObject.UID == uid {
			return e, nil
		}
	}
	return nil, nil
}

// toldAt is when an event last happened.
func toldAt(e *corev1.Event) time.Time {
	switch {
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

// explain says what is to be left alone after Karpenter gave a claim up: by what its event says, by the reason that the claim had, or by the state of
// the node class, without which it launches nothing and says nothing. It says nothing when nothing of that is known.
func (c *Controller) explain(ctx context.Context, claim string, e entry, reason, message string) ([]Refusal, error) {
	cloud, notReady, err := c.lookAtCloud(ctx, e.shape)
	if err != nil {
		return nil, err
	}
	event, err := c.eventOf(ctx, claim, e.uid, insufficientCapacity)
	switch {
	case err != nil:
		return nil, err
	case event != nil:
		_, said, found := strings.Cut(event.Message, " event: ")
		if !found {
			said = event.Message
		}
		return attribute(e.shape, said, cloud), nil
	case reason != "":
		return []Refusal{refusalFor(e.shape, reason, message, cloud)}, nil
	case notReady != "":
		return []Refusal{refusalFor(e.shape, v1alpha1.RefusalNodeClassNotReady, notReady, cloud)}, nil
	}
	return nil, nil
}

// cloud is what is known of the node class of a shape.
func (c *Controller) cloud(ctx context.Context, s Shape) (Cloud, error) {
	cloud, _, err := c.lookAtCloud(ctx, s)
	return cloud, err
}

// lookAtCloud is what is known of the node class of a shape, and why it is not ready.
func (c *Controller) lookAtCloud(ctx context.Context, s Shape) (cloud Cloud, notReady string, err error) {
	class := &v1alpha1.GPUNodeClass{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: s.Class}, class); err != nil {
		if apierrors.IsNotFound(err) {
			return Cloud{}, "", nil
		}
		return Cloud{}, "", fmt.Errorf("reading GPUNodeClass %s: %w", s.Class, err)
	}
	state, err := c.NodeClass(ctx, class.Spec.NodeClassRef)
	if err != nil {
		return Cloud{}, "", fmt.Errorf("reading %s %s: %w", class.Spec.NodeClassRef.Kind, class.Spec.NodeClassRef.Name, err)
	}
	if !state.Ready {
		notReady = state.Message
	}
	return Cloud{Generation: state.Generation, Subnets: state.Subnets}, notReady, nil
}
