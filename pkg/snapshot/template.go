package snapshot

import (
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/snapshot/facts"
)

var (
	// ownAnnotations and ownLabels are the keys that Karve sets on NodeClaims. Values in the template have no effect.
	ownAnnotations = []string{
		nodecontract.ResourceAnnotation, nodecontract.GPUsAnnotation, nodecontract.ReplicasPerGPUAnnotation, nodecontract.MPSAnnotation, nodecontract.MIGAnnotation, nodecontract.SlotsAnnotation, nodecontract.BackendAnnotation, v1alpha1.PriceAnnotation, v1alpha1.ListPriceAnnotation, karpv1.NodePoolHashAnnotationKey,
		karpv1.NodePoolHashVersionAnnotationKey,
	}
	ownLabels = []string{v1alpha1.GPUNodeClassLabel, karpv1.NodePoolLabelKey}
)

// capacityTypes returns the capacity types that the requirements name, or nil if they name none.
func (t *template) capacityTypes() []string {
	if req, ok := t.requirements[karpv1.CapacityTypeLabelKey]; ok && req.Operator() == corev1.NodeSelectorOpIn {
		return req.Values()
	}
	return nil
}

// maxLabelChoices is the maximum number of combinations of custom label values. Each combination has its own offerings.
const maxLabelChoices = 64

// template is what a NodePool's template requires of nodes.
type template struct {
	// fixed are the labels that all nodes of the pool have.
	fixed        map[string]string
	requirements scheduling.Requirements
	types        []catalog.InstanceType
	// described are the labels that the catalog has for the instance types.
	described map[string]bool
	// reservations are those that the node class selects, by ID.
	reservations map[string]*catalog.Reservation
	// reservedOnly leaves out what is not a slot of a reservation.
	reservedOnly bool
	// later are the requirements for labels that others write on nodes after the launch.
	later []karpv1.NodeSelectorRequirementWithMinValues
}

// templateOf reads the template of a pool whose class exists. As in Karpenter, a label that the cloud sets is a requirement. For example, a zone label selects
// the zone.
func templateOf(c *facts.Cluster, p *Pool) *template {
	spec := &p.NodePool.Spec.Template
	state := c.NodeClasses[p.Class.Spec.NodeClassRef]
	t := &template{fixed: map[string]string{}, types: state.InstanceTypes, reservations: map[string]*catalog.Reservation{}}
	for i := range state.Reservations {
		t.reservations[state.Reservations[i].ID] = &state.Reservations[i]
	}
	maps.Copy(t.fixed, spec.Labels)
	t.fixed[karpv1.NodePoolLabelKey] = p.NodePool.Name
	t.fixed[v1alpha1.GPUNodeClassLabel] = p.Class.Name
	requirements := slices.Clone(spec.Spec.Requirements)
	for i := range requirements {
		requirements[i].Key = nodelabels.Current(requirements[i].Key)
	}
	for _, key := range slices.Sorted(maps.Keys(spec.Labels)) {
		if !slices.Contains(ownLabels, key) {
			requirements = append(requirements, karpv1.NodeSelectorRequirementWithMinValues{Key: nodelabels.Current(key), Operator: corev1.NodeSelectorOpIn, Values: []string{spec.Labels[key]}})
		}
	}
	t.requirements = scheduling.NewNodeSelectorRequirementsWithMinValues(requirements...)
	for _, req := range requirements {
		if nodelabels.Written(req.Key) {
			t.later = append(t.later, req)
		}
	}
	maps.DeleteFunc(t.fixed, func(key, _ string) bool { return nodelabels.Written(key) })
	t.described = describedLabels(t.types)
	return t
}

// admitsLater reports whether a node will meet the requirements for labels that others write. It returns the first label that is not as required, and whether
// that is in doubt.
func (t *template) admitsLater(labels nodelabels.Labels) (key string, verdict nodelabels.Verdict) {
	for i := range t.later {
		if v := labels.Judge(podRequirement(&t.later[i])); v < nodelabels.Yes {
			return t.later[i].Key, v
		}
	}
	return "", nodelabels.Yes
}

// podRequirement returns a requirement with the operators that pods can use.
func podRequirement(req *karpv1.NodeSelectorRequirementWithMinValues) *corev1.NodeSelectorRequirement {
	as := &corev1.NodeSelectorRequirement{Key: req.Key, Operator: req.Operator, Values: req.Values}
	operator, by := corev1.NodeSelectorOpGt, int64(-1)
	switch req.Operator {
	case karpv1.NodeSelectorOpGte:
	case karpv1.NodeSelectorOpLte:
		operator, by = corev1.NodeSelectorOpLt, 1
	default:
		return as
	}
	if len(req.Values) == 1 {
		if n, err := strconv.ParseInt(req.Values[0], 10, 64); err == nil {
			as.Operator, as.Values = operator, []string{strconv.FormatInt(n+by, 10)}
		}
	}
	return as
}

// isOpen reports whether neither the pool nor the cloud sets the label. It is false for all labels if the cloud's instance types are unknown.
func (t *template) isOpen(key string) bool {
	_, fixed := t.fixed[key]
	return !fixed && len(t.types) > 0 && !describes(t.described, key) && !nodelabels.Written(key)
}

// chosenKeys returns the sorted labels for which Karve chooses one of several values for each node, because pods may select nodes by them.
func (t *template) chosenKeys() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(t.requirements)), func(key string) bool {
		return !t.isOpen(key) || t.requirements[key].Operator() != corev1.NodeSelectorOpIn
	})
}

// hasMinValues reports whether the NodeClaims of the pool must allow several values of a label.
func (t *template) hasMinValues() bool {
	for _, req := range t.requirements {
		if least := req.MinValues(); least != nil && *least > 1 {
			return true
		}
	}
	return false
}

// admits reports whether a machine with the labels meets the pool's requirements. Labels that the cloud sets must be on the machine or fixed by the
// pool. Other keys become labels (choices) or remain requirements of the NodeClaim.
func admits(machine, fixed map[string]string, requirements scheduling.Requirements, described map[string]bool) bool {
	for key, req := range requirements {
		value, ok := machine[key]
		if !ok {
			value, ok = fixed[key]
		}
		if ok && !req.Has(value) {
			return false
		}
		if nodelabels.Written(key) {
			continue // See template.admitsLater.
		}
		if op := req.Operator(); !ok && describes(described, key) && op != corev1.NodeSelectorOpNotIn && op != corev1.NodeSelectorOpDoesNotExist {
			return false
		}
	}
	return true
}

// describes reports whether a label is set by the cloud instead of the user.
func describes(described map[string]bool, key string) bool {
	return karpv1.WellKnownLabels.Has(key) || clouds.Describes(key) || described[key]
}

func describedLabels(types []catalog.InstanceType) map[string]bool {
	described := map[string]bool{}
	for i := range types {
		for key := range types[i].Labels {
			described[key] = true
		}
		for _, o := range types[i].Offerings {
			for key := range o.Labels {
				described[key] = true
			}
		}
	}
	return described
}

// labelChoices returns the combinations of values of the chosen keys. Each node gets one of them as labels. There are at most maxLabelChoices. If there are more,
// the pool reports it.
func (t *template) labelChoices() []map[string]string {
	choices := []map[string]string{{}}
	for _, key := range t.chosenKeys() {
		values := slices.Sorted(slices.Values(t.requirements[key].Values()))
		var next []map[string]string
		for _, choice := range choices {
			for _, value := range values {
				if len(next) == maxLabelChoices {
					break
				}
				more := maps.Clone(choice)
				more[key] = value
				next = append(next, more)
			}
		}
		choices = next
	}
	return choices
}
