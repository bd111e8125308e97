package cloud

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/words"
)

// Catalog lists the instance types that a node class of the cloud can launch. It should answer from memory, because it is called whenever the cluster is
// read, and for several node classes at a time.
type Catalog interface {
	InstanceTypes(ctx context.Context, class *unstructured.Unstructured) catalog.Listing
}

// SameForAll is a catalog with the same instance types for every node class, such as those from a file.
type SameForAll []catalog.InstanceType

// InstanceTypes returns the same instance types for every node class.
func (s SameForAll) InstanceTypes(context.Context, *unstructured.Unstructured) catalog.Listing {
	return catalog.Listing{InstanceTypes: s}
}

// ByKind selects a catalog by the group and kind of the node class.
type ByKind struct {
	Kinds map[schema.GroupKind]Catalog
	// Others is the catalog for all other kinds. It is nil if their instance types are unknown.
	Others Catalog
}

// InstanceTypes returns the instance types from the catalog for the kind of the node class.
func (b ByKind) InstanceTypes(ctx context.Context, class *unstructured.Unstructured) catalog.Listing {
	if c, ok := b.Kinds[class.GroupVersionKind().GroupKind()]; ok {
		return c.InstanceTypes(ctx, class)
	}
	if b.Others != nil {
		return b.Others.InstanceTypes(ctx, class)
	}
	var known []string
	for kind := range b.Kinds {
		known = append(known, kind.Kind)
	}
	slices.Sort(known)
	return catalog.Listing{Reason: "NoCatalog", Message: fmt.Sprintf("nothing is known of the machines of kind %s: name a node class of kind %s, or give Karve their types with --instance-types-file",
		class.GetKind(), words.Or(known))}
}
