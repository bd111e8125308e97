package cloud

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// ImageRollouts provides what GPUImageRollouts need to know about a cloud's node classes. Calls to the cloud go through an [ImageSource].
type ImageRollouts struct {
	// Choice returns how a node class selects its images.
	Choice func(class *unstructured.Unstructured) (ImageChoice, error)
	// Resolved returns the image with which Karpenter launches GPU machines of an architecture, from the status of the node class, and its release. It returns
	// false if there is none.
	Resolved func(class *unstructured.Unstructured, architecture string) (id, release string, ok bool)
	// Unfollowed returns why a node class cannot follow the image of a GPUImageRollout, or "" if it can.
	Unfollowed func(class *unstructured.Unstructured, image string) string
	// Pin makes a node class select the images with the IDs, which are of the same family as before.
	Pin func(class *unstructured.Unstructured, ids []string) error
	// Resolve makes a node class look as if it were ready and had resolved to an image.
	Resolve func(class *unstructured.Unstructured, image *v1alpha1.GPUImage) error
}

// ImageChoice is how a node class selects its images.
type ImageChoice struct {
	// Family is the operating system of the images. It is "" if the cloud publishes no GPU images for it.
	Family string
	// IDs are the images that the node class names, sorted. They are nil if it selects images in another way.
	IDs []string
	// Text is the value of the provider's ImageField, as JSON.
	Text string
}

// ImageSource calls a cloud to find machine images. Its errors are ImageErrors.
type ImageSource interface {
	// Find returns the image of a family that a GPUImageRollout names: the newest one, that of a release, or one ID. kubernetes is the version of the control
	// plane, such as 1.34.
	Find(ctx context.Context, family, name, kubernetes string, architectures []string) (*v1alpha1.GPUImage, error)
	// Created returns when the newest of the images was created, or the zero time if unknown.
	Created(ctx context.Context, ids []string) (time.Time, error)
	// Missing returns the IDs for which there is no image that can be launched.
	Missing(ctx context.Context, ids []string) ([]string, error)
}

// ImageError is why an ImageSource found no image, as the reason and message of a condition.
type ImageError struct {
	Reason, Message string
	// Err is the cause. It may be nil.
	Err error
}

func (e *ImageError) Error() string { return e.Message }

func (e *ImageError) Unwrap() error { return e.Err }
