package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
)

// Offering is an instance type in a zone at a capacity type, as a pool would launch it.
type Offering struct {
	Type         *catalog.InstanceType
	Zone         string
	CapacityType string
	// MicroUSDPerHour is the price.
	MicroUSDPerHour int64
	// Labels are all labels that the node will carry and that pods can select by.
	Labels map[string]string
	// CustomLabels are those of Labels that are chosen among the values of a requirement of the pool.
	CustomLabels map[string]string
	// ReplicasPerGPU is how many replicas each GPU is shared into; 1 where nothing is shared.
	ReplicasPerGPU int64
	// Daemons is what the DaemonSets that will run on the node ask for.
	Daemons planner.Resources

	requirements scheduling.Requirements
}

// Free is what the machine has for pods.
func (o *Offering) Free() planner.Resources {
	free := minus(allocatable(o.Type), o.Daemons)
	free.Replicas = o.ReplicasPerGPU*o.Type.GPU.Count - o.Daemons.Replicas
	return atLeastZero(free)
}

// Physical is what the machine counts against limits.
func (o *Offering) Physical() planner.Physical { return physical(o.Type, o.ReplicasPerGPU) }

func physical(t *catalog.InstanceType, replicasPerGPU int64) planner.Physical {
	return planner.Physical{
		MilliCPU: t.Capacity.MilliCPU, MemoryBytes: t.Capacity.MemoryBytes,
		GPUs: t.GPU.Count, Replicas: t.GPU.Count * replicasPerGPU, Nodes: 1,
	}
}

func allocatable(t *catalog.InstanceType) planner.Resources {
	a := t.Allocatable
	return planner.Resources{MilliCPU: a.MilliCPU, MemoryBytes: a.MemoryBytes, EphemeralBytes: a.EphemeralBytes, Pods: a.Pods}
}

// maxLabelChoices bounds the combinations of values of custom requirements that become offerings of their own.
const maxLabelChoices = 64

// offerings are all that the pool's requirements admit. Reserved capacity is left alone; without a requirement for the capacity type only
// on-demand is taken, since Karpenter prefers spot when it is not told.
func (c *Cluster) offerings(p *Pool) []Offering {
	template := &p.NodePool.Spec.Template
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(template.Spec.Requirements...)
	fixed := maps.Clone(template.Labels)
	if fixed == nil {
		fixed = map[string]string{}
	}
	fixed[karpv1.NodePoolLabelKey] = p.NodePool.Name
	fixed[v1alpha1.GPUNodeClassLabel] = p.Class.Name
	choices := c.labelChoices(requirements, fixed)

	var offerings []Offering
	for i := range c.InstanceTypes {
		t := &c.InstanceTypes[i]
		if t.GPU.Count <= 0 {
			continue
		}
		for _, o := range t.Offerings {
			if o.CapacityType == karpv1.CapacityTypeReserved ||
				o.CapacityType != karpv1.CapacityTypeOnDemand && !requirements.Has(karpv1.CapacityTypeLabelKey) {
				continue
			}
			for _, custom := range choices {
				labels := map[string]string{}
				for _, from := range []map[string]string{t.Labels, o.Labels, fixed, custom} {
					maps.Copy(labels, from)
				}
				carried := scheduling.NewLabelRequirements(labels)
				if !c.admits(carried, requirements) {
					continue
				}
				offering := Offering{
					Type: t, Zone: o.Zone, CapacityType: o.CapacityType, MicroUSDPerHour: o.MicroUSDPerHour,
					Labels: labels, CustomLabels: custom, requirements: carried,
					ReplicasPerGPU: p.Class.Spec.Sharing.ReplicasFor(t.GPU.Name),
				}
				offering.Daemons = c.daemons(template.Spec.Taints, carried, p.Resource())
				offerings = append(offerings, offering)
			}
		}
	}
	return offerings
}

// admits says whether a machine with the labels meets the pool's requirements. Keys that the cloud describes machines by must be there;
// other keys become labels (labelChoices) or stay requirements of the claim.
func (c *Cluster) admits(labels, requirements scheduling.Requirements) bool {
	for key, req := range requirements {
		if !labels.Has(key) {
			if op := req.Operator(); c.describesMachines(key) && op != corev1.NodeSelectorOpNotIn && op != corev1.NodeSelectorOpDoesNotExist {
				return false
			}
			continue
		}
		if !req.Has(labelValue(labels, key)) {
			return false
		}
	}
	return true
}

