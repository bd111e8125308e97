package cloud

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/catalog"
)

// Catalog knows the machines that the cloud's node classes can launch. It answers from memory: it is asked whenever the cluster is read.
type Catalog interface {
	InstanceTypes(ctx context.Context, class *unstructured.Unstructured) catalog.Listing
}

// SameForAll is a catalogue of the same instance types for every node class, as one from a file is.
type SameForAll []catalog.InstanceType

// InstanceTypes are the same for every node class.
func (s SameForAll) InstanceTypes(context.Context, *unstructured.Unstructured) catalog.Listing {
	return catalog.Listing{InstanceTypes: s}
}

// ByKind has a catalogue for each kind of node class, by its group and kind.
type ByKind struct {
	Kinds map[schema.GroupKind]Catalog
	// Others is for all other kinds; nil when nothing is known of their machines.
	Others Catalog
}

// InstanceTypes are those of the catalogue for the class's kind.
func (b ByKind) InstanceTypes(ctx context.Context, class *unstructured.Unstructured) catalog.Listing {
	if c, ok := b.Kinds[class.GroupVersionKind().GroupKind()]; ok {
		return c.InstanceTypes(ctx, class)
	}
	if b.Others != nil {
		return b.Others.InstanceTypes(ctx, class)
	}
	return catalog.Listing{Reason: "NoCatalog", Message: fmt.Sprintf(
		"nothing is known of the machines of kind %s: name an EC2NodeClass, or give Karve their types with --instance-types-file", class.GetKind())}
}
