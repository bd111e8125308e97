package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// Generate draws a scenario. The same seed gives the same scenario. All amounts are small, so that pods just fit or just do not.
func Generate(seed uint64) *Scenario {
	d := &draw{Rand: rand.New(rand.NewPCG(seed, 1)), s: &Scenario{Refused: map[string][]v1alpha1.RefusedOffering{}}}
	d.zones = zones[:d.between(1, len(zones))]
	// Each scenario has only a few of the features, so that these are often combined.
	for _, f := range features {
		if d.chance(0.3) {
			d.features = append(d.features, f)
		}
	}
	for _, name := range []string{"east", "west"} {
		d.s.Namespaces = append(d.s.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{corev1.LabelMetadataName: name, "side": name},
		}})
	}
	d.instanceTypes()
	d.pools()
	d.daemonSets()
	d.storage()
	d.existing()
	for i := range d.between(1, 4) {
		d.app(fmt.Sprintf("app-%c", 'a'+i))
	}
	d.s.Arrival = d.IntN(8)
	return d.s
}

var zones = []string{"zone-a", "zone-b", "zone-c"}

// draw draws a scenario piece by piece.
type draw struct {
	*rand.Rand
	s        *Scenario
	zones    []string
	features []feature
}

func (d *draw) chance(p float64) bool { return d.Float64() < p }

func (d *draw) between(low, high int) int { return low + d.IntN(high-low+1) }

func (d *draw) has(f feature) bool { return slices.Contains(d.features, f) }

func one[T any](d *draw, of ...T) T { return of[d.IntN(len(of))] }

// some returns a random non-empty subset, in its original order.
func some[T any](d *draw, of ...T) []T {
	var picked []T
	for _, x := range of {
		if d.chance(0.5) {
			picked = append(picked, x)
		}
	}
	if len(picked) == 0 {
		return []T{one(d, of...)}
	}
	return picked
}

const (
	labelFamily = "karpenter.k8s.aws/instance-family"
	labelCPU    = "karpenter.k8s.aws/instance-cpu"
	// labelRack is a label of which pools choose a value.
	labelRack = "example.com/rack"
	// labelTeam is a label that pools set on their machines.
	labelTeam = "example.com/team"
	// taintTeam keeps pods off the machines of some pools, in addition to the taint of all pools.
	taintTeam = "example.com/team"
	// a100 is the GPU of all machines of scenarios with MIG instances.
	a100 = "a100"
	// fpga is a resource that only foreign machines have.
	fpga = "example.com/fpga"
)

func (d *draw) instanceTypes() {
	for _, size := range append(some(d, 0, 1), some(d, 2, 3)...) {
		t := []struct {
			name             string
			cpus, gib, gpus  int64
			pods, microPrice int64
		}{
			{"g4dn.xlarge", 4, 16, 1, 29, 526_000},
			{"g4dn.2xlarge", 8, 32, 1, 29, 752_000},
			{"g5.xlarge", 4, 16, 1, 6, 1_006_000},
			{"g4dn.12xlarge", 48, 192, 4, 234, 3_912_000},
		}[size]
		it := catalog.InstanceType{
			Name: t.name,
			Labels: map[string]string{
				corev1.LabelInstanceTypeStable: t.name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
				labelFamily: t.name[:slices.Index([]byte(t.name), '.')], labelCPU: fmt.Sprint(t.cpus),
			},
			Capacity:    catalog.Resources{MilliCPU: t.cpus * 1000, MemoryBytes: t.gib << 30, EphemeralBytes: 20 << 30, Pods: t.pods},
			Allocatable: catalog.Resources{MilliCPU: t.cpus*1000 - 80, MemoryBytes: (t.gib - 1) << 30, EphemeralBytes: 17 << 30, Pods: t.pods},
			GPU:         catalog.GPU{Name: "t4", Count: t.gpus, MemoryMiB: 16384},
		}
		for _, zone := range some(d, d.zones...) {
			capacityTypes := some(d, karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeSpot)
			if d.chance(0.2) {
				capacityTypes = append(capacityTypes, karpv1.CapacityTypeReserved)
			}
			for _, capacityType := range capacityTypes {
				price := t.microPrice + int64(d.IntN(3))*10_000
				if capacityType != karpv1.CapacityTypeOnDemand {
					price /= 3
				}
				it.Offerings = append(it.Offerings, catalog.Offering{
					Zone: zone, CapacityType: capacityType, MicroUSDPerHour: price,
					Labels: map[string]string{corev1.LabelTopologyZone: zone, karpv1.CapacityTypeLabelKey: capacityType},
				})
			}
		}
		if d.has(instances) {
			it.GPU.Name, it.GPU.MemoryMiB = a100, 40960
		}
		d.s.InstanceTypes = append(d.s.InstanceTypes, it)
	}
}

