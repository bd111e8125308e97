// Package manifests reads manifests as kubectl apply does, and returns the cluster that they describe. It creates the pods of the workloads, all of them
// pending, and its node classes are Ready. It accesses neither the file system nor a cluster.
package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
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
	// Found reports whether the file was found in a directory, and not named by the user. It may then contain something other than Kubernetes objects.
	Found bool
}

// Skipped is what was not read.
type Skipped struct {
	// Kinds are the kinds that no plan depends on, sorted by name.
	Kinds []KindCount
	// NotObjects are the names of files that were found in directories and contain documents that are not Kubernetes objects, such as an IAM policy.
	NotObjects []string
	// Replaced are the objects that a later file defines again.
	Replaced []Replacement
}

// KindCount is the number of documents of a kind.
type KindCount struct {
	// Kind is the kind with its group, for example "ConfigMap" or "Certificate.cert-manager.io".
	Kind  string
	Count int
}

// Replacement is an object that two files define. As in kubectl apply, the later one counts.
type Replacement struct {
	// Object is the kind and name of the object. First and Last are the names of the files.
	Object, First, Last string
}

// Read returns the cluster that the files describe, and what it skipped. The error joins all problems, each with its file and document. The caller sets the
// time, the instance types and the cloud's refusals.
func Read(ctx context.Context, files []File) (*snapshot.Cluster, Skipped, error) {
	r := reader{
		left: budget{MaxSize, maxObjects}, cluster: &snapshot.Cluster{NodeClasses: map[v1alpha1.NodeClassReference]snapshot.NodeClassState{}},
		seen: map[string]int{}, kinds: map[string]int{}, innerClasses: map[v1alpha1.NodeClassReference]bool{}, priorities: map[string]int32{},
	}
	for _, file := range files {
		documents, err := split(file, &r.left)
		if err != nil {
			r.errs = append(r.errs, err)
		}
		if r.left.bytes < 0 || r.left.objects < 0 {
			return nil, Skipped{}, err
		}
		if err != nil {
			continue
		}
		for _, d := range documents {
			if file.Found && !isObject(d.json) {
				r.notObject(file.Name)
				continue
			}
			r.errs = append(r.errs, r.document(d))
			if r.left.objects < 0 {
				return nil, Skipped{}, r.errs[len(r.errs)-1]
			}
		}
	}
	for _, o := range r.objects {
		r.errs[o.slot] = errors.Join(r.errs[o.slot], o.read(ctx, &r))
	}
	r.errs = append(r.errs, r.checkClasses()...)
	if err := errors.Join(r.errs...); err != nil {
		return nil, Skipped{}, err
	}
	if err := r.makePods(); err != nil {
		return nil, Skipped{}, err
	}
	r.readClaims()
	r.makeClaims()
	r.bindClaims()
	r.makeNamespaces()
	r.skipped.Kinds = r.skips()
	return r.cluster, r.skipped, nil
}

// notObject records that a file has a document that is not a Kubernetes object.
func (r *reader) notObject(file string) {
	if !slices.Contains(r.skipped.NotObjects, file) {
		r.skipped.NotObjects = append(r.skipped.NotObjects, file)
	}
}

// reader collects the contents of the documents.
type reader struct {
	left      budget
	cluster   *snapshot.Cluster
	workloads []workload
	// pools are the places of the cluster's NodePools, at the same indices.
	pools []place
	// resourceClaims, claimTemplates and deviceClasses are the objects that determine the pods' claims for GPUs.
	resourceClaims []resourcev1.ResourceClaim
	claimTemplates []resourcev1.ResourceClaimTemplate
	deviceClasses  []resourcev1.DeviceClass
	// objects are the objects to read, and seen has the index of each, keyed by id.
	objects []object
	seen    map[string]int
	// priorities are the values of the PriorityClasses by name. The key "" is the default.
	priorities map[string]int32
	skipped    Skipped
	// kinds counts the skipped objects by kind.
	kinds map[string]int
	// innerClasses are the skipped objects that may be node classes of the cloud.
	innerClasses map[v1alpha1.NodeClassReference]bool
	// errs has an entry for each document, in the order of the files.
	errs []error
}

// object is an object to read. slot is the index of its document in the errors.
type object struct {
	document
	kind kind
	slot int
}

func (o *object) read(ctx context.Context, r *reader) error {
	if err := o.kind.read(ctx, r, o.document); err != nil {
		return fmt.Errorf("%s: %w", o.place, err)
	}
	return nil
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
func (r *reader) skips() []KindCount {
	for ref := range r.cluster.NodeClasses {
		if r.innerClasses[ref] {
			r.kinds[kindName(ref.Group, ref.Kind)]--
		}
	}
	var skips []KindCount
	for kind, count := range r.kinds {
		if count > 0 {
			skips = append(skips, KindCount{kind, count})
		}
	}
	slices.SortFunc(skips, func(a, b KindCount) int { return cmp.Compare(a.Kind, b.Kind) })
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
