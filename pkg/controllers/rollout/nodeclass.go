package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud/aws"
	"karve.sh/karve/pkg/cloud/aws/images"
	"karve.sh/karve/pkg/rollout"
	"karve.sh/karve/pkg/snapshot"
)

// nodeClass is an EC2NodeClass with the fields that matter here. The object is kept as it was read, so that copies and changes keep the fields of newer
// versions.
type nodeClass struct {
	object *unstructured.Unstructured
	terms  []term
	family string
	images []resolved
}

// term is an item of spec.amiSelectorTerms.
type term struct {
	Alias string `json:"alias,omitempty"`
	ID    string `json:"id,omitempty"`
}

// resolved is an item of status.amis.
type resolved struct {
	ID           string                           `json:"id"`
	Name         string                           `json:"name"`
	Requirements []corev1.NodeSelectorRequirement `json:"requirements"`
}

func nodeClassOf(o *unstructured.Unstructured) (nodeClass, error) {
	var typed struct {
		Spec struct {
			AMIFamily        string `json:"amiFamily"`
			AMISelectorTerms []term `json:"amiSelectorTerms"`
		} `json:"spec"`
		Status struct {
			AMIs []resolved `json:"amis"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed); err != nil {
		return nodeClass{}, fmt.Errorf("reading EC2NodeClass %s: %w", o.GetName(), err)
	}
	c := nodeClass{object: o, terms: typed.Spec.AMISelectorTerms, family: typed.Spec.AMIFamily, images: typed.Status.AMIs}
	if c.family == "" && len(c.terms) > 0 {
		c.family, _, _ = strings.Cut(c.terms[0].Alias, "@")
	}
	return c, nil
}

// pin returns the IDs that the class is pinned to, sorted. It is nil if not all terms are IDs.
func (c *nodeClass) pin() []string {
	ids := make([]string, 0, len(c.terms))
	for _, t := range c.terms {
		if t.ID == "" {
			return nil
		}
		ids = append(ids, t.ID)
	}
	slices.Sort(ids)
	return ids
}

// resolves returns the images that Karpenter launches GPU machines with, one for each architecture: the first that matches, as in Karpenter's AWS provider.
func (c *nodeClass) resolves(architectures []string) ([]resolved, *rollout.Problem) {
	if state := snapshot.NodeClassStateOf(c.object); !state.Ready {
		return nil, &rollout.Problem{Reason: state.Reason, Message: state.Message}
	}
	var all []resolved
	for _, architecture := range architectures {
		i := slices.IndexFunc(c.images, func(r resolved) bool { return r.forGPUs(architecture) })
		if i < 0 {
			return nil, &rollout.Problem{Reason: "NoGPUImage", Message: fmt.Sprintf(
				"EC2NodeClass %s resolves to no GPU image for %s: correct spec.amiSelectorTerms, or restrict its NodePools with a requirement for kubernetes.io/arch", c.object.GetName(), architecture)}
		}
		all = append(all, c.images[i])
	}
	return all, nil
}

func (r *resolved) forGPUs(architecture string) bool {
	for _, req := range r.Requirements {
		switch {
		case req.Key == corev1.LabelArchStable && req.Operator == corev1.NodeSelectorOpIn && !slices.Contains(req.Values, architecture),
			req.Key == aws.GPULabels.Count && req.Operator == corev1.NodeSelectorOpDoesNotExist,
			req.Key == aws.AcceleratorCountLabel && req.Operator == corev1.NodeSelectorOpExists:
			return false
		}
	}
	return true
}

// canaryClass returns a copy of the class with another image, for a canary node.
func (c *nodeClass) canaryClass(r *v1alpha1.GPUImageRollout, canary *v1alpha1.CanaryNode) (*unstructured.Unstructured, error) {
	shadow := &unstructured.Unstructured{Object: map[string]any{}}
	shadow.SetGroupVersionKind(c.object.GroupVersionKind())
	shadow.SetName(canary.Name)
	shadow.SetLabels(map[string]string{v1alpha1.CanaryLabel: r.Name})
	shadow.SetOwnerReferences(owned(r))
	spec, _, err := unstructured.NestedMap(c.object.Object, "spec") // NestedMap returns a deep copy.
	if err != nil {
		return nil, fmt.Errorf("reading EC2NodeClass %s: %w", c.object.GetName(), err)
	}
	shadow.Object["spec"] = spec
	return shadow, c.choose(shadow, []string{canary.Image})
}

// with returns the class as it would be with the images: ready, and resolved to them.
func (c *nodeClass) with(image *v1alpha1.GPUImage) (*unstructured.Unstructured, error) {
	class := c.object.DeepCopy()
	class.SetUID(types.UID(string(class.GetUID()) + "/" + strings.Join(image.IDs(), "/"))) // It must differ from the class in the catalogue's cache.
	amis := make([]any, 0, len(image.Images))
	for _, i := range image.Images {
		amis = append(amis, map[string]any{"id": i.ID, "name": image.Release, "requirements": []any{
			map[string]any{"key": corev1.LabelArchStable, "operator": string(corev1.NodeSelectorOpIn), "values": []any{i.Architecture}},
		}})
	}
	ready := map[string]any{"type": "Ready", "status": string(metav1.ConditionTrue), "observedGeneration": class.GetGeneration()}
	for field, value := range map[string][]any{"amis": amis, "conditions": {ready}} {
		if err := unstructured.SetNestedSlice(class.Object, value, "status", field); err != nil {
			return nil, fmt.Errorf("imagining EC2NodeClass %s with %s: %w", class.GetName(), image.Release, err)
		}
	}
	return class, nil
}

// choose sets the images of an EC2NodeClass by their IDs. It also sets the family, which an alias implies and IDs do not.
func (c *nodeClass) choose(class *unstructured.Unstructured, ids []string) error {
	terms := make([]any, 0, len(ids))
	for _, id := range ids {
		terms = append(terms, map[string]any{"id": id})
	}
	if err := unstructured.SetNestedSlice(class.Object, terms, "spec", "amiSelectorTerms"); err != nil {
		return fmt.Errorf("writing EC2NodeClass %s: %w", class.GetName(), err)
	}
	family := c.family
	if known, ok := images.FamilyOf(family); ok {
		family = string(known)
	}
	if err := unstructured.SetNestedField(class.Object, family, "spec", "amiFamily"); err != nil {
		return fmt.Errorf("writing EC2NodeClass %s: %w", class.GetName(), err)
	}
	return nil
}

// pinTo pins the class to the image for the rollout. When the class is taken over, it saves the former terms in an annotation.
func (c *nodeClass) pinTo(r *v1alpha1.GPUImageRollout, image *v1alpha1.GPUImage) error {
	annotations := c.object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	if annotations[v1alpha1.ImageRolloutAnnotation] != r.Name {
		former, _, err := unstructured.NestedSlice(c.object.Object, "spec", "amiSelectorTerms")
		if err != nil {
			return fmt.Errorf("reading EC2NodeClass %s: %w", c.object.GetName(), err)
		}
		noted, err := json.Marshal(former)
		if err != nil {
			return fmt.Errorf("noting the images of EC2NodeClass %s: %w", c.object.GetName(), err)
		}
		annotations[v1alpha1.FormerSelectorTermsAnnotation] = string(noted)
		annotations[v1alpha1.ImageRolloutAnnotation] = r.Name
	}
	c.object.SetAnnotations(annotations)
	return c.choose(c.object, image.IDs())
}

// owned returns owner references, so that an object is deleted with the rollout.
func owned(r *v1alpha1.GPUImageRollout) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUImageRollout", Name: r.Name, UID: r.UID, Controller: new(true)}}
}

// nodeClass reads the EC2NodeClass of a rollout from the API server. It returns nil and the reason if there is none that can be used.
func (c *Controller) nodeClass(ctx context.Context, kind schema.GroupVersionKind, name string) (*nodeClass, *rollout.Blocked, error) {
	if kind.Empty() {
		return nil, &rollout.Blocked{Gone: true, Problem: rollout.Problem{
			Reason: "NodeClassKindUnknown", Message: "this cluster has no EC2NodeClasses: install Karpenter's AWS provider",
		}}, nil
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	switch err := c.Live.Get(ctx, client.ObjectKey{Name: name}, o); {
	case apierrors.IsNotFound(err):
		return nil, &rollout.Blocked{Gone: true, Problem: rollout.Problem{
			Reason: "NodeClassNotFound", Message: fmt.Sprintf("EC2NodeClass %q does not exist: create it, or delete this GPUImageRollout", name),
		}}, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading EC2NodeClass %s: %w", name, err)
	}
	if o.GetDeletionTimestamp() != nil {
		return nil, &rollout.Blocked{Problem: rollout.Problem{
			Reason: "NodeClassTerminating", Message: fmt.Sprintf("EC2NodeClass %q is being deleted", name),
		}}, nil
	}
	class, err := nodeClassOf(o)
	if err != nil {
		return nil, nil, err
	}
	return &class, nil, nil
}