func (d *draw) pools() {
	for i := range d.between(1, 2) {
		class := snapshottest.Class(fmt.Sprintf("class-%d", i), int32(one(d, 2, 3, 4, 10)))
		if d.chance(0.1) {
			class.Spec.Sharing.RequestsAboveOne = v1alpha1.RequestsAboveOneRefuse
		}
		if d.has(instances) && d.chance(0.7) {
			d.divides(&class.Spec.Sharing)
		}
		if d.has(memorySlots) {
			class.Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMemorySlots, Memory: &v1alpha1.MemorySharing{Sizes: some(d, slotSizes...)}}
		}
		d.s.GPUNodeClasses = append(d.s.GPUNodeClasses, class)
	}
	for i := range d.between(1, 3) {
		np := snapshottest.Pool(fmt.Sprintf("pool-%d", i), one(d, d.s.GPUNodeClasses...).Name, snapshottest.Tainted(v1alpha1.ResourceGPUShared))
		d.requirements(&np)
		template := &np.Spec.Template
		if d.chance(0.3) {
			template.Labels = map[string]string{labelTeam: one(d, "red", "blue")}
		}
		if d.chance(0.2) {
			template.Spec.Taints = append(template.Spec.Taints, corev1.Taint{
				Key: taintTeam, Value: one(d, "red", "blue"),
				Effect: one(d, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule),
			})
		}
		if d.chance(0.25) {
			np.Spec.Limits = karpv1.Limits{one(d, "nodes", corev1.ResourceName(v1alpha1.ResourceGPU)): *resource.NewQuantity(int64(d.between(0, 4)), resource.DecimalSI)}
		}
		if d.chance(0.2) {
			np.Spec.Weight = new(int32(d.between(1, 3)))
		}
		d.s.NodePools = append(d.s.NodePools, np)
	}
	if t := one(d, d.s.InstanceTypes...); d.chance(0.1) {
		class := one(d, d.s.GPUNodeClasses...).Name
		d.s.Refused[class] = append(d.s.Refused[class], v1alpha1.RefusedOffering{
			InstanceType: t.Name, Zone: one(d, "*", t.Offerings[0].Zone), CapacityType: "*", Failures: 1,
			NotBefore: metav1.NewTime(snapshottest.Now.Add(time.Minute)),
		})
	}
}

// divides makes the strategy MIG.
func (d *draw) divides(s *v1alpha1.Sharing) {
	*s = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, MIG: &v1alpha1.MIGSharing{}}
	for _, profile := range some(d, "1g.5gb", "2g.10gb", "3g.20gb") {
		s.MIG.Layouts = append(s.MIG.Layouts, v1alpha1.MIGLayout{GPUName: a100, Profile: profile})
	}
	switch d.IntN(4) {
	case 0:
		s.Replicas = new(int32(2))
	case 1: // As replicas that are time-sliced.
		s.MIG.Naming, s.MIG.Layouts, s.Replicas = v1alpha1.MIGNamingSingle, s.MIG.Layouts[:1], new(int32(2))
	}
}

func (d *draw) requirements(np *karpv1.NodePool) {
	require := func(key string, op corev1.NodeSelectorOperator, values ...string) {
		snapshottest.Requiring(key, op, values...)(np)
	}
	if d.chance(0.7) {
		require(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, some(d, karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeSpot)...)
	}
	if d.chance(0.2) {
		require(corev1.LabelTopologyZone, one(d, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn), one(d, zones...))
	}
	if d.chance(0.2) {
		require(labelRack, corev1.NodeSelectorOpIn, some(d, "r1", "r2")...)
	}
	if d.chance(0.1) {
		require(labelCPU, one(d, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt), "4")
	}
	if d.has(choices) && d.chance(0.5) {
		key := one(d, corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone)
		np.Spec.Template.Spec.Requirements = slices.DeleteFunc(np.Spec.Template.Spec.Requirements, func(r karpv1.NodeSelectorRequirementWithMinValues) bool { return r.Key == key })
		require(key, corev1.NodeSelectorOpExists)
		reqs := np.Spec.Template.Spec.Requirements
		reqs[len(reqs)-1].MinValues = new(d.between(1, 2))
	}
}

func (d *draw) daemonSets() {
	for i := range d.between(0, 2) {
		ds := snapshottest.DaemonSet(fmt.Sprintf("daemon-%d", i), "cpu", one(d, "50m", "200m"), "memory", one(d, "64Mi", "512Mi"))
		spec := &ds.Spec.Template.Spec
		ds.Spec.Template.Labels = map[string]string{"daemon": ds.Name}
		switch d.IntN(4) {
		case 0:
			spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: one(d, d.zones...)}
		case 1:
			spec.Tolerations = []corev1.Toleration{{Key: v1alpha1.ResourceGPUShared, Operator: corev1.TolerationOpExists}}
		case 2:
			spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: snapshottest.Amounts("cpu", "100m", "memory", "128Mi")}
		}
		if i == 0 && d.has(hostPorts) && d.chance(0.5) {
			spec.HostNetwork = true
			spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 8080, Protocol: corev1.ProtocolTCP}}
		}
		d.s.DaemonSets = append(d.s.DaemonSets, ds)
	}
}

