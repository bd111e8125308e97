// Package manifests reads files as they are given to kubectl apply, and makes of them the cluster that would be there once they were applied: with the
// pods that the workloads among them ask for, all waiting, and with node classes that are Ready. It is pure: files in, values out.
package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot"
)

// File is a file of YAML or JSON documents.
type File struct {
	// Name is how the file is called in errors.
	Name    string
	Content []byte
}

// Skipped are documents that were not read, since no plan depends on their kind.
type Skipped struct {
	// Kind is the kind with its group, for instance "ConfigMap" or "Certificate.cert-manager.io".
	Kind  string
	Count int
}

// Read makes a cluster of files. All that is wrong with them is told at once, each with its file and document. Time, instance types and what
// the cloud has refused are left to the caller.
func Read(ctx context.Context, files []File) (*snapshot.Cluster, []Skipped, error) {
	r := reader{
		cluster: &snapshot.Cluster{NodeClasses: map[v1alpha1.NodeClassReference]snapshot.NodeClassState{}},
		seen:    map[string]place{}, skipped: map[string]int{}, innerClasses: map[v1alpha1.NodeClassReference]bool{}, priorities: map[string]int32{},
	}
	for _, file := range files {
		documents, err := split(file)
		if err != nil {
			r.errs = append(r.errs, err)
			continue
		}
		for _, d := range documents {
			r.errs = append(r.errs, r.document(ctx, d))
		}
	}
	r.errs = append(r.errs, r.checkClasses()...)
	if err := errors.Join(r.errs...); err != nil {
		return nil, nil, err
	}
	if err := r.makePods(); err != nil {
		return nil, nil, err
	}
	r.makeClaims()
	r.bindClaims()
	r.makeNamespaces()
	return r.cluster, r.skips(), nil
}

// reader gathers what the documents say.
type reader struct {
	cluster   *snapshot.Cluster
	workloads []workload
	// pools are the places of the NodePools of the cluster, at the same indices.
	pools []place
	// seen are the places of all objects, by kind and name.
	seen map[string]place
	// priorities are those of the PriorityClasses, by name; that of "" is the default.
	priorities map[string]int32
	skipped    map[string]int
	// innerClasses are those of the skipped objects that may be the cloud's node classes.
	innerClasses map[v1alpha1.NodeClassReference]bool
	errs         []error
}

// checkClasses says which pools name a GPUNodeClass that is not there, and makes the cloud's node classes Ready.
func (r *reader) checkClasses() []error {
	var errs []error
	for i := range r.cluster.GPUNodeClasses {
		r.cluster.NodeClasses[r.cluster.GPUNodeClasses[i].Spec.NodeClassRef] = snapshot.NodeClassState{Ready: true}
	}
	for i := range r.cluster.NodePools {
		np := &r.cluster.NodePools[i]
		if !snapshot.IsOurs(np) {
			continue
		}
		name := np.Spec.Template.Spec.NodeClassRef.Name
		if _, ok := r.seen[id(schema.GroupKind{Group: v1alpha1.Group, Kind: v1alpha1.Kind}, "", name)]; !ok {
			errs = append(errs, fmt.Errorf("%s: spec.template.spec.nodeClassRef names %s %q, which is not in the files: add it, or name another",
				r.pools[i], v1alpha1.Kind, name))
		}
	}
	return errs
}

// skips are the skipped kinds by name, without the node classes that a GPUNodeClass names: those are known to be needed, and taken for Ready.
func (r *reader) skips() []Skipped {
	for ref := range r.cluster.NodeClasses {
		if r.innerClasses[ref] {
			r.skipped[kindName(ref.Group, ref.Kind)]--
		}
	}
	var skips []Skipped
	for kind, count := range r.skipped {
		if count > 0 {
			skips = append(skips, Skipped{kind, count})
		}
	}
	slices.SortFunc(skips, func(a, b Skipped) int { return cmp.Compare(a.Kind, b.Kind) })
	return skips
}

func kindName(group, kind string) string {
	if group == "" {
		return kind
	}
	return kind + "." + group
}

// namedClass says whether a NodePool names a node class as it must.
func namedClass(ref *karpv1.NodeClassReference) bool {
	return ref != nil && ref.Group != "" && ref.Kind != "" && ref.Name != ""
}
