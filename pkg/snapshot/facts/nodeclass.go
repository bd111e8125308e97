package facts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/clouds"
)

// NodeClassStateOf returns the state of a cloud node class. As in Karpenter's providers, its Ready condition must be True, and for the current generation if
// the condition has an observed generation.
func NodeClassStateOf(class *unstructured.Unstructured) NodeClassState {
	state := readinessOf(class)
	cloud := clouds.Of(class)
	state.Generation, state.Subnets = class.GetGeneration(), cloud.Subnets(class)
	if cloud.ReservationField != "" {
		terms, _, _ := unstructured.NestedSlice(class.Object, strings.Split(cloud.ReservationField, ".")...) // An invalid field selects none.
		state.SelectsReservations = len(terms) > 0
	}
	return state
}

func readinessOf(class *unstructured.Unstructured) NodeClassState {
	name := fmt.Sprintf("%s %q", class.GetKind(), class.GetName())
	if class.GetDeletionTimestamp() != nil {
		return NodeClassState{Reason: "NodeClassTerminating", Message: name + " is being deleted: name another in spec.nodeClassRef"}
	}
	conditions, _, err := unstructured.NestedSlice(class.Object, "status", "conditions")
	if err != nil {
		return NodeClassState{Reason: "NodeClassNotReady", Message: name + " has a status that cannot be read: " + err.Error()}
	}
	for _, c := range conditions {
		condition, ok := c.(map[string]any)
		if !ok || condition["type"] != "Ready" {
			continue
		}
		if condition["status"] != string(metav1.ConditionTrue) {
			return NodeClassState{Reason: "NodeClassNotReady", Message: fmt.Sprintf("%s is not Ready: %v %v; see its conditions", name, condition["reason"], condition["message"])}
		}
		if observed, ok := condition["observedGeneration"].(int64); ok && observed > 0 && observed != class.GetGeneration() {
			return NodeClassState{Reason: "NodeClassNotObserved", Message: name + " was changed and Karpenter has not looked at it since; wait a moment, or see that Karpenter runs"}
		}
		hash, version := clouds.NodeClassHash(class.GetAnnotations())
		return NodeClassState{Ready: true, Images: clouds.Of(class).Images(class), Hash: hash, HashVersion: version}
	}
	return NodeClassState{Reason: "NodeClassNotReady", Message: name + " has no Ready condition yet; see that the Karpenter provider for it runs"}
}

// NodeClassState describes a node class of the cloud.
type NodeClassState struct {
	// Ready reports whether the node class exists and its condition Ready is True for its current generation.
	Ready bool
	// Reason and Message explain why it is not Ready.
	Reason, Message string
	// Generation is the object's metadata.generation, or 0 if the object does not exist.
	Generation int64
	// Subnets has the zone of each subnet in its status, by ID. It is nil for kinds other than EC2NodeClass.
	Subnets map[string]string
	// InstanceTypes are the instance types that it can launch, with their allocatable resources and the zones of its subnets. They are also set for
	// node classes that are not Ready, because their machines may still run.
	InstanceTypes []catalog.InstanceType
	// Reservations are the reservations that the node class selects, as far as Karpenter has found them. SelectsReservations reports whether it selects any.
	Reservations        []catalog.Reservation
	SelectsReservations bool
	// CatalogReason and CatalogMessage name the part of InstanceTypes that is out of date, and why. They are empty if it is up to date.
	CatalogReason, CatalogMessage string
	// CatalogRead is when InstanceTypes were read from the cloud. It is zero if unknown.
	CatalogRead time.Time
	// Hash and HashVersion are Karpenter's hash of the spec of an EC2NodeClass, which it compares to detect drift. They are "" for other kinds.
	Hash, HashVersion string
	// Images are the machine images in its status. It is nil for kinds other than EC2NodeClass.
	Images []Image
}

// Learn sets the instance types from a catalog. A node class without instance types is not Ready.
func (s *NodeClassState) Learn(listing catalog.Listing) {
	s.InstanceTypes, s.CatalogReason, s.CatalogMessage = listing.InstanceTypes, listing.Reason, listing.Message
	s.CatalogRead, s.Reservations = listing.Read, listing.Reservations
	if s.Ready && listing.Reason != "" && !slices.ContainsFunc(listing.InstanceTypes, func(t catalog.InstanceType) bool { return len(t.Offerings) > 0 }) {
		s.Ready, s.Reason, s.Message = false, "CatalogUnavailable", listing.Message
	}
}

// Image is a machine image in the status of a node class.
type Image = cloud.Image
