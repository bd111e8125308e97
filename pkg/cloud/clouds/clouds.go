// Package clouds lists the clouds that Karve knows.
package clouds

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/aws"
)

// All are the clouds that Karve knows. Karpenter's kwok provider, which creates Nodes without machines, is one of them.
var All = []*cloud.Provider{
	&aws.Provider,
	{NodeClass: schema.GroupKind{Group: "karpenter.kwok.sh", Kind: "KWOKNodeClass"}, LabelPrefix: "karpenter.kwok.sh/"},
}

// Of returns the cloud of a node class. For an unknown cloud, only NodeClass is set.
func Of(class *unstructured.Unstructured) *cloud.Provider {
	return OfKind(class.GroupVersionKind().GroupKind())
}

// OfRef returns the cloud of the node class that a reference names.
func OfRef(ref v1alpha1.NodeClassReference) *cloud.Provider {
	return OfKind(schema.GroupKind{Group: ref.Group, Kind: ref.Kind})
}

// OfKind returns the cloud whose node classes have a kind. For an unknown cloud, only NodeClass is set.
func OfKind(kind schema.GroupKind) *cloud.Provider {
	if i := slices.IndexFunc(All, func(p *cloud.Provider) bool { return p.NodeClass == kind }); i >= 0 {
		return All[i]
	}
	return &cloud.Provider{NodeClass: kind}
}

// Describes reports whether a label has the prefix with which a cloud describes its machines.
func Describes(key string) bool {
	return slices.ContainsFunc(All, func(p *cloud.Provider) bool { return p.LabelPrefix != "" && strings.HasPrefix(key, p.LabelPrefix) })
}

// ManagedLabels returns the labels of all machines that a cloud itself launches for node classes of a kind. It returns none for other node classes.
func ManagedLabels(kind schema.GroupKind) map[string]string {
	if p := managing(kind); p != nil {
		return p.Managed.Labels
	}
	return nil
}

// Relabel returns a map by label with the label names of machines that a cloud itself launches for node classes of a kind. For other node classes the
// map is unchanged.
func Relabel[T any](kind schema.GroupKind, labels map[string]T) map[string]T {
	p := managing(kind)
	if p == nil {
		return labels
	}
	renamed := make(map[string]T, len(labels))
	for key, value := range labels {
		if name, ok := strings.CutPrefix(key, p.LabelPrefix); ok {
			key = p.Managed.LabelPrefix + name
		}
		renamed[key] = value
	}
	return renamed
}

func managing(kind schema.GroupKind) *cloud.Provider {
	if i := slices.IndexFunc(All, func(p *cloud.Provider) bool { return p.Managed != nil && p.Managed.NodeClass == kind }); i >= 0 {
		return All[i]
	}
	return nil
}

// Interrupts reports whether an event with this reason announces the interruption of a spot machine.
func Interrupts(reason string) bool {
	return slices.ContainsFunc(All, func(p *cloud.Provider) bool { return p.Interrupted != "" && p.Interrupted == reason })
}

// NodeClassResources returns the resources of the node classes of the clouds that have GPUs.
func NodeClassResources() (all []schema.GroupResource) {
	for _, p := range All {
		if p.GPULabels.Name != "" {
			plural, _ := meta.UnsafeGuessKindToResource(p.NodeClass.WithVersion(""))
			all = append(all, plural.GroupResource())
		}
	}
	return all
}

// GPULabels returns the labels with which the clouds describe GPUs.
func GPULabels() []catalog.GPULabels {
	var all []catalog.GPULabels
	for _, p := range All {
		if p.GPULabels.Name != "" {
			all = append(all, p.GPULabels)
		}
	}
	return all
}

// PlaceLabels returns the labels for the location of a machine in all clouds, except the zone label of Kubernetes.
func PlaceLabels() []string {
	var all []string
	for _, p := range All {
		all = append(all, p.PlaceLabels...)
	}
	return all
}

// ReservationLabels returns the labels with the IDs of the reservations whose slots machines take, of all clouds.
func ReservationLabels() []string {
	var all []string
	for _, p := range All {
		if p.ReservationLabel != "" {
			all = append(all, p.ReservationLabel)
		}
	}
	return all
}

// NodeClassHash returns the hash of a node class and the version of the hash, from the annotations of the class or of a NodeClaim that was launched
// with it. It returns "" if there is none.
func NodeClassHash(annotations map[string]string) (hash, version string) {
	for _, p := range All {
		if hash := annotations[p.HashAnnotation]; p.HashAnnotation != "" && hash != "" {
			return hash, annotations[p.HashVersionAnnotation]
		}
	}
	return "", ""
}
