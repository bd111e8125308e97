package aws

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
)

// imageRollouts reads and changes EC2NodeClasses. It works on the objects as they were read, so that copies and changes keep the fields of newer
// versions.
var imageRollouts = cloud.ImageRollouts{
	Choice: choiceOf, Resolved: resolved, Unfollowed: unfollowed, Pin: pin, Resolve: resolve,
}

// nodeClass has the fields of an EC2NodeClass that matter for its images and subnets.
type nodeClass struct {
	Spec struct {
		AMIFamily        string `json:"amiFamily"`
		AMISelectorTerms []term `json:"amiSelectorTerms"`
	} `json:"spec"`
	Status struct {
		AMIs    []ami `json:"amis"`
		Subnets []struct {
			ID   string `json:"id"`
			Zone string `json:"zone"`
		} `json:"subnets"`
	} `json:"status"`
}

type term struct {
	Alias string `json:"alias,omitempty"`
	ID    string `json:"id,omitempty"`
}

type ami struct {
	ID           string                           `json:"id"`
	Name         string                           `json:"name"`
	Requirements []corev1.NodeSelectorRequirement `json:"requirements"`
}

func nodeClassOf(class *unstructured.Unstructured) (nodeClass, error) {
	var c nodeClass
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(class.Object, &c); err != nil {
		return nodeClass{}, fmt.Errorf("reading EC2NodeClass %s: %w", class.GetName(), err)
	}
	return c, nil
}

// family returns the family of the images that the class names. An alias also names it, as in "al2023@latest".
func (c *nodeClass) family() string {
	if c.Spec.AMIFamily == "" && len(c.Spec.AMISelectorTerms) > 0 {
		family, _, _ := strings.Cut(c.Spec.AMISelectorTerms[0].Alias, "@")
		return family
	}
	return c.Spec.AMIFamily
}

// ids returns the IDs of the images that the class names, sorted. It returns nil if not all terms are IDs.
func (c *nodeClass) ids() []string {
	ids := make([]string, 0, len(c.Spec.AMISelectorTerms))
	for _, t := range c.Spec.AMISelectorTerms {
		if t.ID == "" {
			return nil
		}
		ids = append(ids, t.ID)
	}
	slices.Sort(ids)
	return ids
}

func choiceOf(class *unstructured.Unstructured) (cloud.ImageChoice, error) {
	c, err := nodeClassOf(class)
	if err != nil {
		return cloud.ImageChoice{}, err
	}
	terms, _, err := unstructured.NestedSlice(class.Object, "spec", "amiSelectorTerms")
	if err != nil {
		return cloud.ImageChoice{}, fmt.Errorf("reading EC2NodeClass %s: %w", class.GetName(), err)
	}
	text, err := json.Marshal(terms)
	if err != nil {
		return cloud.ImageChoice{}, fmt.Errorf("noting the images of EC2NodeClass %s: %w", class.GetName(), err)
	}
	family, _ := FamilyOf(c.family())
	return cloud.ImageChoice{Family: string(family), IDs: c.ids(), Text: string(text)}, nil
}

func unfollowed(class *unstructured.Unstructured, image string) string {
	c, err := nodeClassOf(class)
	if err != nil {
		return err.Error()
	}
	if _, known := FamilyOf(c.family()); known || IsImageID(image) {
		return ""
	}
	return fmt.Sprintf("EC2NodeClass %s is of the family %q, for which no GPU images are published that could be followed: use AL2023 or Bottlerocket, or name the id of an image in spec.image",
		class.GetName(), c.family())
}

// resolved returns the first image that matches, as in Karpenter's AWS provider.
func resolved(class *unstructured.Unstructured, architecture string) (id, release string, ok bool) {
	c, err := nodeClassOf(class)
	if err != nil {
		return "", "", false
	}
	i := slices.IndexFunc(c.Status.AMIs, func(a ami) bool { return a.forGPUs(architecture) })
	if i < 0 {
		return "", "", false
	}
	a := c.Status.AMIs[i]
	return a.ID, ReleaseOf(a.ID, a.Name), true
}

func (a *ami) forGPUs(architecture string) bool {
	for _, req := range a.Requirements {
		switch {
		case req.Key == corev1.LabelArchStable && req.Operator == corev1.NodeSelectorOpIn && !slices.Contains(req.Values, architecture),
			req.Key == GPULabels.Count && req.Operator == corev1.NodeSelectorOpDoesNotExist,
			req.Key == AcceleratorCountLabel && req.Operator == corev1.NodeSelectorOpExists:
			return false
		}
	}
	return true
}

// pin also sets the family, which an alias implies and IDs do not.
func pin(class *unstructured.Unstructured, ids []string) error {
	c, err := nodeClassOf(class)
	if err != nil {
		return err
	}
	terms := make([]any, 0, len(ids))
	for _, id := range ids {
		terms = append(terms, map[string]any{"id": id})
	}
	if err := unstructured.SetNestedSlice(class.Object, terms, "spec", "amiSelectorTerms"); err != nil {
		return fmt.Errorf("writing EC2NodeClass %s: %w", class.GetName(), err)
	}
	known, _ := FamilyOf(c.family())
	if err := unstructured.SetNestedField(class.Object, cmp.Or(string(known), c.family()), "spec", "amiFamily"); err != nil {
		return fmt.Errorf("writing EC2NodeClass %s: %w", class.GetName(), err)
	}
	return nil
}

func resolve(class *unstructured.Unstructured, image *v1alpha1.GPUImage) error {
	amis := make([]any, 0, len(image.Images))
	for _, i := range image.Images {
		amis = append(amis, map[string]any{"id": i.ID, "name": image.Release, "requirements": []any{
			map[string]any{"key": corev1.LabelArchStable, "operator": string(corev1.NodeSelectorOpIn), "values": []any{i.Architecture}},
		}})
	}
	ready := map[string]any{"type": "Ready", "status": string(metav1.ConditionTrue), "observedGeneration": class.GetGeneration()}
	for field, value := range map[string][]any{"amis": amis, "conditions": {ready}} {
		if err := unstructured.SetNestedSlice(class.Object, value, "status", field); err != nil {
			return fmt.Errorf("imagining EC2NodeClass %s with %s: %w", class.GetName(), image.Release, err)
		}
	}
	return nil
}

// Family is an operating system with GPU images, by its name in spec.amiFamily of an EC2NodeClass.
type Family string

// Families that have images with NVIDIA's driver.
const (
	AL2023       Family = "AL2023"
	Bottlerocket Family = "Bottlerocket"
)

// FamilyOf returns the family with the name, ignoring case as aliases do. It returns false if there is none.
func FamilyOf(name string) (Family, bool) {
	for _, family := range []Family{AL2023, Bottlerocket} {
		if strings.EqualFold(name, string(family)) {
			return family, true
		}
	}
	return "", false
}

// IsImageID reports whether a name is the ID of an image.
func IsImageID(name string) bool { return strings.HasPrefix(name, "ami-") }

// ReleaseOf returns the part of an image's name that identifies the release, such as v20261112 for AL2023 or 1.49.0 for Bottlerocket. If the name has no such
// part, it returns the ID.
func ReleaseOf(id, name string) string {
	parts := strings.Split(name, "-")
	switch {
	case strings.HasPrefix(name, "amazon-eks-node-al2023-"):
		return parts[len(parts)-1]
	case strings.HasPrefix(name, "bottlerocket-aws-k8s-"):
		for _, part := range parts {
			if version, ok := strings.CutPrefix(part, "v"); ok && strings.Contains(version, ".") {
				return version
			}
		}
	}
	return id
}
