package records

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// An annotation of the NodeClaim records the pods for which a machine was launched, as the number of pods of each shape. Another one records the
// remaining launches. Pods of a shape are interchangeable, and names would be long and would become stale when a pod is recreated. The record is a plan
// to resume. It does not say what exists.

// SettleTime is how long a started machine keeps room for the pods that it was launched for.
const SettleTime = 2 * time.Minute

// ForeignTaints returns the taints of the machine's Node that another component has added and that do not come from a condition of the node.
func (m *Machine) ForeignTaints() []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(m.Node.Spec.Taints), func(t corev1.Taint) bool {
		is := func(own corev1.Taint) bool { return own.MatchTaint(&t) }
		return slices.ContainsFunc(m.Claim.Spec.Taints, is) || slices.ContainsFunc(m.Claim.Spec.StartupTaints, is) ||
			slices.ContainsFunc(passingTaints, func(prefix string) bool { return strings.HasPrefix(t.Key, prefix) })
	})
}

// passingTaints are the prefixes of taints for a condition of a node or its end: Kubernetes' own, those of clouds, Karpenter's and Karve's, and those of tools
// that drain nodes. Another node would not have them.
var passingTaints = []string{
	"node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "karpenter.sh/", v1alpha1.Group + "/", "aws-node-termination-handler/", "ToBeDeletedByClusterAutoscaler",
}

// Planned returns the labels that the machine's Node was planned to have.
func (m *Machine) Planned() nodelabels.Labels {
	before := *m
	before.Node, before.memo = nil, nil
	labels := before.LabelsWithDoubts()
	if name, ok := m.Node.Labels[corev1.LabelHostname]; ok {
		labels.Known[corev1.LabelHostname] = name
	}
	return labels
}

// raisingTime is how long Karve assumes that a machine will report the replicas of its raised promise.
const raisingTime = time.Minute

// MinMemoryMiB returns the device memory of each GPU of the machine in MiB, the lower of the values in the catalog and on the Node.
func (m *Machine) MinMemoryMiB(t *catalog.InstanceType) int64 {
	mib := t.GPU.UsableMiB()
	if m.Node != nil {
		mib = min(mib, MemoryMiB(m.Node.Labels, t))
	}
	return mib
}

// Raised reports whether the promise of a machine was raised a moment ago.
func (m *Machine) Raised(now time.Time) bool {
	at := m.status().raised
	return !at.IsZero() && now.Before(at.Add(raisingTime)) && at.Before(now.Add(raisingTime))
}

// HasOrGets returns the number of replicas that a machine has or can get, given the number that it reports. Replicas of a promise that was raised a
// moment ago count as reported. more is how many additional replicas each GPU can get. It is 0 if the machine reports less than it promised.
func (m *Machine) HasOrGets(exposed int64, raised bool) (replicas, more int64) {
	if raised && !m.GPUsCordoned() {
		exposed = max(exposed, m.Promise.Replicas())
	}
	if exposed >= m.Promise.Replicas() {
		more = max(0, m.MaxPerGPU-m.Promise.ReplicasPerGPU)
	}
	return exposed + more*m.Promise.GPUs, more
}

// Extended returns what the machine has, or will have, of a resource that is not in planner.Resources. It uses the Node, then the NodeClaim, then the
// catalog.
func (m *Machine) Extended(name corev1.ResourceName) int64 {
	if m.Node != nil {
		if n := facts.ValueOf(m.Node.Status.Allocatable, name); n > 0 || m.Initialized() {
			return n
		}
	}
	if n := facts.ValueOf(m.Claim.Status.Allocatable, name); n > 0 {
		return n
	}
	if m.Type != nil {
		return m.Type.Extended[string(name)]
	}
	return 0
}

// Expected returns what a machine that has not started will have for pods and DaemonSets. Amounts that its Node does not report yet come from its NodeClaim,
// which has them after the launch, then from the catalog. If the catalog does not have the type, the requests of the NodeClaim are the minimum.
func (m *Machine) Expected() planner.Resources {
	gpu := m.Promise.Resource
	var e planner.Resources
	if m.Node != nil {
		e = facts.ResourcesOf(m.Node.Status.Allocatable, gpu)
	}
	e = facts.OrElse(e, facts.ResourcesOf(m.Claim.Status.Allocatable, gpu))
	if m.Type != nil {
		e = facts.OrElse(e, AllocatableOf(m.Type))
	}
	e = facts.OrElse(facts.OrElse(e, facts.ResourcesOf(m.Claim.Spec.Resources.Requests, gpu)), planner.Resources{Pods: assumedPods, EphemeralBytes: assumedEphemeralBytes})
	e.Replicas = m.Exposed()
	if m.AwaitsReplicas() && (e.Replicas <= 0 || !m.GPUsCordoned()) {
		e.Replicas = max(e.Replicas, m.Promise.Replicas())
	}
	return e
}

// These amounts are assumed for machines of unknown type. They suffice for the pods for which the machine was launched, so that these do not get a
// second one.
const (
	assumedPods           = 110
	assumedEphemeralBytes = 1 << 40
)

// ExpectedLabels returns the labels that the machine's Node has or will have, as far as they are known.
func (m *Machine) ExpectedLabels() map[string]string { return m.LabelsWithDoubts().Known }

// PlannedLabels are like ExpectedLabels, with the values that were planned of labels that others write.
func (m *Machine) PlannedLabels() map[string]string {
	labels := maps.Clone(m.ExpectedLabels())
	maps.DeleteFunc(labels, func(key, _ string) bool { return nodelabels.Written(key) })
	maps.Copy(labels, m.foretold().Known)
	return labels
}

// LabelsWithDoubts returns the labels that the machine's Node has or will have. They are in this order of precedence: those of the Node, those that others will
// write, those of the NodeClaim, and those of the catalog.
func (m *Machine) LabelsWithDoubts() nodelabels.Labels {
	instanceType, zone, capacityType := ShapeOf(m.Claim)
	labels := map[string]string{}
	if m.Type != nil {
		labels = MergedLabels(m.Type.Labels)
		for _, o := range m.Type.Offerings {
			if o.Zone == zone && o.CapacityType == capacityType && o.Reservation == m.Reservation {
				maps.Copy(labels, o.Labels)
			}
		}
	}
	for key, value := range map[string]string{
		corev1.LabelInstanceTypeStable: instanceType, corev1.LabelTopologyZone: zone, karpv1.CapacityTypeLabelKey: capacityType,
	} {
		if value != "" {
			labels[key] = value
		}
	}
	maps.Copy(labels, m.Claim.Labels)
	foretold := m.foretold()
	maps.Copy(labels, foretold.Known)
	if m.Node != nil {
		maps.Copy(labels, m.Node.Labels)
	}
	return nodelabels.Labels{Known: WhenStarted(labels), Doubts: foretold.Doubts}
}

// Settling reports whether the Node of a machine may still lack labels that others write: it has not started, or only just.
func (m *Machine) Settling(now time.Time) bool {
	initialized := m.since(karpv1.ConditionTypeInitialized)
	return !m.Initialized() || !initialized.IsZero() && now.Before(initialized.Add(SettleTime))
}

// LastingTaints returns the taints that will remain once the node has started.
func LastingTaints(taints, startup []corev1.Taint) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool {
		return t.Key == v1alpha1.ReplicasNotReadyTaintKey || scheduling.IsKnownEphemeralTaint(&t) ||
			slices.ContainsFunc(startup, func(s corev1.Taint) bool { return s.MatchTaint(&t) })
	})
}