// existing draws machines of the pools, launching and launched, and foreign nodes.
func (d *draw) existing() {
	view := snapshot.Build(d.s.Cluster())
	if len(view.Offerings) > 0 {
		for i := range d.between(0, 4) {
			d.machine(&view, fmt.Sprintf("node-%d", i))
		}
	}
	for i := range d.between(0, 2) {
		name := fmt.Sprintf("other-%d", i)
		node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelTopologyZone: one(d, zones...), karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand,
		}}}
		node.Status.Allocatable = snapshottest.Amounts("cpu", "8", "memory", "16Gi", "ephemeral-storage", "20Gi", "pods", "20")
		if d.chance(0.3) {
			node.Status.Allocatable[v1alpha1.ResourceGPUShared] = resource.MustParse("2")
			node.Status.Allocatable[fpga] = resource.MustParse("1")
		}
		d.s.Nodes = append(d.s.Nodes, node)
		d.runDaemons(&node)
	}
}

// machine draws a machine that one of the pools launched, with its claim.
func (d *draw) machine(view *snapshot.View, name string) {
	claim := render.NodeClaim(view, planner.Launch{Offering: d.IntN(len(view.Offerings))}, nil)
	claim.Name = name
	d.slots(claim)
	now := metav1.NewTime(snapshottest.Now.Add(-time.Minute))
	steps := []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized}
	for _, c := range steps[:one(d, 0, 1, 2, 3, 3, 3, 3, 3)] {
		claim.Status.Conditions = append(claim.Status.Conditions, status.Condition{
			Type: c, Status: metav1.ConditionTrue, Reason: c, LastTransitionTime: now,
		})
	}
	if d.chance(0.05) {
		claim.DeletionTimestamp, claim.Finalizers = &now, []string{"karpenter.sh/termination"}
	}
	if len(claim.Status.Conditions) > 1 { // Registered.
		claim.Status.ProviderID, claim.Status.NodeName = "aws:///"+name, name
		node, err := arrived(name, claim, d.s.InstanceTypes, 0)
		if err != nil {
			panic(err)
		}
		if !initialized(claim) {
			delete(node.Labels, karpv1.NodeInitializedLabelKey)
			delete(node.Status.Allocatable, resourceOf(claim))
			node.Spec.Taints = append(node.Spec.Taints, claim.Spec.StartupTaints...)
			d.s.Nodes, d.s.NodeClaims = append(d.s.Nodes, *node), append(d.s.NodeClaims, *claim)
			return
		}
		if d.chance(0.05) {
			node.Spec.Unschedulable = true
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
		}
		d.s.Nodes = append(d.s.Nodes, *node)
		d.runDaemons(node)
		d.volumeLimits(node)
	}
	d.s.NodeClaims = append(d.s.NodeClaims, *claim)
}

// slots draws the slots of a machine, some of them too large for what is left.
func (d *draw) slots(claim *karpv1.NodeClaim) {
	promise := facts.PromiseOf(claim.Annotations)
	slots := promise.Slots
	if slots.IsZero() {
		return
	}
	for i := range slots.GPUs {
		left := slots.CapacityMiB((&catalog.GPU{Name: "t4", MemoryMiB: 16384}).UsableMiB())
		for s, mib := range slots.SizesMiB {
			slots.GPUs[i][s] = int64(d.between(0, int(left/mib)))
			left -= slots.GPUs[i][s] * mib
		}
	}
	slots.GPUs[0][0] = max(1, slots.GPUs[0][0])
	if slots.UsedMiB(slots.GPUs[0]) > slots.CapacityMiB((&catalog.GPU{Name: "t4", MemoryMiB: 16384}).UsableMiB()) {
		for s := range slots.GPUs[0] {
			slots.GPUs[0][s] = 0
		}
		slots.GPUs[0][0] = 1
	}
	claim.Annotations[nodecontract.SlotsAnnotation] = slots.String()
}

func (d *draw) runDaemons(node *corev1.Node) {
	for i := range d.s.DaemonSets {
		pod := daemonPod(&d.s.DaemonSets[i])
		if !fitsOn(pod, node) {
			continue
		}
		pod.Name, pod.UID = pod.Name+"-"+node.Name, pod.UID+"-"+node.UID
		pod.Spec.NodeName = node.Name
		pod.Status.Phase = corev1.PodRunning
		d.s.Pods = append(d.s.Pods, *pod)
	}
}

func (d *draw) volumeLimits(node *corev1.Node) {
	if !d.has(volumes) || d.chance(0.5) {
		return
	}
	d.s.CSINodes = append(d.s.CSINodes, storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: zonalDriver, NodeID: node.Name, Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(d.between(0, 3)))},
		}}},
	})
}
