package snapshot

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Offering is an instance type in a zone with a capacity type, as a pool would launch it.
type Offering struct {
	Type         *catalog.InstanceType
	Zone         string
	CapacityType string
	// MicroUSDPerHour is the price in millionths of a US dollar per hour, and ListMicroUSDPerHour that in the cloud's list.
	MicroUSDPerHour, ListMicroUSDPerHour int64
	// Reservation is the ID of the reservation whose slot the machine takes, or "" if it takes none. reservation is nil then.
	Reservation string
	reservation *catalog.Reservation
	// limited is the limit of the price, or nil if there is none.
	limited *catalog.LimitedPrice
	// Labels are the labels of the started node that pods can select by, as far as they are known. doubts are the others.
	Labels map[string]string
	doubts nodelabels.Doubts
	// CustomLabels are those Labels whose values Karve chose from a requirement of the pool.
	CustomLabels map[string]string
	// Share is what each GPU is divided into. instances are the resources of the machine if it has several.
	Share     v1alpha1.Share
	instances []mig.Offer
	// ReplicasPerGPU is the number of replicas of each GPU. It is 1 if GPUs are not shared.
	ReplicasPerGPU int64
	// Daemons are the total requests of the DaemonSet pods that will run on the node.
	Daemons planner.Resources
	// daemons are the pods of those DaemonSets.
	daemons []*records.Demand
	// depth is how many pods that state device memory may share one of gpus. It is 0 if the planner chooses their GPUs.
	depth int64
	gpus  records.GPUSet
}

func (o *Offering) shown() nodelabels.Labels {
	return nodelabels.Labels{Known: o.Labels, Doubts: o.doubts}
}

// Free returns what the machine has for pods, less the requests of DaemonSets.
func (o *Offering) Free() planner.Resources {
	free := facts.Minus(records.AllocatableOf(o.Type), o.Daemons)
	free.Replicas = o.replicas() - o.Daemons.Replicas
	if o.depth > 0 {
		free.Replicas = o.gpus.GPU(o.depth, o.Daemons.Replicas).Replicas
	}
	return facts.AtLeastZero(free)
}

// replicas returns the number of replicas of the machine.
func (o *Offering) replicas() int64 {
	if o.instances != nil {
		n, _ := records.TotalOf(o.instances)
		return n
	}
	return o.ReplicasPerGPU * o.Type.GPU.Count
}

// Resource returns the name of the resource that pods request. If they may request several, it is the first.
func (o *Offering) Resource() corev1.ResourceName { return corev1.ResourceName(o.Share.Resource) }

// exposes reports whether the machine has all GPU resources that a pod requests, of which gpu is one.
func (o *Offering) exposes(gpu corev1.ResourceName, requested corev1.ResourceList) bool {
	return records.Exposes(o.Resource(), o.Share.Slots, o.instances, gpu, requested)
}

// GPUs returns the GPUs of the machine, or their MIG instances, less what DaemonSets use.
func (o *Offering) GPUs() []planner.GPU {
	if slots := o.Share.Slots; !slots.IsZero() {
		gpus := records.SlotGPUs(slots, o.Type.GPU.Count, o.Type.GPU.UsableMiB())
		records.Hold(gpus, o.Daemons.Replicas, slots.SizesMiB[len(slots.SizesMiB)-1]*facts.BytesPerMiB)
		return gpus
	}
	if o.depth > 0 {
		return []planner.GPU{o.gpus.GPU(o.depth, o.Daemons.Replicas)}
	}
	if o.instances != nil {
		gpus := records.AsOneGPU(o.instances, o.replicas())
		records.Hold(gpus, o.Daemons.Replicas, 0)
		return gpus
	}
	count, perGPU, memoryMiB := records.Divide(o.Share.MIG, o.Type.GPU.Count, o.ReplicasPerGPU, o.Type.GPU.UsableMiB())
	gpus := records.FreshGPUs(count, perGPU, memoryMiB)
	records.Hold(gpus, o.Daemons.Replicas, 0)
	return gpus
}

