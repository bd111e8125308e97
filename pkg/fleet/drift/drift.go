// Package drift detects how a machine differs from the one that Karve would launch today. The package has no clock and no client.
package drift

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// Drift is a difference between a machine and the one that Karve would launch today.
type Drift struct {
	// Reason is one word. It is Karpenter's word if Karpenter has one for the difference.
	Reason string
	// Message describes the difference.
	Message string
}

// Reasons of drift.
const (
	NodePool     = "NodePoolDrifted"
	Requirements = "RequirementsDrifted"
	Sharing      = "SharingDrifted"
	NodeClass    = "NodeClassDrift"
	Image        = "AMIDrift"
	InstanceType = "InstanceTypeNotFound"
	Zone         = "ZoneNotFound"
	Reservation  = "CapacityReservationDrift"
)

// catalogGrace is the age from which a machine drifts if the catalog lacks its type or zone, as in Karpenter. A machine that has just been launched
// proves that they exist.
const catalogGrace = time.Hour

// Of returns how a machine of the pool has drifted. It is nil if the machine has not drifted, or if that is unknown. It does not compare with a node
// class that is not Ready, whose images may be missing briefly. It ignores Karpenter's condition Drifted of the NodeClaim except for reservations, because Karpenter
// looks for a node class with the name of the GPUNodeClass.
//
// A changed number of replicas is drift only while pods hold more than the new number: the node agent can change the number while pods run, but ends none
// of them.
func Of(c *facts.Cluster, pool *snapshot.Pool, m *records.Machine) *Drift {
	if pool.Class == nil || !pool.NodePool.DeletionTimestamp.IsZero() || !m.Launched() {
		return nil
	}
	labels := m.PlannedLabels()
	return cmp.Or(ofTemplate(pool, m), ofRequirements(pool, labels), ofSharing(pool, m), ofNodeClass(c, pool, m, labels))
}

// ofTemplate compares the hash of the pool's template with the one that the machine was launched with. Hashes of different versions cannot be compared.
func ofTemplate(p *snapshot.Pool, m *records.Machine) *Drift {
	was := m.Claim.Annotations[karpv1.NodePoolHashAnnotationKey]
	if was == "" || m.Claim.Annotations[karpv1.NodePoolHashVersionAnnotationKey] != karpv1.NodePoolHashVersion || was == p.NodePool.Hash() {
		return nil
	}
	return &Drift{NodePool, fmt.Sprintf("spec.template of NodePool %s has changed since it was launched", p.NodePool.Name)}
}

// ofRequirements checks that the pool's requirements allow the machine. A label that the machine lacks counts only if a machine launched today would have it.
// Otherwise the replacement would have drifted as well.
func ofRequirements(p *snapshot.Pool, labels map[string]string) *Drift {
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(p.NodePool.Spec.Template.Spec.Requirements...)
	for _, key := range slices.Sorted(maps.Keys(requirements)) {
		if !admitsLabel(requirements[key], labels, key) {
			if _, has := labels[key]; !has && !slices.ContainsFunc(p.Offerings, func(o snapshot.Offering) bool { return o.Labels[key] != "" }) {
				continue
			}
			return &Drift{Requirements, fmt.Sprintf("the requirement of NodePool %s for %s does not admit it, which has %q", p.NodePool.Name, key, labels[key])}
		}
	}
	return nil
}

func admitsLabel(req *scheduling.Requirement, labels map[string]string, key string) bool {
	value, ok := labels[key]
	if op := req.Operator(); !ok {
		return op == corev1.NodeSelectorOpNotIn || op == corev1.NodeSelectorOpDoesNotExist
	}
	return req.Has(value)
}

// ofSharing compares the name of the resource and the strategy, which the node agent cannot change while pods hold replicas.
func ofSharing(p *snapshot.Pool, m *records.Machine) *Drift {
	if d := cmp.Or(ofInstances(p, m), ofSlots(p, m)); d != nil {
		return d
	}
	if was, now := m.Promise.Backend, p.Class.Spec.Sharing.PromisedBackend(); was != now {
		return &Drift{Sharing, fmt.Sprintf("it hands out replicas with backend %s, and GPUNodeClass %s has backend %s now", backendName(was), p.Class.Name, backendName(now))}
	}
	if now := p.Resource(); !p.Serves(m.Promise.Resource) {
		return &Drift{Sharing, fmt.Sprintf("it exposes %s, and GPUNodeClass %s has %s now", m.Promise.Resource, p.Class.Name, now)}
	}
	if d := ofReplicas(p, m); d != nil {
		return d
	}
	switch was, now := m.Promise.MPS, p.Class.Spec.Sharing.MPSSettings(); {
	case was == now:
		return nil
	case was == (nodecontract.MPS{}):
		return &Drift{Sharing, fmt.Sprintf("it shares its GPUs without MPS, and GPUNodeClass %s has strategy MPS now", p.Class.Name)}
	case now == (nodecontract.MPS{}):
		return &Drift{Sharing, fmt.Sprintf("it shares its GPUs with MPS, and GPUNodeClass %s has strategy %s now", p.Class.Name, p.Class.Spec.Sharing.Strategy)}
	default:
		return &Drift{Sharing, fmt.Sprintf("it shares its GPUs with MPS as %s, and GPUNodeClass %s has %s now", was, p.Class.Name, now)}
	}
}

