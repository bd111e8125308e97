package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// offeringLabels lists the labels that differ between the offerings of an instance type.
var offeringLabels = append(slices.Concat(clouds.PlaceLabels(), clouds.ReservationLabels()), corev1.LabelTopologyZone, karpv1.CapacityTypeLabelKey)

// nothingOffered returns why a pool has no offerings. It returns nil if it has some, or if the problems of its classes already explain it.
func nothingOffered(c *facts.Cluster, p *Pool, t *template) *Problem {
	if len(p.Offerings) > 0 || len(p.Problems) > 0 && len(t.types) == 0 {
		return nil
	}
	ref := p.Class.Spec.NodeClassRef
	state := c.NodeClasses[ref]
	parts, offered, unoffered := t.candidates()
	if message := p.otherLabelsMessage(t, offered); message != "" {
		return &Problem{karpv1.ConditionTypeValidationSucceeded, "NodeLabelsDiffer", message}
	}
	invalid := func(message string) *Problem {
		return &Problem{karpv1.ConditionTypeValidationSucceeded, "NoInstanceTypes", message}
	}
	switch {
	case len(offered) > 0 && slices.Equal(t.capacityTypes(), []string{karpv1.CapacityTypeReserved}) && len(t.reservations) == 0:
		return &Problem{karpv1.ConditionTypeValidationSucceeded, "NoReservations", fmt.Sprintf("%s allows only %s capacity, and %s %q has no capacity reservations in its status: see that its %s select one, or allow on-demand",
			pathRequirements, karpv1.CapacityTypeReserved, ref.Kind, ref.Name, clouds.OfRef(ref).ReservationField)}
	case len(offered) > 0 && !slices.ContainsFunc(offered, p.divides):
		return invalid(p.noLayoutMessage(offered))
	case len(offered) > 0:
		return invalid(fmt.Sprintf("%s is not offered in a zone and at a capacity type that spec.template.spec.requirements allow, but as %s: loosen them "+
			"(without a requirement for karpenter.sh/capacity-type, spot does not count)", nameSome(offered), strings.Join(whereOffered(offered), ", ")))
	case len(unoffered) > 0 && len(p.Problems) > 0:
		return nil // The problems already say that the class is not ready.
	case len(unoffered) > 0:
		return notLaunchable(ref, state.Images, unoffered)
	case len(parts) > 0:
		return invalid(nameSome(parts) + " has only a part of a GPU, which Karve does not share: allow instance types with whole GPUs in spec.template.spec.requirements")
	case t.unknownTypes(state.CatalogRead) != "":
		return invalid(t.unknownTypes(state.CatalogRead))
	default:
		return invalid("no instance type with a GPU meets spec.template.spec.requirements: loosen them")
	}
}

// notLaunchable returns why the node class offers none of the instance types.
func notLaunchable(ref v1alpha1.NodeClassReference, images []facts.Image, unoffered []*catalog.InstanceType) *Problem {
	switch {
	case len(images) == 0:
		return &Problem{karpv1.ConditionTypeNodeClassReady, reasonNoImage, fmt.Sprintf("%s %q has no image, so %s cannot be launched: see its status", ref.Kind, ref.Name, nameSome(unoffered))}
	case !slices.ContainsFunc(images, func(i facts.Image) bool {
		return slices.ContainsFunc(unoffered, func(it *catalog.InstanceType) bool { return imageFits(i, &Offering{Type: it}) })
	}):
		return &Problem{karpv1.ConditionTypeNodeClassReady, reasonNoImage, fmt.Sprintf(
			"%s %q has no image for %s (%s, with GPUs): see that its %s select one, or allow other instance types",
			ref.Kind, ref.Name, nameSome(unoffered), unoffered[0].Labels[corev1.LabelArchStable], clouds.OfRef(ref).ImageField)}
	default:
		return &Problem{karpv1.ConditionTypeNodeClassReady, "NotOffered", fmt.Sprintf("%s is not offered in any zone in which %s %q has a subnet, or has no price there: "+
			"add subnets in other zones, or allow other instance types", nameSome(unoffered), ref.Kind, ref.Name)}
	}
}

// otherLabelsMessage returns the message that the nodes of all instance types have, or may have, another value than required of a label that others write. It
// returns "" if there is no such requirement.
func (p *Pool) otherLabelsMessage(t *template, offered []*catalog.InstanceType) string {
	least, has := p.minReplicas(t.types), map[string]map[string]bool{}
	for _, it := range offered {
		for _, share := range p.sharesOf(it, least) {
			key, verdict := t.admitsLater(share.foretold)
			value := share.foretold.Known[key]
			switch {
			case verdict == nodelabels.Yes:
				return ""
			case verdict == nodelabels.Maybe:
				value = records.LaterLabel(key, share.foretold).Error()
			case value == "":
				value = "nodes do not have it"
			default:
				value = "it is " + value
			}
			if has[key] == nil {
				has[key] = map[string]bool{}
			}
			has[key][value] = true
		}
	}
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(has)) {
		values := slices.Sorted(maps.Keys(has[key]))
		parts = append(parts, fmt.Sprintf("no node would meet spec.template.spec.requirements for %s: %s", key, words.Named(values, maxValues)))
	}
	return strings.Join(parts, "; ")
}

