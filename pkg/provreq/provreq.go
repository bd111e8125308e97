// Package provreq reads ProvisioningRequests, with which others ask for room before they create pods. The API is Cluster Autoscaler's, and Kueue is its main
// client: it starts a job once its request is provisioned. Each autoscaler serves classes of its own and leaves other requests alone.
//
// The types of the API are not used: their package imports test libraries and code generators.
package provreq

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kind is the kind of ProvisioningRequests, in the version that is read.
var Kind = schema.GroupVersionKind{Group: "autoscaling.x-k8s.io", Version: "v1", Kind: "ProvisioningRequest"}

// The provisioning classes that Karve serves.
const (
	// CheckCapacity books free room on nodes that have started, and launches nothing.
	CheckCapacity = "check-capacity.karve.sh"
	// Atomic launches nodes for all pods of a request, or for none, and books their room.
	Atomic = "atomic.karve.sh"
)

// Types of conditions, as Cluster Autoscaler defines them.
const (
	// Accepted: Karve serves the request.
	Accepted = "Accepted"
	// Provisioned: there is room for all pods of the request, and it is booked.
	Provisioned = "Provisioned"
	// Failed: the request has got no room, and is not tried again.
	Failed = "Failed"
	// BookingExpired: the room of a provisioned request is no longer booked, because the time is over.
	BookingExpired = "BookingExpired"
	// CapacityRevoked: the room of a provisioned request is gone, and there is no other.
	CapacityRevoked = "CapacityRevoked"
)

// ConsumeAnnotation is the annotation of a pod that takes the booked room of the request with this name in its namespace. Kueue sets it.
const ConsumeAnnotation = "autoscaling.x-k8s.io/consume-provisioning-request"

// Parameters of requests, as Cluster Autoscaler reads them.
const (
	// noRetry ends a request of class CheckCapacity for which there is no room now, if it is "true".
	noRetry = "noRetry"
	// validUntilSeconds is how long after its creation a request is tried.
	validUntilSeconds = "ValidUntilSeconds"
)

// defaultValidity is how long a request is tried that does not say how long, as in Cluster Autoscaler.
const defaultValidity = 7 * 24 * time.Hour

// Request is a ProvisioningRequest of one of Karve's classes.
type Request struct {
	Namespace, Name, ResourceVersion string
	UID                              types.UID
	Generation                       int64
	Created                          time.Time
	// Class is CheckCapacity or Atomic.
	Class string
	// Sets are its pods. Requests that are over have none.
	Sets []PodSet
	// NoRetry reports whether a request for which there is no room now is over.
	NoRetry bool
	// ValidFor is how long after its creation it is tried.
	ValidFor   time.Duration
	Conditions []metav1.Condition
}

// PodSet is a number of equal pods.
type PodSet struct {
	// TemplateName is the name of a PodTemplate. Missing reports whether it does not exist.
	TemplateName string
	Missing      bool
	Template     corev1.PodTemplateSpec
	// Count is ≥ 1.
	Count int32
}

// String returns the kind, namespace and name of a request, for people.
func (r *Request) String() string { return Kind.Kind + " " + r.Namespace + "/" + r.Name }

// Is reports whether a condition is True.
func (r *Request) Is(condition string) bool {
	return apimeta.IsStatusConditionTrue(r.Conditions, condition)
}

// Has reports whether a request has a condition, whenever it got it.
func (r *Request) Has(c metav1.Condition) bool {
	is := apimeta.FindStatusCondition(r.Conditions, c.Type)
	return is != nil && is.Status == c.Status && is.Reason == c.Reason && is.Message == c.Message
}

// Over reports whether Karve is done with a request: nothing is planned or booked for it.
func (r *Request) Over() bool { return r.Is(Failed) || r.Is(BookingExpired) || r.Is(CapacityRevoked) }

// Expired reports whether the time is over in which a request is tried.
func (r *Request) Expired(now time.Time) bool {
	return !r.Is(Provisioned) && now.Sub(r.Created) >= r.ValidFor
}

// Since returns when a condition became True, or the zero time if it is not.
func (r *Request) Since(condition string) time.Time {
	if c := apimeta.FindStatusCondition(r.Conditions, condition); c != nil && c.Status == metav1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// Reference returns a reference for events.
func (r *Request) Reference() *corev1.ObjectReference {
	version, kind := Kind.ToAPIVersionAndKind()
	return &corev1.ObjectReference{APIVersion: version, Kind: kind, Namespace: r.Namespace, Name: r.Name, UID: r.UID}
}

// New returns an empty ProvisioningRequest, for a watch.
func New() client.Object {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(Kind)
	return u
}

// object is what Karve reads of a ProvisioningRequest.
type object struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              spec   `json:"spec"`
	Status            status `json:"status"`
}