// ofReplicas compares the replicas that pods hold with the most that the GPUNodeClass allows. More are held after the number was lowered.
func ofReplicas(p *snapshot.Pool, m *records.Machine) *Drift {
	if m.Type == nil || !m.Promise.Slots.IsZero() || m.Promise.Resource != p.Resource() {
		return nil
	}
	share, ok := p.Class.Spec.Sharing.ShareWith(m.Promise.MIG, m.Type.GPU.Name, m.Type.GPU.MemoryMiB, m.Type.GPU.Count)
	held := m.ReplicasInUse()
	if !ok || held <= share.Most*m.Promise.GPUs {
		return nil
	}
	return &Drift{Sharing, fmt.Sprintf("its pods hold %s, and GPUNodeClass %s allows %d on its GPUs now (%d each)", words.Count(held, "replica"), p.Class.Name, share.Most*m.Promise.GPUs, share.Most)}
}

func backendName(promised string) string {
	return cmp.Or(promised, string(v1alpha1.BackendDevicePlugin))
}

// ofInstances compares the MIG instances of a machine with those that the GPUNodeClass allows for its GPUs.
func ofInstances(p *snapshot.Pool, m *records.Machine) *Drift {
	was, sharing := m.Promise.MIG, &p.Class.Spec.Sharing
	divides := sharing.Strategy == v1alpha1.StrategyMIG
	switch {
	case was.IsZero() && !divides:
		return nil
	case !divides:
		return &Drift{Sharing, fmt.Sprintf("its GPUs are divided into MIG instances, and GPUNodeClass %s has strategy %s now", p.Class.Name, sharing.Strategy)}
	case was.IsZero():
		return &Drift{Sharing, fmt.Sprintf("its GPUs are not divided, and GPUNodeClass %s has strategy MIG now", p.Class.Name)}
	case m.Type == nil:
		return nil // Its GPUs are unknown.
	}
	if _, ok := sharing.ShareWith(was, m.Type.GPU.Name, m.Type.GPU.MemoryMiB, m.Type.GPU.Count); ok {
		return nil
	}
	now := "no layout for them"
	if shares := sharing.Shares(m.Type.GPU.Name, m.Type.GPU.MemoryMiB, m.Type.GPU.Count); len(shares) > 0 {
		now = instancesOf(shares[0].MIG)
	}
	has := "each of its GPUs has"
	if was.GPUs() > 0 {
		has = "its GPUs have"
	}
	return &Drift{Sharing, fmt.Sprintf("%s %s, and GPUNodeClass %s has %s now", has, instancesOf(was), p.Class.Name, now)}
}

func instancesOf(m nodecontract.MIG) string {
	text := m.Describe()
	if m.Replicas > 1 {
		text += fmt.Sprintf(" with %d replicas", m.Replicas)
	}
	return fmt.Sprintf("%s (naming %s)", text, m.Naming)
}

// ofSlots compares the kind of slots of a machine with that of the GPUNodeClass. A different number of slots of a size is not drift.
func ofSlots(p *snapshot.Pool, m *records.Machine) *Drift {
	was, now := m.Promise.Slots, p.Class.Spec.Sharing.MemorySlots()
	switch {
	case was.SameKind(now):
		return nil
	case now.IsZero():
		return &Drift{Sharing, fmt.Sprintf("its GPUs are divided into slots of memory, and GPUNodeClass %s has strategy %s now", p.Class.Name, p.Class.Spec.Sharing.Strategy)}
	case was.IsZero():
		return &Drift{Sharing, fmt.Sprintf("its GPUs are not divided into slots of memory, and GPUNodeClass %s has strategy MemorySlots now", p.Class.Name)}
	default:
		return &Drift{Sharing, fmt.Sprintf("its GPUs are divided into slots of memory as %s, and spec.sharing.memory of GPUNodeClass %s has changed", kindOf(was), p.Class.Name)}
	}
}

