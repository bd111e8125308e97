package snapshot

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Annotations by which Karpenter's AWS provider tells a changed EC2NodeClass, on the class and on the claims launched with it.
const (
	NodeClassHashAnnotation        = "karpenter.k8s.aws/ec2nodeclass-hash"
	NodeClassHashVersionAnnotation = "karpenter.k8s.aws/ec2nodeclass-hash-version"
)

// NodeClassStateOf judges one of the cloud's node classes by its Ready condition, as Karpenter's providers do before they launch: it must be True and
// of the class's present generation, where the condition tells a generation at all.
func NodeClassStateOf(class *unstructured.Unstructured) NodeClassState {
	state := judged(class)
	state.Generation, state.Subnets = class.GetGeneration(), subnetsOf(class)
	return state
}

// subnetsOf are the zones of the subnets in the status of an EC2NodeClass, by id.
func subnetsOf(class *unstructured.Unstructured) map[string]string {
	found, _, err := unstructured.NestedSlice(class.Object, "status", "subnets")
	if err != nil || len(found) == 0 {
		return nil
	}
	zones := map[string]string{}
	for _, f := range found {
		subnet, _ := f.(map[string]any)
		id, _ := subnet["id"].(string)
		zone, _ := subnet["zone"].(string)
		if id != "" && zone != "" {
			zones[id] = zone
		}
	}
	return zones
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
		return NodeClassState{
			Ready: true, Images: imagesOf(class),
			Hash: class.GetAnnotations()[NodeClassHashAnnotation], HashVersion: class.GetAnnotations()[NodeClassHashVersionAnnotation],
		}
	}
	return NodeClassState{Reason: "NodeClassNotReady", Message: name + " has no Ready condition yet; see that the Karpenter provider for it runs"}
}

// imagesOf are those in the status of an EC2NodeClass. Images that cannot be read are none, so that nothing is replaced for them.
func imagesOf(class *unstructured.Unstructured) []Image {
	found, _, err := unstructured.NestedSlice(class.Object, "status", "amis")
	if err != nil {
		return nil
	}
	b, err := json.Marshal(found)
	if err != nil {
		return nil
	}
	var amis []struct {
		ID           string                           `json:"id"`
		Requirements []corev1.NodeSelectorRequirement `json:"requirements"`
	}
	if err := json.Unmarshal(b, &amis); err != nil {
		return nil
	}
	var images []Image
	for _, ami := range amis {
		images = append(images, Image{ami.ID, ami.Requirements})
	}
	return images
}
