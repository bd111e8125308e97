package rollout

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/rollout"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// disabled blocks all rollouts if the feature is off.
var disabled = rollout.Blocked{Fault: rollout.Fault{
	Reason: "ImageRolloutsDisabled", Message: "the controller runs without --image-rollouts: set imageRollouts.enabled=true in the chart's values, or delete this GPUImageRollout",
}}

func (c *Controller) observe(ctx context.Context, r *v1alpha1.GPUImageRollout) (*world, error) {
	w := &world{seen: rollout.Seen{Now: c.Clock.Now()}}
	var err error
	if w.cluster, err = c.Gatherer.Cluster(ctx); err != nil {
		return nil, fmt.Errorf("reading the cluster: %w", err)
	}
	w.seen.Nodes = nodesOf(r, w.cluster, w.seen.Now)
	if !c.Enabled {
		w.seen.Blocked = &disabled
		return w, nil
	}
	mapping, err := c.Mapper.RESTMapping(schema.GroupKind{Group: r.Spec.NodeClassRef.Group, Kind: r.Spec.NodeClassRef.Kind})
	switch {
	case err == nil:
		w.classes = mapping.GroupVersionKind
	case !meta.IsNoMatchError(err):
		return nil, fmt.Errorf("looking up kind %s: %w", r.Spec.NodeClassRef.Kind, err)
	}
	if w.canaries, err = c.observeCanaries(ctx, r, w); err != nil {
		return nil, err
	}
	w.seen.Leftovers = w.canaries.besides(r.Status.Canary)
	if w.seen.Blocked, err = c.olderRollout(ctx, r); err != nil || w.seen.Blocked != nil {
		return w, err
	}
	if w.class, w.seen.Blocked, err = c.nodeClass(ctx, w.classes, r.Spec.NodeClassRef); err != nil || w.seen.Blocked != nil {
		return w, err
	}
	if w.seen.Blocked = whyUnfit(r, w.class, w.cluster); w.seen.Blocked != nil {
		return w, nil
	}
	pools := poolsOf(r, w.cluster)
	w.seen.Architectures = architecturesOf(r, pools)
	if len(w.seen.Architectures) == 0 {
		w.seen.Blocked = noMachines(r, len(pools))
		return w, nil
	}
	w.seen.Class = rollout.Class{Rollout: w.class.object.GetAnnotations()[v1alpha1.ImageRolloutAnnotation], Field: w.class.cloud.ImageField, Pin: w.class.choice.IDs}
	if r.Status.Current == nil || w.seen.Class.Rollout != r.Name {
		w.seen.Class.Resolves, w.seen.Class.ResolvesFault = c.resolves(ctx, w)
		return w, nil // Nothing else matters before the takeover of the class.
	}
	return w, c.observeImages(ctx, r, w)
}

// observeImages adds what is known of the images of a class that the rollout has taken over, and of its canary.
func (c *Controller) observeImages(ctx context.Context, r *v1alpha1.GPUImageRollout, w *world) error {
	w.seen.Wanted, w.seen.WantedFault = c.wanted(ctx, r, w.class.choice.Family, w.seen.Architectures)
	ready := facts.NodeClassStateOf(w.class.object).Ready
	w.seen.Missing = c.missing(ctx, r, ready, &w.seen.Nodes)
	if ready {
		// Karpenter finds the pinned image, or found it recently. Nodes are replaced only if the cloud and Karpenter agree that it is gone.
		w.seen.Missing = slices.DeleteFunc(slices.Clone(w.seen.Missing), func(id string) bool { return slices.Contains(r.Status.Current.IDs(), id) })
	}
	if err := c.imagine(ctx, r, w); err != nil {
		return err
	}
	if r.Status.Canary != nil {
		var err error
		w.seen.Canary, err = c.canary(ctx, r, w)
		return err
	}
	if r.Status.Candidate != nil {
		w.seen.NoPlace = c.noPlace(r, w)
	}
	return nil
}

