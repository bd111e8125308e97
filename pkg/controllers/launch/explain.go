package launch

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/wording"
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

// karpenter is the component that Karpenter's events name, whatever its provider.
const karpenter = "karpenter"

// maxEvent is how much of an event's message is read, in bytes. Karpenter cuts errors off after 300.
const maxEvent = 1024

// fromKarpenter says whether an event is as Karpenter writes them about NodeClaims. Events about objects without a namespace are in the namespace default, where few
// may create any, but whoever may can write the same: an event is believed only about a claim of ours that is gone or going, once for each claim, and only to
// choose among what the claim asked for.
func fromKarpenter(e *corev1.Event) bool {
	o := &e.InvolvedObject
	return e.Namespace == corev1.NamespaceDefault && o.Kind == "NodeClaim" && o.Namespace == "" && strings.HasPrefix(o.APIVersion, "karpenter.sh/") &&
		(e.Source.Component == karpenter || e.ReportingController == karpenter)
}

// claimOf is the claim that an event tells something of.
func claimOf(_ context.Context, o client.Object) []reconcile.Request {
	event, ok := o.(*corev1.Event)
	if !ok || !fromKarpenter(event) || event.Reason != insufficientCapacity && event.Reason != spotInterrupted {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: event.InvolvedObject.Name}}}
}

// eventOf is Karpenter's event with the reason about the very claim, whose name may have been that of another before; nil when there is none.
func (c *Controller) eventOf(ctx context.Context, claim string, uid types.UID, reason string) (*corev1.Event, error) {
	var list corev1.EventList
	if err := c.Client.List(ctx, &list, client.InNamespace(corev1.NamespaceDefault)); err != nil {
		return nil, fmt.Errorf("reading the events of NodeClaim %s: %w", claim, err)
	}
	for i := range list.Items {
		e := &list.Items[i]
		if e.Reason == reason && e.InvolvedObject.Name == claim && e.InvolvedObject.UID == uid && uid != "" && fromKarpenter(e) {
			return e, nil
		}
	}
	return nil, nil
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
		return attribute(e.shape, wording.Shorten(said, maxEvent), cloud), nil
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
