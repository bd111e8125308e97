// Package clouds lists the clouds that Karve knows.
package clouds

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/aws"
)

// All are the clouds that Karve knows. Karpenter's kwok provider is one: it makes Nodes without machines.
var All = []*cloud.Provider{
	&aws.Provider,
	{NodeClass: schema.GroupKind{Group: "karpenter.kwok.sh", Kind: "KWOKNodeClass"}, LabelPrefix: "karpenter.kwok.sh/"},
}

// Of returns the cloud of a node class; one of which nothing is known where Karve does not know it.
func Of(class *unstructured.Unstructured) *cloud.Provider {
	kind := class.GroupVersionKind().GroupKind()
	if i := slices.IndexFunc(All, func(p *cloud.Provider) bool { return p.NodeClass == kind }); i >= 0 {
		return All[i]
	}
	return &cloud.Provider{NodeClass: kind}
}

// Images are those that a node class launches machines with.
func Images(class *unstructured.Unstructured) []cloud.Image {
	if read := Of(class).Images; read != nil {
		return read(class)
	}
	return nil
}

// Subnets are the zones of a node class's subnets, by id.
func Subnets(class *unstructured.Unstructured) map[string]string {
	if read := Of(class).Subnets; read != nil {
		return read(class)
	}
	return nil
}

// Describes says whether a label is one with which a cloud describes its machines.
func Describes(key string) bool {
	return slices.ContainsFunc(All, func(p *cloud.Provider) bool { return p.LabelPrefix != "" && strings.HasPrefix(key, p.LabelPrefix) })
}

// PlaceLabels are the labels that tell where a machine is, beside the label of Kubernetes for zones.
func PlaceLabels() []string {
	var all []string
	for _, p := range All {
		all = append(all, p.PlaceLabels...)
	}
	return all
}

// NodeClassHash is the hash of a node class in the annotations of the class, or of a claim that was launched with it, and the version of that hash; "" without one.
func NodeClassHash(annotations map[string]string) (hash, version string) {
	for _, p := range All {
		if hash := annotations[p.HashAnnotation]; p.HashAnnotation != "" && hash != "" {
			return hash, annotations[p.HashVersionAnnotation]
		}
	}
	return "", ""
}
