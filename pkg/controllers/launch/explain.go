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
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/plain"
)

// insufficientCapacity is the reason of the events with which Karpenter's core reports that its provider refused a launch (pkg/events).
const insufficientCapacity = "InsufficientCapacityError"

func refuses(reason string) bool { return reason == insufficientCapacity }

// AboutNodeClaims returns a selector for the events that the controller reads, for the manager's cache.
func AboutNodeClaims() fields.Selector {
	return fields.OneTermEqualSelector("involvedObject.kind", "NodeClaim")
}

// karpenter is the component in Karpenter's events, whatever the provider.
const karpenter = "karpenter"

// maxEvent is how much of an event's message is used, in bytes. Karpenter truncates its own to this, and before 1.15 to 300.
const maxEvent = 1024

// fromKarpenter reports whether an event looks like those that Karpenter writes about NodeClaims. Events about cluster-scoped objects are in the
// namespace default. Any client that may create events there can imitate them. So an event counts only for one of Karve's NodeClaims that is gone or
// being deleted, only once for each NodeClaim, and only to choose among the offerings that it requested.
func fromKarpenter(e *corev1.Event) bool {
	o := &e.InvolvedObject
	return e.Namespace == corev1.NamespaceDefault && o.Kind == "NodeClaim" && o.Namespace == "" && strings.HasPrefix(o.APIVersion, "karpenter.sh/") &&
		(e.Source.Component == karpenter || e.ReportingController == karpenter)
}

// claimOf returns a request for the NodeClaim that an event is about.
func claimOf(_ context.Context, o client.Object) []reconcile.Request {
	event, ok := o.(*corev1.Event)
	if !ok || !fromKarpenter(event) || !refuses(event.Reason) && !clouds.Interrupts(event.Reason) {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: event.InvolvedObject.Name}}}
}

// eventOf returns Karpenter's event about the NodeClaim with this name and UID whose reason satisfies such, or nil if there is none.
func (c *Controller) eventOf(ctx context.Context, claim string, uid types.UID, such func(reason string) bool) (*corev1.Event, error) {
	if uid == "" {
		return nil, nil
	}
	var list corev1.EventList
	if err := c.Client.List(ctx, &list, client.InNamespace(corev1.NamespaceDefault)); err != nil {
		return nil, fmt.Errorf("reading the events of NodeClaim %s: %w", claim, err)
	}
	for i := range list.Items {
		e := &list.Items[i]
		if such(e.Reason) && e.InvolvedObject.Name == claim && e.InvolvedObject.UID == uid && fromKarpenter(e) {
			return e, nil
		}
	}
	return nil, nil
}

// explain returns the refusals for a NodeClaim that Karpenter deleted. It uses Karpenter's event, the reason that the NodeClaim had, or the state of
// the node class: if that is not ready, Karpenter launches nothing and gives no reason. It returns none if nothing is known.
//
// A late event about the earlier NodeClaim with that name comes first: Karpenter remembers what the cloud refused, and about the next NodeClaim it says
// only that nothing is available.
func (c *Controller) explain(ctx context.Context, claim string, e launching.Entry, reason, message string) ([]launching.Refusal, error) {
	cloud, notReady, err := c.readCloud(ctx, e.Shape)
	if err != nil {
		return nil, err
	}
	var said []launching.Refusal
	for _, uid := range []types.UID{e.Earlier, e.UID} {
		event, err := c.eventOf(ctx, claim, uid, refuses)
		if err != nil {
			return nil, err
		}
		if event != nil {
			said = append(said, launching.Attribute(e.Shape, plain.Shorten(messageOf(event), maxEvent), cloud)...)
		}
	}
	switch {
	case len(said) > 0:
		return said, nil
	case reason != "":
		return []launching.Refusal{launching.RefusalFor(e.Shape, reason, message, cloud)}, nil
	case notReady != "":
		return []launching.Refusal{launching.RefusalFor(e.Shape, v1alpha1.RefusalNodeClassNotReady, notReady, cloud)}, nil
	}
	return nil, nil
}

// messageOf returns what Karpenter's provider said in an event.
func messageOf(e *corev1.Event) string {
	if _, said, found := strings.Cut(e.Message, " event: "); found {
		return said
	}
	return e.Message
}

// readCloud returns the state of the node class of a shape, and why it is not ready. The reason is "" if it is ready.
func (c *Controller) readCloud(ctx context.Context, s launching.Shape) (cloud launching.Cloud, notReady string, err error) {
	class := &v1alpha1.GPUNodeClass{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: s.Class}, class); err != nil {
		if apierrors.IsNotFound(err) {
			return launching.Cloud{}, "", nil
		}
		return launching.Cloud{}, "", fmt.Errorf("reading GPUNodeClass %s: %w", s.Class, err)
	}
	state, err := c.NodeClass(ctx, class.Spec.NodeClassRef)
	if err != nil {
		return launching.Cloud{}, "", fmt.Errorf("reading %s %s: %w", class.Spec.NodeClassRef.Kind, class.Spec.NodeClassRef.Name, err)
	}
	if !state.Ready {
		notReady = state.Message
	}
	return launching.Cloud{Generation: state.Generation, Subnets: state.Subnets}, notReady, nil
}
