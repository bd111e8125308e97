package hostile

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	volumehelper "k8s.io/component-helpers/storage/volume"

	"karve.sh/karve/pkg/cloud/clouds"
)

func (g *Generator) claimSpec() corev1.PersistentVolumeClaimSpec {
	q := g.quantity()
	for q.Sign() <= 0 {
		q = g.quantity()
	}
	return corev1.PersistentVolumeClaimSpec{
		AccessModes:      []corev1.PersistentVolumeAccessMode{pick(g, corev1.ReadWriteOnce, corev1.ReadWriteMany, corev1.ReadWriteOncePod)},
		StorageClassName: pick(g, nil, new(""), new(g.known("StorageClass"))),
		Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: q}},
	}
}

// PersistentVolumeClaim returns a claim, bound or not.
func (g *Generator) PersistentVolumeClaim() *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: g.namespaced("PersistentVolumeClaim"), Spec: g.claimSpec()}
	if g.maybe(0.5) {
		claim.Spec.VolumeName = g.known("PersistentVolume")
		if g.maybe(0.7) {
			claim.Annotations = map[string]string{volumehelper.AnnBindCompleted: "yes"}
		}
	}
	claim.Status.Phase = pick(g, corev1.ClaimBound, corev1.ClaimPending, corev1.ClaimLost)
	return claim
}

// PersistentVolume returns a volume.
func (g *Generator) PersistentVolume() *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: g.meta("PersistentVolume")}
	pv.Labels = g.labels(100)
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.Capacity = g.claimSpec().Resources.Requests
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: pick(g, "ebs.csi.aws.com", "example.com"), VolumeHandle: pv.Name}
	if g.maybe(0.5) {
		var terms []corev1.NodeSelectorTerm
		for range 1 + g.count(200) {
			terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{g.nodeRequirement()}})
		}
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
	}
	return pv
}

// StorageClass returns a StorageClass.
func (g *Generator) StorageClass() *storagev1.StorageClass {
	class := &storagev1.StorageClass{
		ObjectMeta: g.meta("StorageClass"), Provisioner: pick(g, "ebs.csi.aws.com", "kubernetes.io/aws-ebs", "kubernetes.io/no-provisioner", "example.com/x"),
		ReclaimPolicy: new(corev1.PersistentVolumeReclaimDelete), VolumeBindingMode: new(pick(g, storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate)),
	}
	for i := range g.count(30) {
		class.AllowedTopologies = append(class.AllowedTopologies, corev1.TopologySelectorTerm{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
			{Key: pick(g, keys...), Values: unique([]string{g.value(), fmt.Sprintf("v%d", i)})},
		}})
	}
	return class
}

// CSINode returns a CSINode with up to 50 drivers.
func (g *Generator) CSINode() *storagev1.CSINode {
	node := &storagev1.CSINode{ObjectMeta: g.meta("CSINode")}
	for i := range g.count(50) {
		name := "ebs.csi.aws.com"
		if i > 0 {
			name = fmt.Sprintf("d%d.example.com", i)
		}
		node.Spec.Drivers = append(node.Spec.Drivers, storagev1.CSINodeDriver{Name: name, NodeID: node.Name, Allocatable: &storagev1.VolumeNodeResources{Count: new(g.limit())}})
	}
	return node
}

// Namespace returns a namespace.
func (g *Generator) Namespace() *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: g.meta("Namespace")}
	ns.Labels = g.labels(500)
	return ns
}

// Refusal returns an event about a NodeClaim of the generator that looks like Karpenter's. Anyone who may create events can forge it.
func (g *Generator) Refusal(claim string) *corev1.Event {
	event := &corev1.Event{ObjectMeta: g.meta("Event"), InvolvedObject: corev1.ObjectReference{Kind: "NodeClaim", Name: claim}}
	g.imitate(event)
	return event
}

func (g *Generator) imitate(event *corev1.Event) {
	event.Namespace, event.Source.Component = corev1.NamespaceDefault, "karpenter"
	event.Reason, event.Message = pick(g, "InsufficientCapacityError", "InsufficientCapacityError", "SpotInterrupted"), g.refusal()
	event.InvolvedObject.Namespace, event.InvolvedObject.APIVersion, event.InvolvedObject.UID = "", "karpenter.sh/v1", types.UID(event.InvolvedObject.Name)
}

// refusal returns a message like those of refused launches.
func (g *Generator) refusal() string {
	var said strings.Builder
	for range g.count(20) {
		said.WriteString(pick(g, "", "NodeClaim x event: ", "ICE: "))
		if errors := pick(g, clouds.All...).Errors; len(errors) > 0 {
			said.WriteString(pick(g, errors...).Text)
		}
		said.WriteString(pick(g, "", " g4dn.xlarge", " g4dn.xlarge (us-east-1a)", " subnet-1", g.text(100)))
	}
	return said.String()
}

// Event returns an event about an object of the generator.
func (g *Generator) Event() *corev1.Event {
	kind := pick(g, "NodeClaim", "Pod", "Node")
	event := &corev1.Event{
		ObjectMeta: g.namespaced("Event"), Type: pick(g, corev1.EventTypeWarning, corev1.EventTypeNormal), Count: g.integer(0),
		Reason:  pick(g, "InsufficientCapacityError", "NodeClassNotReady", "LaunchFailed", "Unconsolidatable", g.text(100)),
		Message: g.text(1000), FirstTimestamp: g.time(), LastTimestamp: g.time(),
		Source: corev1.EventSource{Component: pick(g, "karpenter", "karve", "")}, ReportingController: pick(g, "karpenter", "karve", ""),
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: g.known(kind), Namespace: Namespace},
	}
	event.InvolvedObject.UID = "x"
	if kind == "NodeClaim" && g.maybe(0.7) {
		g.imitate(event)
	}
	if len(event.Reason) > 100 {
		event.Reason = strings.Repeat("r", 100)
	}
	return event
}