type spec struct {
	ProvisioningClassName string            `json:"provisioningClassName"`
	PodSets               []podSet          `json:"podSets"`
	Parameters            map[string]string `json:"parameters,omitempty"`
}

type podSet struct {
	PodTemplateRef reference `json:"podTemplateRef"`
	Count          int32     `json:"count"`
}

type reference struct {
	Name string `json:"name"`
}

type status struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Trim removes what List does not read from a ProvisioningRequest: its details alone may have two megabytes. Of a request of another class it keeps only the
// name.
func Trim(u *unstructured.Unstructured) {
	o, ours := decode(u)
	if !ours {
		o.Spec, o.Status = spec{}, status{}
	}
	o.ObjectMeta = metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, Generation: o.Generation, CreationTimestamp: o.CreationTimestamp,
		DeletionTimestamp: o.DeletionTimestamp,
	}
	parameters := map[string]string{}
	for _, key := range []string{noRetry, validUntilSeconds} {
		if value, has := o.Spec.Parameters[key]; has {
			parameters[key] = value
		}
	}
	o.Spec.Parameters = parameters
	if kept, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&o); err == nil {
		u.Object = kept
		u.SetGroupVersionKind(Kind)
	}
}

// decode returns a ProvisioningRequest, and whether it is of one of Karve's classes and not being deleted.
func decode(u *unstructured.Unstructured) (object, bool) {
	var o object
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
		return o, false // The CRD does not allow it.
	}
	return o, (o.Spec.ProvisioningClassName == CheckCapacity || o.Spec.ProvisioningClassName == Atomic) && o.DeletionTimestamp.IsZero()
}

// List returns the ProvisioningRequests of Karve's classes with their PodTemplates, the oldest first.
func List(ctx context.Context, reader client.Reader) ([]Request, error) {
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(Kind.GroupVersion().WithKind(Kind.Kind + "List"))
	if err := reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing ProvisioningRequests: %w", err)
	}
	var requests []Request
	for i := range list.Items {
		o, ours := decode(&list.Items[i])
		if !ours {
			continue
		}
		r, err := requestOf(ctx, reader, &o)
		if err != nil {
			return nil, err
		}
		requests = append(requests, r)
	}
	slices.SortFunc(requests, func(a, b Request) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return requests, nil
}

func requestOf(ctx context.Context, reader client.Reader, o *object) (Request, error) {
	r := Request{
		Namespace: o.Namespace, Name: o.Name, ResourceVersion: o.ResourceVersion, UID: o.UID, Generation: o.Generation, Created: o.CreationTimestamp.Time,
		Class: o.Spec.ProvisioningClassName, NoRetry: o.Spec.Parameters[noRetry] == "true", ValidFor: defaultValidity, Conditions: o.Status.Conditions,
	}
	if n, err := strconv.ParseUint(o.Spec.Parameters[validUntilSeconds], 10, 31); err == nil {
		r.ValidFor = time.Duration(n) * time.Second
	}
	if r.Over() {
		return r, nil
	}
	for _, set := range o.Spec.PodSets {
		var template corev1.PodTemplate
		err := reader.Get(ctx, client.ObjectKey{Namespace: o.Namespace, Name: set.PodTemplateRef.Name}, &template)
		if client.IgnoreNotFound(err) != nil {
			return r, fmt.Errorf("reading PodTemplate %s/%s of %s: %w", o.Namespace, set.PodTemplateRef.Name, &r, err)
		}
		r.Sets = append(r.Sets, PodSet{TemplateName: set.PodTemplateRef.Name, Missing: apierrors.IsNotFound(err), Template: template.Template, Count: set.Count})
	}
	return r, nil
}

// Patch returns a merge patch that sets conditions of a request. It fails with a conflict if somebody has changed the request since it was read.
func (r *Request) Patch(conditions []metav1.Condition) (client.Object, client.Patch, error) {
	all := slices.Clone(r.Conditions)
	for _, c := range conditions {
		apimeta.SetStatusCondition(&all, c)
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": r.ResourceVersion}, "status": status{all}})
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the conditions of %s: %w", r, err)
	}
	o := New()
	o.SetNamespace(r.Namespace)
	o.SetName(r.Name)
	return o, client.RawPatch(types.MergePatchType, text), nil
}
