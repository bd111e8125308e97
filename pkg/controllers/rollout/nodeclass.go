package rollout

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/rollout"
	"karve.sh/karve/pkg/snapshot/facts"
)

// nodeClass is a node class of a cloud as it was read, and how it selects its images.
type nodeClass struct {
	object *unstructured.Unstructured
	choice cloud.ImageChoice
	// cloud is the provider of the class, and images defines how its node classes are read and changed.
	cloud  *cloud.Provider
	images *cloud.ImageRollouts
}

func (c *nodeClass) String() string { return c.object.GetKind() + " " + c.object.GetName() }

// referenceText formats a reference to a node class for messages.
func referenceText(ref v1alpha1.NodeClassReference) string { return ref.Kind + " " + ref.Name }

// resolves returns the image with which Karpenter launches GPU machines of each architecture.
func (c *nodeClass) resolves(architectures []string) (*v1alpha1.GPUImage, *rollout.Fault) {
	if state := facts.NodeClassStateOf(c.object); !state.Ready {
		return nil, &rollout.Fault{Reason: state.Reason, Message: state.Message}
	}
	image := &v1alpha1.GPUImage{}
	for _, architecture := range architectures {
		id, release, ok := c.images.Resolved(c.object, architecture)
		if !ok {
			return nil, &rollout.Fault{Reason: "NoGPUImage", Message: fmt.Sprintf(
				"%s resolves to no GPU image for %s: correct %s, or restrict its NodePools with a requirement for kubernetes.io/arch", c, architecture, c.cloud.ImageField)}
		}
		image.Images = append(image.Images, v1alpha1.ArchitectureImage{Architecture: architecture, ID: id})
		if image.Release == "" {
			image.Release = release
		}
	}
	return image, nil
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
		return nil, fmt.Errorf("reading %s: %w", c, err)
	}
	shadow.Object["spec"] = spec
	return shadow, c.images.Pin(shadow, []string{canary.Image})
}

// with returns the class as it would be with the images: ready, and resolved to them.
func (c *nodeClass) with(image *v1alpha1.GPUImage) (*unstructured.Unstructured, error) {
	class := c.object.DeepCopy()
	class.SetUID(types.UID(string(class.GetUID()) + "/" + strings.Join(image.IDs(), "/"))) // It must differ from the class in the catalog's cache.
	return class, c.images.Resolve(class, image)
}

// pinTo pins the class to the image for the rollout. On takeover, it saves the former selector terms in an annotation.
func (c *nodeClass) pinTo(r *v1alpha1.GPUImageRollout, image *v1alpha1.GPUImage) error {
	annotations := c.object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	if annotations[v1alpha1.ImageRolloutAnnotation] != r.Name {
		annotations[v1alpha1.FormerSelectorTermsAnnotation] = c.choice.Text
		annotations[v1alpha1.ImageRolloutAnnotation] = r.Name
	}
	c.object.SetAnnotations(annotations)
	return c.images.Pin(c.object, image.IDs())
}

// owned returns owner references, so that an object is deleted with the rollout.
func owned(r *v1alpha1.GPUImageRollout) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUImageRollout", Name: r.Name, UID: r.UID, Controller: new(true)}}
}

// nodeClass reads the node class of a rollout from the API server. It returns nil and the reason if there is none that can be used.
func (c *Controller) nodeClass(ctx context.Context, kind schema.GroupVersionKind, ref v1alpha1.NodeClassReference) (*nodeClass, *rollout.Blocked, error) {
	of := clouds.OfRef(ref)
	if kind.Empty() || of.ImageRollouts == nil {
		return nil, &rollout.Blocked{Gone: true, Fault: rollout.Fault{
			Reason: "NodeClassKindUnknown", Message: fmt.Sprintf("this cluster has no kind %s in group %s: install Karpenter's provider for it", ref.Kind, ref.Group),
		}}, nil
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	switch err := c.Live.Get(ctx, client.ObjectKey{Name: ref.Name}, o); {
	case apierrors.IsNotFound(err):
		return nil, &rollout.Blocked{Gone: true, Fault: rollout.Fault{
			Reason: "NodeClassNotFound", Message: fmt.Sprintf("%s %q does not exist: create it, or delete this GPUImageRollout", ref.Kind, ref.Name),
		}}, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading %s: %w", referenceText(ref), err)
	}
	if o.GetDeletionTimestamp() != nil {
		return nil, &rollout.Blocked{Fault: rollout.Fault{
			Reason: "NodeClassTerminating", Message: fmt.Sprintf("%s %q is being deleted", ref.Kind, ref.Name),
		}}, nil
	}
	choice, err := of.ImageRollouts.Choice(o)
	if err != nil {
		return nil, nil, err
	}
	return &nodeClass{o, choice, of, of.ImageRollouts}, nil, nil
}

func refersTo(ref *karpv1.NodeClassReference, class v1alpha1.NodeClassReference) bool {
	return ref != nil && ref.Group == class.Group && ref.Kind == class.Kind && ref.Name == class.Name
}