// imagine replaces the node class in the cluster by one with the candidate's images if the pinned images no longer exist. The real class is not ready
// then, so Karve finds no machines for it. A canary can still be launched, because its own class has the candidate's image.
func (c *Controller) imagine(ctx context.Context, r *v1alpha1.GPUImageRollout, w *world) error {
	lost := r.Status.Current != nil && slices.ContainsFunc(r.Status.Current.IDs(), func(id string) bool { return slices.Contains(w.seen.Missing, id) })
	if !lost || r.Status.Candidate == nil {
		return nil
	}
	class, err := w.class.with(&r.Status.Candidate.Image)
	if err != nil {
		return err
	}
	state := facts.NodeClassStateOf(class)
	state.Learn(c.Gatherer.Catalog.InstanceTypes(ctx, class))
	imagined := *w.cluster
	imagined.Generation = 0
	imagined.NodeClasses = maps.Clone(imagined.NodeClasses)
	imagined.NodeClasses[r.Spec.NodeClassRef] = state
	w.cluster = &imagined
	return nil
}

// olderRollout returns a reason if an older rollout is for the same node class.
func (c *Controller) olderRollout(ctx context.Context, r *v1alpha1.GPUImageRollout) (*rollout.Blocked, error) {
	var all v1alpha1.GPUImageRolloutList
	if err := c.Live.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("listing GPUImageRollouts: %w", err)
	}
	for i := range all.Items {
		other := &all.Items[i]
		if other.Name == r.Name || other.Spec.NodeClassRef != r.Spec.NodeClassRef || !other.DeletionTimestamp.IsZero() {
			continue
		}
		if cmp.Or(other.CreationTimestamp.Compare(r.CreationTimestamp.Time), strings.Compare(other.Name, r.Name)) < 0 {
			return &rollout.Blocked{Spec: true, Fault: rollout.Fault{Reason: "NodeClassTaken", Message: fmt.Sprintf(
				"GPUImageRollout %s is for %s already: delete one of the two", other.Name, referenceText(r.Spec.NodeClassRef))}}, nil
		}
	}
	return nil, nil
}

// whyUnfit returns why the images of a node class cannot be managed, or nil if they can.
func whyUnfit(r *v1alpha1.GPUImageRollout, class *nodeClass, cluster *facts.Cluster) *rollout.Blocked {
	if why := class.images.Unfollowed(class.object, r.Spec.Image); why != "" {
		return &rollout.Blocked{Spec: true, Fault: rollout.Fault{Reason: "UnsupportedFamily", Message: why}}
	}
	for i := range cluster.NodePools {
		np := &cluster.NodePools[i]
		if refersTo(np.Spec.Template.Spec.NodeClassRef, r.Spec.NodeClassRef) {
			return &rollout.Blocked{Spec: true, Fault: rollout.Fault{Reason: "NodeClassShared", Message: fmt.Sprintf(
				"NodePool %s, which is not Karve's, uses %s as well, and its nodes would get GPU images untried: give it a node class of its own",
				np.Name, class)}}
		}
	}
	return nil
}

func noMachines(r *v1alpha1.GPUImageRollout, pools int) *rollout.Blocked {
	if pools == 0 {
		return &rollout.Blocked{Fault: rollout.Fault{Reason: "NoNodePool", Message: fmt.Sprintf(
			"no NodePool names a GPUNodeClass with %s, so there is nothing to try images with: create one, or correct spec.nodeClassRef", referenceText(r.Spec.NodeClassRef))}}
	}
	return &rollout.Blocked{Fault: rollout.Fault{Reason: "NoInstanceTypes", Message: fmt.Sprintf(
		"no instance type of %s is known that its NodePools admit; see their conditions", referenceText(r.Spec.NodeClassRef))}}
}

// poolsOf returns Karve's pools that use the node class.
func poolsOf(r *v1alpha1.GPUImageRollout, cluster *facts.Cluster) []snapshot.Pool {
	return slices.DeleteFunc(snapshot.Pools(cluster), func(p snapshot.Pool) bool { return p.Class == nil || p.Class.Spec.NodeClassRef != r.Spec.NodeClassRef })
}

