package facts

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"karve.sh/karve/pkg/cloud/clouds"
)

// NodeClassStateOf returns the state of a cloud node class. As in Karpenter's providers, its Ready condition must be True, and for the current generation if
// the condition has an observed generation.
func NodeClassStateOf(class *unstructured.Unstructured) NodeClassState {
	state := judged(class)
	cloud := clouds.Of(class)
	state.Generation, state.Subnets = class.GetGeneration(), cloud.Subnets(class)
	if cloud.ReservationField != "" {
		terms, _, _ := unstructured.NestedSlice(class.Object, strings.Split(cloud.ReservationField, ".")...) // An invalid field selects none.
		state.SelectsReservations = len(terms) > 0
	}
	return state
}

func judged(class *unstructured.Unstructured) NodeClassState {
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