// maxValues is the number of values of a label that a message names.
const maxValues = 5

// divides reports whether the pool's GPUNodeClass shares the GPUs of an instance type. That is always so, except with MIG.
func (p *Pool) divides(it *catalog.InstanceType) bool {
	return len(p.Class.Spec.Sharing.Shares(it.GPU.Name, it.GPU.MemoryMiB, it.GPU.Count)) > 0
}

// noLayoutMessage returns the message that no layout of the GPUNodeClass fits the GPUs of the instance types.
func (p *Pool) noLayoutMessage(offered []*catalog.InstanceType) string {
	divisible := slices.DeleteFunc(slices.Clone(offered), func(it *catalog.InstanceType) bool { return len(mig.Models(it.GPU.Name, it.GPU.MemoryMiB)) == 0 })
	if len(divisible) == 0 {
		return fmt.Sprintf("GPUNodeClass %q divides GPUs into MIG instances, which the GPUs of %s (%s) cannot be: allow other instance types in spec.template.spec.requirements, "+
			"or use a GPUNodeClass with another strategy", p.Class.Name, nameSome(offered), offered[0].GPU.Name)
	}
	return fmt.Sprintf("GPUNodeClass %q has no layout for the GPUs of %s (%d × %s with %d MiB): add one to its spec.sharing.mig.layouts, or allow other instance types in "+
		"spec.template.spec.requirements", p.Class.Name, nameSome(divisible), divisible[0].GPU.Count, divisible[0].GPU.Name, divisible[0].GPU.MemoryMiB)
}

// candidates returns the instance types that meet the template's requirements for instance types, in three groups: those with only a part of a GPU,
// those with offerings, and those without.
func (t *template) candidates() (parts, offered, unoffered []*catalog.InstanceType) {
	ofTypes := maps.Clone(t.requirements)
	maps.DeleteFunc(ofTypes, func(key string, _ *scheduling.Requirement) bool { return slices.Contains(offeringLabels, key) })
	for i := range t.types {
		switch it := &t.types[i]; {
		case !admits(it.Labels, t.fixed, ofTypes, t.described):
		case it.GPU.Count <= 0:
			parts = append(parts, it)
		case len(it.Offerings) > 0:
			offered = append(offered, it)
		default:
			unoffered = append(unoffered, it)
		}
	}
	return parts, offered, unoffered
}

// nameSome returns the name of the first instance type and the number of others.
func nameSome(types []*catalog.InstanceType) string {
	if len(types) == 1 {
		return types[0].Name
	}
	return fmt.Sprintf("%s (or any of %d others)", types[0].Name, len(types)-1)
}

// whereOffered returns the zones and capacity types of the instance types' offerings, at most five.
func whereOffered(types []*catalog.InstanceType) []string {
	places := map[string]bool{}
	for _, it := range types {
		for _, o := range it.Offerings {
			places[o.CapacityType+" in "+o.Zone] = true
		}
	}
	all := slices.Sorted(maps.Keys(places))
	return all[:min(len(all), 5)]
}

// unknownTypes returns why the template's requirements name only instance types, or families of them, that are not in the catalog. It returns "" if they
// name others. read is when the catalog was read.
func (t *template) unknownTypes(read time.Time) string {
	for _, key := range slices.Sorted(maps.Keys(t.requirements)) {
		r := t.requirements[key]
		if key != corev1.LabelInstanceTypeStable && !strings.HasSuffix(key, "/instance-family") || r.Operator() != corev1.NodeSelectorOpIn {
			continue
		}
		names := slices.Sorted(slices.Values(r.Values()))
		if len(names) == 0 || slices.ContainsFunc(t.types, func(it catalog.InstanceType) bool { return slices.Contains(names, it.Labels[key]) }) {
			continue
		}
		when := ""
		if !read.IsZero() {
			when = fmt.Sprintf(" of %s", read.UTC().Format(time.DateOnly))
		}
		return fmt.Sprintf("the catalog%s has no instance type with a GPU whose %s is %s: correct the name or, if the type is newer, add it to a file of instance types "+
			"(--instance-types of kubectl karve, --instance-types-file of the controller)", when, key, words.Named(names, maxValues))
	}
	return ""
}