// architecturesOf returns the architectures that the pools can launch, sorted. If no instance type is known, such as after a start, it returns those of
// the current image.
func architecturesOf(r *v1alpha1.GPUImageRollout, pools []snapshot.Pool) []string {
	var all []string
	for i := range pools {
		for j := range pools[i].Offerings {
			if a := pools[i].Offerings[j].Labels[corev1.LabelArchStable]; !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	if len(all) == 0 && len(pools) > 0 && r.Status.Current != nil {
		for _, image := range r.Status.Current.Images {
			all = append(all, image.Architecture)
		}
	}
	slices.Sort(all)
	return all
}

// resolves returns the GPU image that the class resolves to. Its creation time is only set if the cloud answers.
func (c *Controller) resolves(ctx context.Context, w *world) (*v1alpha1.GPUImage, *rollout.Fault) {
	image, fault := w.class.resolves(w.seen.Architectures)
	if fault != nil {
		return nil, fault
	}
	ids := make([]string, 0, len(image.Images))
	for _, i := range image.Images {
		ids = append(ids, i.ID)
	}
	if created, err := c.Images.Created(ctx, ids); err == nil && !created.IsZero() {
		image.Created = &metav1.Time{Time: created}
	}
	return image, nil
}

// nodesOf counts the machines of the node class, without canaries.
func nodesOf(r *v1alpha1.GPUImageRollout, cluster *facts.Cluster, now time.Time) rollout.Nodes {
	var n rollout.Nodes
	for _, m := range records.Machines(cluster) {
		image := m.Claim.Status.ImageID
		if !refersTo(m.Claim.Spec.NodeClassRef, r.Spec.NodeClassRef) || image == "" {
			continue
		}
		updated := slices.Contains(r.Status.Current.IDs(), image)
		if updated && failed(&m, cluster, now) {
			n.Broken = append(n.Broken, m.Claim.Name)
		}
		if m.Deleting() {
			continue
		}
		n.Total++
		switch {
		case !updated:
			continue
		case m.AwaitsReplicas():
			n.Awaiting++
		default:
			n.Working++
		}
		n.Updated++
	}
	return n
}

// failed reports whether a machine did not expose its replicas in time. Such a machine may already be in deletion for that reason when it is seen.
func failed(m *records.Machine, cluster *facts.Cluster, now time.Time) bool {
	if !m.Deleting() {
		return m.Broken(now, cluster.ReplicasTimeout)
	}
	if !m.AwaitsReplicas() || facts.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeInitialized).IsTrue() {
		return false
	}
	launched := facts.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeLaunched)
	return launched.IsTrue() && !now.Before(launched.LastTransitionTime.Add(cluster.ReplicasTimeout))
}

func (c *Controller) observeCanaries(ctx context.Context, r *v1alpha1.GPUImageRollout, w *world) (objects, error) {
	var all objects
	for _, m := range records.Canaries(w.cluster) {
		if m.Claim.Labels[v1alpha1.CanaryLabel] == r.Name {
			all.claims = append(all.claims, m.Claim.Name)
		}
	}
	labeled := client.MatchingLabels{v1alpha1.CanaryLabel: r.Name}
	var pods corev1.PodList
	if err := c.Live.List(ctx, &pods, labeled, client.InNamespace(c.Namespace)); err != nil {
		return all, fmt.Errorf("listing the pods that check GPUs: %w", err)
	}
	for i := range pods.Items {
		all.pods = append(all.pods, pods.Items[i].Name)
	}
	if w.classes.Empty() {
		return all, nil
	}
	var classes unstructured.UnstructuredList
	classes.SetGroupVersionKind(w.classes)
	if err := c.Live.List(ctx, &classes, labeled); err != nil {
		return all, fmt.Errorf("listing the node classes of canary nodes: %w", err)
	}
	for i := range classes.Items {
		all.classes = append(all.classes, classes.Items[i].GetName())
	}
	return all, nil
}

// besides reports whether there are objects of a canary other than this one, which may be nil.
func (o *objects) besides(canary *v1alpha1.CanaryNode) bool {
	return slices.ContainsFunc(slices.Concat(o.classes, o.claims, o.pods), func(name string) bool { return canary == nil || name != canary.Name })
}
