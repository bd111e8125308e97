// Package manifests reads manifests as kubectl apply does, and returns the cluster that they describe. It creates the pods of the workloads, all of them
// pending, and its node classes are Ready. It accesses neither the file system nor a cluster.
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
	// Name is the name of the file in errors.
	Name    string
	Content []byte
}

// Skipped counts the documents of one kind that were not read, because plans do not depend on the kind.
type Skipped struct {
	// Kind is the kind with its group, for instance "ConfigMap" or "Certificate.cert-manager.io".
	Kind  string
	Count int
}

// Read returns the cluster that the files describe, and the documents that it skipped. The error joins all problems, each with its file and document. The
// caller sets the time, the instance types and the cloud's refusals.
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

// reader collects the contents of the documents.
type reader struct {
	cluster   *snapshot.Cluster
	workloads []workload
	// pools are the places of the cluster's NodePools, at the same indices.
	pools []place
	// seen holds the place of each object, keyed by id.
	seen map[string]place
	// priorities are the values of the PriorityClasses by name. The key "" is the default.
	priorities map[string]int32
	skipped    map[string]int
	// innerClasses are the skipped objects that may be node classes of the cloud.
	innerClasses map[v1alpha1.NodeClassReference]bool
	errs         []error
}

// checkClasses returns an error for each NodePool that refers to a missing GPUNodeClass. It also marks the cloud's node classes as Ready.
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

// skips returns the skipped kinds, sorted by name. It does not count the node classes that a GPUNodeClass refers to, because those are assumed to be Ready.
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

// namedClass reports whether a reference to a node class is complete.
func namedClass(ref *karpv1.NodeClassReference) bool {
	return ref != nil && ref.Group != "" && ref.Kind != "" && ref.Name != ""
}
