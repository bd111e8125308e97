// Package manifests reads manifests as kubectl apply does, and returns the cluster that they describe. It creates the pods of the workloads, all of them
// pending, and its node classes are Ready. It accesses neither the file system nor a cluster.
package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Read returns the cluster that the files describe, and what it skipped. The error joins all problems, each with its file and document. The caller sets the
// time, the instance types and the cloud's refusals.
func Read(ctx context.Context, files []File) (*facts.Cluster, Skipped, error) {
	r := reader{
		left: budget{MaxSize, maxObjects}, cluster: &facts.Cluster{NodeClasses: map[v1alpha1.NodeClassReference]facts.NodeClassState{}},
		with: map[string]bool{}, seen: map[string]int{}, kinds: map[string]int{}, unknown: map[schema.GroupKind]int{}, effects: map[schema.GroupKind]int{}, runtimes: map[string]fields{},
		priorities: systemPriorities(), runtimeClasses: map[string]*nodev1.RuntimeClass{}, limits: map[string][]limitRange{}, quotas: map[string][]*quota{},
		skipped: Skipped{NodeClasses: map[v1alpha1.NodeClassReference]*unstructured.Unstructured{}},
	}
	for _, file := range files {
		documents, err := split(file, &r.left)
		if err != nil {
			r.errs = append(r.errs, err)
			r.with[file.Name] = true // Or none was found, because the file is no YAML.
		}
		if r.left.bytes < 0 || r.left.objects < 0 {
			return nil, Skipped{}, err
		}
		if err != nil {
			continue
		}
		for _, d := range documents {
			r.with[file.Name] = true
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
	r.errs = append(r.errs, r.withoutObjects(files)...)
	r.readObjects(ctx, false)
	r.errs = append(r.errs, r.checkClasses()...)
	r.readObjects(ctx, true)
	r.errs = append(r.errs, r.planTrainJobs()...)
	if err := errors.Join(r.errs...); err != nil {
		return nil, Skipped{}, err
	}
	r.alias()
	if err := r.makePods(); err != nil {
		return nil, Skipped{}, err
	}
	r.admitDaemonSets()
	r.readClaims()
	r.makeClaims()
	r.bindClaims()
	r.makeNamespaces()
	r.findMissing()
	r.skips()
	return r.cluster, r.skipped, nil
}

func (r *reader) readObjects(ctx context.Context, late bool) {
	for _, o := range r.objects {
		if o.kind.late == late {
			r.errs[o.slot] = errors.Join(r.errs[o.slot], o.read(ctx, r))
		}
	}
}

// withoutObjects returns an error for each file without objects that the user has named, and one if no file has any.
func (r *reader) withoutObjects(files []File) []error {
	var errs []error
	some := len(r.objects)+len(r.kinds) > 0 || errors.Join(r.errs...) != nil
	for _, file := range files {
		if !file.Found && !r.with[file.Name] {
			errs = append(errs, fmt.Errorf("%s: it has no objects", file.Name))
		}
	}
	if len(errs) == 0 && !some {
		errs = append(errs, errors.New("there are no objects in the files"))
	}
	return errs
}

// UseInstanceTypes sets the instance types of the cluster's node classes. Those whose node class is in the files have the resources that it leaves to pods.
func (s *Skipped) UseInstanceTypes(c *facts.Cluster, listing catalog.Listing) error {
	for ref, state := range c.NodeClasses {
		state.Learn(listing)
		c.NodeClasses[ref] = state
	}
	var errs []error
	for ref, class := range s.NodeClasses {
		configure := clouds.OfRef(ref).Configure
		if configure == nil {
			continue
		}
		state := c.NodeClasses[ref]
		configured, unused, err := configure(class, listing.InstanceTypes)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		state.InstanceTypes = configured
		c.NodeClasses[ref] = state
		for _, field := range unused {
			s.Unused = append(s.Unused, fmt.Sprintf("%s %s: %s", ref.Kind, ref.Name, field))
		}
	}
	slices.Sort(s.Unused)
	return errors.Join(errs...)
}

func (o *object) read(ctx context.Context, r *reader) error {
	refused, mistyped := o.admit(ctx)
	err := o.kind.read(ctx, r, o.document)
	if len(refused) > 0 && (err == nil || !mistyped) { // Decoding has better words for a wrong type.
		for i := range refused {
			refused[i] = fmt.Errorf("%s: %w", o.place, refused[i])
		}
		return errors.Join(refused...)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.place, err)
	}
	return nil
}

// checkClasses returns an error for each NodePool that refers to a missing GPUNodeClass. It also marks the cloud's node classes as Ready.
func (r *reader) checkClasses() []error {
	var errs []error
	for i := range r.cluster.GPUNodeClasses {
		r.cluster.NodeClasses[r.cluster.GPUNodeClasses[i].Spec.NodeClassRef] = facts.NodeClassState{Ready: true}
	}
	for i := range r.cluster.NodePools {
		np := &r.cluster.NodePools[i]
		if !facts.IsOurs(np) {
			r.karpenterPool(np)
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

// karpenterPool marks the node class of a NodePool of Karpenter's own as Ready. What it leaves to pods decides whether Karpenter could serve them.
func (r *reader) karpenterPool(np *karpv1.NodePool) {
	if ref := np.Spec.Template.Spec.NodeClassRef; namedClass(ref) {
		r.cluster.NodeClasses[v1alpha1.NodeClassReference{Group: ref.Group, Kind: ref.Kind, Name: ref.Name}] = facts.NodeClassState{Ready: true}
	}
}

// skips sets the skipped kinds, sorted by name.
func (r *reader) skips() {
	for kind, count := range r.kinds {
		r.skipped.Kinds = append(r.skipped.Kinds, KindCount{kind, count})
	}
	for gk, count := range r.unknown {
		r.skipped.Unknown = append(r.skipped.Unknown, KindCount{kindName(gk.Group, gk.Kind), count})
	}
	for gk, count := range r.effects {
		r.skipped.Effects = append(r.skipped.Effects, Effect{KindCount{kindName(gk.Group, gk.Kind), count}, effects[gk]})
	}
	byKind := func(a, b KindCount) int { return cmp.Compare(a.Kind, b.Kind) }
	slices.SortFunc(r.skipped.Kinds, byKind)
	slices.SortFunc(r.skipped.Unknown, byKind)
	slices.SortFunc(r.skipped.Effects, func(a, b Effect) int { return byKind(a.KindCount, b.KindCount) })
}