// kindOf describes slots without their numbers.
func kindOf(s nodecontract.Slots) string {
	return fmt.Sprintf("%s, with a reserve of %d MiB and enforcement %s", strings.Join(s.Resources(), ", "), s.ReserveMiB, s.Enforcement)
}

func ofNodeClass(c *facts.Cluster, pool *snapshot.Pool, m *records.Machine, labels map[string]string) *Drift {
	ref, was := pool.Class.Spec.NodeClassRef, m.Claim.Spec.NodeClassRef
	if was != nil && (was.Group != ref.Group || was.Kind != ref.Kind || was.Name != ref.Name) {
		return &Drift{NodeClass, fmt.Sprintf("it was launched with %s %s, and GPUNodeClass %s names %s %s now", was.Kind, was.Name, pool.Class.Name, ref.Kind, ref.Name)}
	}
	class := c.NodeClasses[ref]
	if !class.Ready {
		return nil
	}
	hash, version := clouds.NodeClassHash(m.Claim.Annotations)
	if hash != "" && class.Hash != "" && version == class.HashVersion && hash != class.Hash {
		return &Drift{NodeClass, fmt.Sprintf("%s %s has changed since it was launched", ref.Kind, ref.Name)}
	}
	if m.Type != nil { // Otherwise, which images are for it is unknown.
		if d := ofImage(&class, ref.Kind+" "+ref.Name, m.Claim.Status.ImageID, labels); d != nil {
			return d
		}
	}
	if d := ofReservation(&class, ref.Kind+" "+ref.Name, m); d != nil {
		return d
	}
	if len(class.InstanceTypes) == 0 || c.Now.Before(m.Claim.CreationTimestamp.Add(catalogGrace)) {
		return nil
	}
	return ofCatalog(&class, m)
}

// ofImage returns drift if the node class has images for such machines, but not the image of this machine. If there are no images, there is no drift:
// Karpenter drops the images of GPU machines from its list when it fails to look them up.
func ofImage(s *facts.NodeClassState, class, image string, labels map[string]string) *Drift {
	var ids []string
	for _, i := range s.Images {
		if isFor(&i, labels) {
			ids = append(ids, i.ID)
		}
	}
	if image == "" || len(ids) == 0 || slices.Contains(ids, image) {
		return nil
	}
	return &Drift{Image, fmt.Sprintf("it runs image %s, and %s has %s now", image, class, strings.Join(ids, ", "))}
}

// ofReservation returns drift if the node class no longer selects the reservation of the machine. It does not select one that has ended either, whose machines go on:
// Karpenter asks the cloud which of the two it is. Its condition Drifted says so if the node class has the name of the GPUNodeClass; otherwise there is no drift.
func ofReservation(s *facts.NodeClassState, class string, m *records.Machine) *Drift {
	selected := slices.ContainsFunc(s.Reservations, func(r catalog.Reservation) bool { return r.ID == m.Reservation })
	drifted := facts.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeDrifted)
	if m.Reservation == "" || selected || drifted == nil || drifted.Status != metav1.ConditionTrue || drifted.Reason != Reservation {
		return nil
	}
	return &Drift{Reservation, fmt.Sprintf("it takes a slot of reservation %s, which %s no longer selects", m.Reservation, class)}
}

// isFor reports whether machines with the labels are launched with the image.
func isFor(i *facts.Image, labels map[string]string) bool {
	requirements := scheduling.NewNodeSelectorRequirements(i.Requirements...)
	for key, req := range requirements {
		if !admitsLabel(req, labels, key) {
			return false
		}
	}
	return true
}

// ofCatalog returns drift if the machine's instance type or zone no longer exists. A missing offering is not drift, because prices and spot capacity
// come and go. A type without offerings, such as one that has no image now, proves nothing about its zones.
func ofCatalog(s *facts.NodeClassState, m *records.Machine) *Drift {
	name, zone, _ := records.ShapeOf(m.Claim)
	kind := catalog.Named(s.InstanceTypes, name)
	if name != "" && kind == nil {
		return &Drift{InstanceType, fmt.Sprintf("the cloud has no instance type %s any more", name)}
	}
	offered := func(t catalog.InstanceType) bool {
		return slices.ContainsFunc(t.Offerings, func(o catalog.Offering) bool { return o.Zone == zone })
	}
	if zone != "" && kind != nil && len(kind.Offerings) > 0 && !slices.ContainsFunc(s.InstanceTypes, offered) {
		return &Drift{Zone, fmt.Sprintf("nothing is offered in zone %s any more: the node class has no subnet there", zone)}
	}
	return nil
}