// Physical returns what the machine adds to the usage that NodePool limits restrict.
func (o *Offering) Physical() planner.Physical { return records.PhysicalOf(o.Type, o.ReplicasPerGPU) }

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
		if v := labels.Judge(strict(&t.later[i])); v < nodelabels.Yes {
			return t.later[i].Key, v
		}
	}
	return "", nodelabels.Yes
}

// strict returns a requirement with the operators that pods can use.
func strict(req *karpv1.NodeSelectorRequirementWithMinValues) *corev1.NodeSelectorRequirement {
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

// open reports whether neither the pool nor the cloud sets the label. It is false for all labels if the cloud's instance types are unknown.
func (t *template) open(key string) bool {
	_, fixed := t.fixed[key]
	return !fixed && len(t.types) > 0 && !describes(t.described, key) && !nodelabels.Written(key)
}

// chosenKeys returns the sorted labels for which Karve chooses one of several values for each node, because pods may select nodes by them.
func (t *template) chosenKeys() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(t.requirements)), func(key string) bool {
		return !t.open(key) || t.requirements[key].Operator() != corev1.NodeSelectorOpIn
	})
}

// offeringsOf returns all offerings that the pool's requirements allow, and each again at its limited prices. A slot of a reservation has only its limited price. Without a
// requirement for the capacity type it allows all but spot, because Karpenter prefers spot without one.
func offeringsOf(c *facts.Cluster, p *Pool, t *template) []Offering {
	taints := p.NodePool.Spec.Template.Spec.Taints
	choices := t.choices()
	daemons, least := records.DaemonDemands(c), p.leastReplicas(t.types)

	var offerings []Offering
	for i := range t.types {
		instanceType := &t.types[i]
		if instanceType.GPU.Count <= 0 {
			continue
		}
		shares := p.sharesOf(instanceType, least)
		for _, o := range instanceType.Offerings {
			if !t.launches(&o) {
				continue
			}
			machine := records.MergedLabels(instanceType.Labels, o.Labels)
			if !admits(machine, t.fixed, t.requirements, t.described) {
				continue
			}
			for _, custom := range choices {
				for i := range shares {
					share := shares[i].Share
					labels := nodelabels.Labels{Known: records.WhenStarted(records.MergedLabels(machine, t.fixed, custom, shares[i].foretold.Known)), Doubts: shares[i].foretold.Doubts}
					if _, verdict := t.admitsLater(labels); verdict < nodelabels.Yes {
						continue
					}
					gpu, empty := corev1.ResourceName(share.Resource), records.AllocatableOf(instanceType)
					empty.Replicas = share.Least * instanceType.GPU.Count
					instances := facts.OffersOf(share.MIG, instanceType.GPU.Count)
					runs := records.DaemonsOn(daemons, taints, "", labels, empty, gpu)
					at := Offering{
						Type: instanceType, Zone: o.Zone, CapacityType: o.CapacityType, MicroUSDPerHour: o.MicroUSDPerHour, ListMicroUSDPerHour: o.ListPrice(), Reservation: o.Reservation, reservation: t.reservations[o.Reservation],
						Labels: labels.Known, doubts: labels.Doubts, CustomLabels: custom, Share: share, instances: instances,
						ReplicasPerGPU: share.Least,
						Daemons:        records.Overhead(runs, gpu),
						daemons:        runs,
					}
					if o.Reservation == "" {
						offerings = append(offerings, at)
					}
					for l := range o.Limited {
						at.MicroUSDPerHour, at.limited = o.Limited[l].MicroUSDPerHour, &o.Limited[l]
						offerings = append(offerings, at)
					}
				}
			}
		}
	}
	slices.SortStableFunc(offerings, compareOfferings)
	return offerings
}

