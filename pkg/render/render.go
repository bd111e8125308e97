// Package render turns the decisions of the planner into API objects. It has no clock and no client.
package render

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/records"
)

// maxPoolName limits the pool's part of a NodeClaim's name. The name has at most 63 characters, because Karpenter's providers use it as a label value.
const maxPoolName = 63 - 1 - nameHashLength

const (
	nameHashLength     = 12
	karpv1GroupVersion = "karpenter.sh/v1"
)

// NodeClaim returns the NodeClaim for one launch of a plan. Its name depends on the pool, the offering and the pods, so that creating the same launch twice
// fails with AlreadyExists. Its requests have only CPU and memory: Karpenter's providers refuse a NodeClaim that requests replicas, and never initialize one
// that requests a GPU which the node renames.
func NodeClaim(view *snapshot.View, launch planner.Launch, placements []planner.Placement) *karpv1.NodeClaim {
	offering := view.Offerings[launch.Offering]
	others := alternatives(view, launch)
	pool := view.Pools[view.Snapshot.Offerings[launch.Offering].Pool]
	np := pool.NodePool
	// The API server's response is decoded into the NodeClaim, and the NodePool belongs to the cache.
	template := np.Spec.Template.DeepCopy()
	ref := pool.Class.Spec.NodeClassRef
	gpus, replicas := view.Promised(launch)

	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:        freshName(view, np, offering, uids(view, launch.Pods), placements),
			Labels:      labels(np, pool.Class.Name, offering),
			Annotations: annotations(&pool, offering, gpus, replicas, view.PromisedSlots(launch), replaced(view, launch.Pods)),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: karpv1GroupVersion, Kind: "NodePool", Name: np.Name, UID: np.UID, BlockOwnerDeletion: new(true),
			}},
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef:  &karpv1.NodeClassReference{Group: ref.Group, Kind: ref.Kind, Name: ref.Name},
			Requirements:  requirements(&pool, offering, others),
			Taints:        template.Spec.Taints,
			StartupTaints: startupTaints(template),
			Resources:     karpv1.ResourceRequirements{Requests: requests(view, launch, offering)},
			// The zero value would be written as "Never". A NodePool from the API always has a value.
			ExpireAfter:            template.Spec.ExpireAfter,
			TerminationGracePeriod: template.Spec.TerminationGracePeriod,
		},
	}
	if n := repairs(view, launch.Pods); n > 0 {
		claim.Annotations[v1alpha1.RepairsAnnotation] = strconv.Itoa(n)
	}
	if planned := view.PlannedPods(launch); planned != "" {
		claim.Annotations[v1alpha1.PlannedPodsAnnotation] = planned
	}
	if claim.Spec.TerminationGracePeriod == nil {
		claim.Spec.TerminationGracePeriod = drainLimit(pool.Class)
	}
	return claim
}

// drainLimit returns how long a machine may drain if its NodePool sets no limit. It is nil if there is no limit, or if the value is invalid, so that no pod is
// deleted by mistake. The Accepted condition of the GPUNodeClass reports an invalid value.
func drainLimit(class *v1alpha1.GPUNodeClass) *metav1.Duration {
	d, err := class.Spec.DrainDuration()
	if err != nil || d == nil {
		return nil
	}
	return &metav1.Duration{Duration: *d}
}

// startupTaints returns the startup taints of the template and Karve's own, which the template may also have.
func startupTaints(template *karpv1.NodeClaimTemplate) []corev1.Taint {
	ours := ReplicasNotReadyTaint()
	others := slices.DeleteFunc(template.Spec.StartupTaints, func(t corev1.Taint) bool { return t.MatchTaint(&ours) })
	return append(others, ours)
}

// ReplicasNotReadyTaint returns the startup taint of all of Karve's machines.
func ReplicasNotReadyTaint() corev1.Taint {
	return corev1.Taint{Key: v1alpha1.ReplicasNotReadyTaintKey, Effect: corev1.TaintEffectNoSchedule}
}