func labelValue(labels scheduling.Requirements, key string) string {
	return labels.Get(key).Values()[0]
}

// describesMachines says whether the cloud, not the user, gives a label its value.
func (c *Cluster) describesMachines(key string) bool {
	if karpv1.WellKnownLabels.Has(key) || strings.HasPrefix(key, "karpenter.k8s.aws/") || strings.HasPrefix(key, "karpenter.kwok.sh/") {
		return true
	}
	for i := range c.InstanceTypes {
		if _, ok := c.InstanceTypes[i].Labels[key]; ok {
			return true
		}
		for _, o := range c.InstanceTypes[i].Offerings {
			if _, ok := o.Labels[key]; ok {
				return true
			}
		}
	}
	return false
}

// labelChoices are the combinations of values for keys that the pool's requirements leave open with `In`: each node carries one of them as
// a label, since a pod may select by it.
func (c *Cluster) labelChoices(requirements scheduling.Requirements, fixed map[string]string) []map[string]string {
	choices := []map[string]string{{}}
	for _, key := range sortedKeys(requirements) {
		req := requirements[key]
		if _, ok := fixed[key]; ok || req.Operator() != corev1.NodeSelectorOpIn || c.describesMachines(key) {
			continue
		}
		values := slices.Sorted(slices.Values(req.Values()))
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

// daemons is what the DaemonSets ask for on a node with the taints and labels.
func (c *Cluster) daemons(taints []corev1.Taint, labels scheduling.Requirements, gpu corev1.ResourceName) planner.Resources {
	var sum planner.Resources
	for i := range c.DaemonSets {
		if pod := daemonPod(&c.DaemonSets[i]); fits(pod, taints, labels) == nil {
			sum = plus(sum, requests(pod, gpu))
		}
	}
	return sum
}

func daemonPod(ds *appsv1.DaemonSet) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: ds.Spec.Template.ObjectMeta, Spec: ds.Spec.Template.Spec}
}

// fits says why a pod cannot run on a node with the taints and labels; nil when it can.
func fits(pod *corev1.Pod, taints []corev1.Taint, labels scheduling.Requirements) error {
	if err := scheduling.Taints(taints).Tolerates(pod.Spec.Tolerations); err != nil {
		return err
	}
	var first error
	for _, wanted := range nodeRequirements(pod) {
		err := labels.Compatible(wanted)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// nodeRequirements are the alternatives of a pod's node selector and required node affinity: the terms of the affinity are or-ed.
func nodeRequirements(pod *corev1.Pod) []scheduling.Requirements {
	selector := func() scheduling.Requirements { return scheduling.NewLabelRequirements(pod.Spec.NodeSelector) }
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return []scheduling.Requirements{selector()}
	}
	var alternatives []scheduling.Requirements
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		// A term without expressions matches nothing; one with fields names a node that exists.
		if len(term.MatchExpressions) == 0 || len(term.MatchFields) > 0 {
			continue
		}
		requirements := selector()
		requirements.Add(scheduling.NewNodeSelectorRequirements(term.MatchExpressions...).Values()...)
		alternatives = append(alternatives, requirements)
	}
	if len(alternatives) == 0 {
		none := selector()
		none.Add(scheduling.NewRequirement("metadata.name", corev1.NodeSelectorOpExists))
		return []scheduling.Requirements{none}
	}
	return alternatives
}

// refused says why an offering is not to be tried at present; nil when it may be.
func (c *Cluster) refused(class string, o *Offering) *planner.Refusal {
	for _, r := range c.Refused[class] {
		if r.InstanceType == o.Type.Name && r.Zone == o.Zone && r.CapacityType == o.CapacityType && c.Now.Before(r.NotBefore.Time) {
			return &planner.Refusal{
				Reason: planner.ReasonUnavailable,
				Message: fmt.Sprintf("%s in %s (%s) was refused %d times, next try after %s: %s", o.Type.Name, o.Zone, o.CapacityType,
					r.Failures, r.NotBefore.UTC().Format("15:04:05Z"), r.Message),
			}
		}
	}
	return nil
}