// launches reports whether Karve launches machines of an offering if the requirements allow them. A NodeClaim for a reservation allows one instance type in one zone, so
// it cannot meet minValues.
func (t *template) launches(o *catalog.Offering) bool {
	if t.reservedOnly && o.CapacityType != karpv1.CapacityTypeReserved {
		return false
	}
	switch o.CapacityType {
	case karpv1.CapacityTypeReserved:
		return t.reservations[o.Reservation] != nil && !t.hasMinValues()
	case karpv1.CapacityTypeSpot:
		return t.requirements.Has(karpv1.CapacityTypeLabelKey)
	}
	return true
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

// foretoldShare is a share of the GPUs of an instance type, with the labels that others write on its nodes.
type foretoldShare struct {
	v1alpha1.Share
	foretold nodelabels.Labels
}

// sharesOf returns the shares of an instance type with at least one replica. least is the smallest number of replicas that a NodeClaim may promise.
func (p *Pool) sharesOf(t *catalog.InstanceType, least int64) []foretoldShare {
	var all []foretoldShare
	for _, share := range p.Class.Spec.Sharing.Shares(t.GPU.Name, t.GPU.MemoryMiB, t.GPU.Count) {
		if !share.Slots.IsZero() {
			share.Least = share.Slots.Most(t.GPU.UsableMiB())
			share.Most = share.Least
		}
		if share.Most >= 1 {
			all = append(all, foretoldShare{share, p.foretold(t, &share, least)})
		}
	}
	return all
}

// leastReplicas returns the smallest number of replicas of a GPU that a NodeClaim may promise: a NodeClaim that allows several types promises what all of them
// have.
func (p *Pool) leastReplicas(types []catalog.InstanceType) int64 {
	least := int64(math.MaxInt64)
	if len(p.Class.Spec.Sharing.Overrides) > 0 {
		for i := range types {
			if types[i].GPU.Count > 0 {
				replicas, _ := p.Class.Spec.Sharing.ReplicasRange(types[i].GPU.Name)
				least = min(least, replicas)
			}
		}
	}
	return least
}

// compareOfferings orders the offerings of a pool independently of the order in the catalog.
func compareOfferings(a, b Offering) int {
	if order := cmp.Or(
		strings.Compare(a.Type.Name, b.Type.Name), strings.Compare(a.Zone, b.Zone), strings.Compare(a.CapacityType, b.CapacityType),
		cmp.Compare(a.MicroUSDPerHour, b.MicroUSDPerHour),
	); order != 0 {
		return order
	}
	return cmp.Or(compareLabels(a.Labels, b.Labels), strings.Compare(a.Share.Resource, b.Share.Resource), strings.Compare(a.Share.MIG.Key(), b.Share.MIG.Key()),
		strings.Compare(a.limit(), b.limit()))
}

// Capacity returns the capacity type, with the ID of the reservation.
func (o *Offering) Capacity() string { return catalog.Capacity(o.CapacityType, o.Reservation) }

// limit returns the name of the limit of the price, or "" if there is none.
func (o *Offering) limit() string {
	if o.limited == nil {
		return ""
	}
	return o.limited.Limit
}

func compareLabels(a, b map[string]string) int {
	for _, key := range slices.Sorted(maps.Keys(records.MergedLabels(a, b))) {
		if order := strings.Compare(a[key], b[key]); order != 0 {
			return order
		}
	}
	return 0
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

// choices returns the combinations of values of the chosen keys. Each node gets one of them as labels. There are at most maxLabelChoices. If there are more,
// the pool reports it.
func (t *template) choices() []map[string]string {
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

// foretold returns the labels that others write on a machine of the pool with the share.
func (p *Pool) foretold(t *catalog.InstanceType, share *v1alpha1.Share, least int64) nodelabels.Labels {
	return nodelabels.Of(&nodelabels.Node{
		Type: t.Name, Nitro: records.IsNitro(t), GPU: t.GPU, Resource: share.Resource, Least: min(least, share.Least), Most: share.Most,
		MPS: p.Class.Spec.Sharing.MPSSettings() != nodecontract.MPS{}, MIG: share.MIG, Slots: !share.Slots.IsZero(),
	})
}