// Name returns the name of the NodeClaim for the pods with the UIDs, in any order.
func Name(np *karpv1.NodePool, o *snapshot.Offering, pods []types.UID) string {
	sorted := slices.Sorted(slices.Values(pods))
	parts := []string{string(np.UID), o.Type.Name, o.Zone, o.CapacityType}
	if o.Reservation != "" {
		parts = append(parts, o.Reservation)
	}
	for _, key := range slices.Sorted(maps.Keys(o.CustomLabels)) {
		parts = append(parts, key+"="+o.CustomLabels[key])
	}
	if key := o.Share.MIG.Key(); key != "" {
		parts = append(parts, "mig="+key)
	}
	for _, uid := range sorted {
		parts = append(parts, string(uid))
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	// The name of a NodePool may contain dots, and the name of a host may not.
	prefix := strings.ReplaceAll(np.Name, ".", "-")
	if len(prefix) > maxPoolName {
		prefix = strings.TrimRight(prefix[:maxPoolName], "-")
	}
	return prefix + "-" + hex.EncodeToString(sum[:])[:nameHashLength]
}

// freshName returns a name that no NodeClaim has which was launched for the same pods and whose launch has an outcome: it started without running them,
// or is broken; or which the plan has equal pods for. With the same name, nothing could be launched for the pods while that NodeClaim exists. Any other machine that is
// still starting keeps its name, because the caches may be wrong about it for a moment, and its pods may still fit.
func freshName(view *snapshot.View, np *karpv1.NodePool, o *snapshot.Offering, pods []types.UID, placements []planner.Placement) string {
	filled := map[*karpv1.NodeClaim]bool{}
	for _, p := range placements {
		if m := view.MachineOn(p.Node); m != nil {
			filled[m.Claim] = true
		}
	}
	for {
		name := Name(np, o, pods)
		if !slices.ContainsFunc(view.Machines, func(m records.Machine) bool { return m.Claim.Name == name && (view.Decided(&m) || filled[m.Claim]) }) {
			return name
		}
		pods = append(pods, "again")
	}
}

// uids returns the UIDs of the pods. For headroom, which has no pods, it returns the names.
func uids(view *snapshot.View, pods []string) []types.UID {
	ids := make([]types.UID, 0, len(pods))
	for _, name := range pods {
		if pod := view.Pods[name]; pod != nil {
			ids = append(ids, pod.UID)
		} else {
			ids = append(ids, types.UID(name))
		}
	}
	return ids
}

// labels returns the labels of a NodeClaim. They are few and equal for many NodeClaims, because on EC2 each set of labels needs its own launch template.
func labels(np *karpv1.NodePool, class string, o *snapshot.Offering) map[string]string {
	l := map[string]string{}
	for key, value := range np.Spec.Template.Labels {
		if !writtenByOthers(key) {
			l[key] = value
		}
	}
	maps.Copy(l, o.CustomLabels)
	l[karpv1.NodePoolLabelKey] = np.Name
	l[v1alpha1.GPUNodeClassLabel] = class
	return l
}

// writtenByOthers reports whether another component sets the label on the node. The offering meets the pool's requirement for it, and Karpenter does not know it.
func writtenByOthers(key string) bool {
	return nodelabels.Written(key) || nodelabels.Current(key) != key
}

func alternatives(view *snapshot.View, launch planner.Launch) []*snapshot.Offering {
	others := make([]*snapshot.Offering, len(launch.Alternatives))
	for i, index := range launch.Alternatives {
		others[i] = view.Offerings[index]
	}
	return others
}

func replaced(view *snapshot.View, pods []string) []string {
	nodes := map[string]bool{}
	for _, name := range pods {
		if pod := view.Pods[name]; pod != nil && pod.Spec.NodeName != "" {
			nodes[pod.Spec.NodeName] = true
		}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// repairs returns how many unhealthy machines in a row the new machine for the pods replaces.
func repairs(view *snapshot.View, pods []string) int {
	most, nodes := 0, replaced(view, pods)
	for i := range view.Machines {
		if m := &view.Machines[i]; m.Node != nil && slices.Contains(nodes, m.Node.Name) {
			most = max(most, repair.RepairsOfNext(m))
		}
	}
	return most
}

func annotations(pool *snapshot.Pool, o *snapshot.Offering, gpus, replicas int64, slots nodecontract.Slots, replaced []string) map[string]string {
	a := map[string]string{}
	maps.Copy(a, pool.NodePool.Spec.Template.Annotations)
	a[nodecontract.ResourceAnnotation] = o.Share.Resource
	a[nodecontract.GPUsAnnotation] = strconv.FormatInt(gpus, 10)
	a[nodecontract.ReplicasPerGPUAnnotation] = strconv.FormatInt(replicas, 10)
	if backend := pool.Class.Spec.Sharing.PromisedBackend(); backend != "" {
		a[nodecontract.BackendAnnotation] = backend
	}
	if mps := pool.Class.Spec.Sharing.MPSSettings().String(); mps != "" {
		a[nodecontract.MPSAnnotation] = mps
	}
	if mig := o.Share.MIG.String(); mig != "" {
		a[nodecontract.MIGAnnotation] = mig
	}
	if slots := slots.String(); slots != "" {
		a[nodecontract.SlotsAnnotation] = slots
	}
	if len(replaced) > 0 {
		a[v1alpha1.ReplacesAnnotation] = strings.Join(replaced, ",")
	}
	a[v1alpha1.PriceAnnotation] = strconv.FormatInt(o.MicroUSDPerHour, 10)
	if o.ListMicroUSDPerHour > 0 && o.ListMicroUSDPerHour != o.MicroUSDPerHour {
		a[v1alpha1.ListPriceAnnotation] = strconv.FormatInt(o.ListMicroUSDPerHour, 10)
	}
	a[karpv1.NodePoolHashAnnotationKey] = pool.NodePool.Hash()
	a[karpv1.NodePoolHashVersionAnnotationKey] = karpv1.NodePoolHashVersion
	return a
}

// requirements returns the requirements of a NodeClaim. They are the pool's as written, except for those that the offering decides: instance type, zone,
// capacity type, reservation and the labels that were chosen. The chosen value comes first, which is the one to expect until the machine is launched, and the alternatives
// follow. Karpenter's requirement algebra is not used, because it turns Gt into Gte, which older versions of Karpenter do not know in NodeClaims.
func requirements(pool *snapshot.Pool, o *snapshot.Offering, others []*snapshot.Offering) []karpv1.NodeSelectorRequirementWithMinValues {
	stated := map[string][]string{}
	state := func(key, value string) {
		if !slices.Contains(stated[key], value) {
			stated[key] = append(stated[key], value)
		}
	}
	for _, offering := range append([]*snapshot.Offering{o}, others...) {
		state(corev1.LabelInstanceTypeStable, offering.Type.Name)
		state(corev1.LabelTopologyZone, offering.Zone)
		state(karpv1.CapacityTypeLabelKey, offering.CapacityType)
	}
	if o.Reservation != "" {
		state(clouds.OfRef(pool.Class.Spec.NodeClassRef).ReservationLabel, o.Reservation)
	}
	for key, value := range o.CustomLabels {
		state(key, value)
	}
	least := map[string]*int{}
	var list []karpv1.NodeSelectorRequirementWithMinValues
	for _, req := range pool.NodePool.Spec.Template.Spec.Requirements {
		if req.Key = nodelabels.Current(req.Key); writtenByOthers(req.Key) {
			continue
		}
		if req.MinValues != nil {
			req.MinValues = new(*req.MinValues)
		}
		if _, ok := stated[req.Key]; ok {
			if known := least[req.Key]; known == nil || req.MinValues != nil && *known < *req.MinValues {
				least[req.Key] = req.MinValues
			}
			continue
		}
		req.Values = slices.Sorted(slices.Values(req.Values))
		list = append(list, req)
	}
	for key, values := range stated {
		list = append(list, karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values, MinValues: least[key]})
	}
	slices.SortFunc(list, func(a, b karpv1.NodeSelectorRequirementWithMinValues) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(string(a.Operator), string(b.Operator)), slices.Compare(a.Values, b.Values))
	})
	return list
}

// requests returns the CPU and memory requests of the pods and the DaemonSets.
func requests(view *snapshot.View, launch planner.Launch, o *snapshot.Offering) corev1.ResourceList {
	milliCPU, memory := o.Daemons.MilliCPU, o.Daemons.MemoryBytes
	wanted := map[string]bool{}
	for _, name := range launch.Pods {
		wanted[name] = true
	}
	for _, class := range view.Classes {
		for _, name := range class.Pods {
			if wanted[name] {
				milliCPU += class.Requests.MilliCPU
				memory += class.Requests.MemoryBytes
			}
		}
	}
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(milliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
	}
}
