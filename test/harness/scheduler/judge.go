package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/fleet/slots"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Complaint is a disagreement between the plan and the scheduler.
type Complaint struct {
	// Kind is the kind of disagreement. It is the same for disagreements with the same cause.
	Kind string
	// Text describes the disagreement.
	Text string
}

// Outcome is a plan for a scenario, and its complaints.
type Outcome struct {
	View       snapshot.View
	Plan       planner.Plan
	Complaints []Complaint
}

func (o *Outcome) complain(kind, format string, args ...any) {
	o.Complaints = append(o.Complaints, Complaint{kind, fmt.Sprintf(format, args...)})
}

// Judge plans for a scenario and checks the plan with the scheduler.
func (f *Filter) Judge(s *Scenario) (Outcome, error) {
	view := snapshot.Build(s.Cluster())
	return f.JudgePlan(s, view, solve.Plan(view.Snapshot))
}

// JudgePlan checks a plan with the scheduler.
func (f *Filter) JudgePlan(s *Scenario, view snapshot.View, plan planner.Plan) (Outcome, error) {
	o := Outcome{View: view, Plan: plan}
	if err := check.Plan(view.Snapshot, plan); err != nil {
		o.complain("Check", "the plan breaks rules of its own: %v", err)
		return o, nil
	}
	scene, err := sceneOf(s, &o)
	if err != nil || len(o.Complaints) > 0 {
		return o, err
	}
	found, err := f.Play(scene)
	if err != nil {
		return o, err
	}
	for _, v := range found.Daemons {
		o.complain("daemon "+v.Plugin, "the daemon %s has no room on %s: %s", v.Pod, v.Node, v.Reasons)
	}
	for _, v := range found.Stuck {
		o.complain("stuck "+v.Plugin, "pod %s was planned onto %s, where %s says: %s", v.Pod, v.Node, v.Plugin, v.Reasons)
	}
	for _, v := range found.Taken {
		why := refusalOf(plan, v.Pod)
		o.complain("taken "+string(why.Reason), "pod %s could go onto %s, and the plan has no place for it: %s: %s", v.Pod, v.Node, why.Reason, why.Message)
	}
	return o, nil
}

// sceneOf returns the cluster after the plan was carried out. If that is not possible, it adds a complaint to the outcome.
func sceneOf(s *Scenario, o *Outcome) (*Scene, error) {
	scene := &Scene{
		Namespaces: s.Namespaces, PVCs: s.PersistentVolumeClaims, PVs: s.PersistentVolumes, StorageClasses: s.StorageClasses,
		CSINodes: slices.Clone(s.CSINodes),
	}
	hosts, err := scene.existing(s, &o.View)
	if err != nil {
		return nil, err
	}
	for _, name := range hosts {
		scene.attachable(s, name)
	}
	for i := range s.DaemonSets {
		scene.Daemons = append(scene.Daemons, daemonPod(&s.DaemonSets[i]))
	}
	for _, p := range o.Plan.Placements {
		name := o.View.Nodes[p.Node].Name
		scene.place(o, p.Pods, cmp.Or(hosts[name], name))
	}
	for i, l := range o.Plan.Launches {
		name := fmt.Sprintf("launch-%d", i)
		node, err := arrived(name, render.NodeClaim(&o.View, l, nil), s.InstanceTypes, s.Arrival)
		if err != nil {
			o.complain("claim", "%v", err)
			continue
		}
		scene.Nodes, scene.New = append(scene.Nodes, node), append(scene.New, name)
		if len(l.Alternatives) == 0 { // A machine other than the planned one may have more room.
			scene.Judged = append(scene.Judged, name)
		}
		scene.attachable(s, name)
		scene.place(o, l.Pods, name)
	}
	launchable := stillLaunchable(&o.View, o.Plan)
	for i := range o.View.Offerings {
		name := fmt.Sprintf("fresh-%d", i)
		node, err := arrived(name, render.NodeClaim(&o.View, planner.Launch{Offering: i}, nil), s.InstanceTypes, 0)
		if err != nil {
			return nil, err
		}
		anySlot(node, o.View.Offerings[i])
		if !slices.Contains(launchable, i) {
			// An unavailable domain still counts for topology spread.
			node.Spec.Unschedulable = true
			node.Status.Allocatable = nil
		}
		scene.Fresh = append(scene.Fresh, node)
		scene.attachable(s, name)
	}
	scene.layOut(&o.View, o.Plan.Placements, hosts)
	for _, u := range o.Plan.Unplaced {
		if isImpossible(&o.View, u) && !sharesVolume(s, o.View.Pods[u.Pod]) {
			scene.Refused = append(scene.Refused, waiting(o.View.Pods[u.Pod]))
		}
	}
	return scene, nil
}

// layOut gives nodes with slots those that the controller makes for the pods that are placed there.
func (scene *Scene) layOut(view *snapshot.View, placements []planner.Placement, hosts map[string]string) {
	for _, change := range slots.Changes(view, placements) {
		name := cmp.Or(hosts[change.Machine.Claim.Name], change.Machine.PlannerName())
		for i, node := range scene.Nodes {
			if node.Name != name {
				continue
			}
			scene.Nodes[i] = node.DeepCopy()
			for s, n := range change.Slots.Wanted() {
				scene.Nodes[i].Status.Allocatable[corev1.ResourceName(nodecontract.SlotResource(change.Slots.SizesMiB[s]))] = *resource.NewQuantity(n, resource.DecimalSI)
			}
		}
	}
}

// anySlot gives a node as many slots of each size as it could have of that size alone, since it is asked for one pod.
func anySlot(node *corev1.Node, o *snapshot.Offering) {
	for _, mib := range o.Share.Slots.SizesMiB {
		n := o.Share.Slots.CapacityMiB(o.Type.GPU.UsableMiB()) / mib * o.Type.GPU.Count
		node.Status.Allocatable[corev1.ResourceName(nodecontract.SlotResource(mib))] = *resource.NewQuantity(n, resource.DecimalSI)
	}
}

// existing adds the scenario's nodes and bound pods to the scene. Machines that are launching appear as they will be, all others as they are. It returns
// the names of the nodes that the launching claims get, because the cloud chooses names that are not known before.
func (scene *Scene) existing(s *Scenario, view *snapshot.View) (map[string]string, error) {
	hosts := map[string]string{}
	for i := range s.NodeClaims {
		claim := &s.NodeClaims[i]
		if initialized(claim) || !claim.DeletionTimestamp.IsZero() {
			continue
		}
		name := cmp.Or(claim.Status.NodeName, "host-of-"+claim.Name)
		node, err := arrived(name, claim, s.InstanceTypes, s.Arrival)
		if err != nil {
			return nil, err
		}
		hosts[claim.Name] = node.Name
		scene.Nodes, scene.New = append(scene.Nodes, node), append(scene.New, node.Name)
		scene.Judged = append(scene.Judged, node.Name)
	}
	leaving := map[string]bool{}
	for i := range s.NodeClaims {
		leaving[s.NodeClaims[i].Name] = !s.NodeClaims[i].DeletionTimestamp.IsZero()
	}
	for i := range s.Nodes {
		node := &s.Nodes[i]
		if hosts[node.Name] != "" {
			continue
		}
		scene.Nodes = append(scene.Nodes, node)
		// These nodes are not judged: pods that tolerate everything can run on a cordoned node, and any pod can run on a terminating one, but neither is
		// wanted.
		if !node.Spec.Unschedulable && !leaving[node.Name] {
			scene.Judged = append(scene.Judged, node.Name)
		}
	}
	for i := range s.Pods {
		// Pods whose machines will be lost are gone when their replacements arrive.
		if pod := &s.Pods[i]; pod.Spec.NodeName != "" && view.Pods[pod.Namespace+"/"+pod.Name] == nil {
			scene.Pods = append(scene.Pods, *pod)
		}
	}
	for _, node := range scene.Nodes {
		if scene.overfull(s, node) {
			scene.Judged = slices.DeleteFunc(scene.Judged, func(name string) bool { return name == node.Name })
		}
	}
	return hosts, nil
}

// overfull reports whether a pod on the node states more device memory than a GPU of the node has. A plan then trusts few of the other replicas of the node, which
// the scheduler would give away.
func (scene *Scene) overfull(s *Scenario, node *corev1.Node) bool {
	m := records.Machine{Node: node, Promise: facts.PromiseOf(node.Annotations)}
	for i := range s.InstanceTypes {
		if t := &s.InstanceTypes[i]; t.Name == node.Labels[corev1.LabelInstanceTypeStable] {
			m.Type = t
		}
	}
	return slices.ContainsFunc(scene.Pods, func(pod corev1.Pod) bool {
		return pod.Spec.NodeName == node.Name && facts.MemoryProblem(&pod, m.GPUMiB()) != ""
	})
}

// attachable gives a new node the volume limit of other nodes of its type.
func (scene *Scene) attachable(s *Scenario, name string) {
	typeOf := map[string]string{}
	for _, node := range slices.Concat(scene.Nodes, scene.Fresh) {
		typeOf[node.Name] = node.Labels[corev1.LabelInstanceTypeStable]
	}
	var like *storagev1.CSINode
	for i := range s.CSINodes {
		other := &s.CSINodes[i]
		if typeOf[other.Name] == typeOf[name] && (like == nil || limitOf(other) < limitOf(like)) {
			like = other
		}
	}
	if like != nil {
		own := like.DeepCopy()
		own.Name = name
		scene.CSINodes = append(scene.CSINodes, *own)
	}
}

func limitOf(node *storagev1.CSINode) int32 { return *node.Spec.Drivers[0].Allocatable.Count }

func (scene *Scene) place(o *Outcome, pods []string, node string) {
	for _, name := range pods {
		if o.View.Pods[name] == nil {
			o.complain("unknown pod", "the plan speaks of %s, which the cluster does not have", name)
			continue
		}
		scene.Place = append(scene.Place, ScenePlacement{Pod: waiting(o.View.Pods[name]), Node: node})
	}
}

// waiting returns the pending pod. For a pod that runs where it cannot stay, it returns its replacement.
func waiting(pod *corev1.Pod) *corev1.Pod {
	if pod.Spec.NodeName == "" {
		return pod
	}
	successor := pod.DeepCopy()
	successor.Spec.NodeName, successor.Status = "", corev1.PodStatus{}
	return successor
}

// stillLaunchable returns the offerings that could be launched in addition to the plan, as far as the scheduler's rules go: their pool is open and
// within its limits. It excludes pools with minValues: their claims must leave a choice, which the scheduler does not know.
func stillLaunchable(view *snapshot.View, plan planner.Plan) []int {
	left := make([]planner.Physical, len(view.Pools))
	for i, pool := range view.Snapshot.Pools {
		left[i] = pool.Remaining
	}
	for _, l := range plan.Launches {
		o := view.Snapshot.Offerings[l.Offering]
		left[o.Pool] = less(left[o.Pool], o.Physical)
	}
	var still []int
	for i, o := range view.Snapshot.Offerings {
		pool := &view.Snapshot.Pools[o.Pool]
		after := less(left[o.Pool], o.Physical)
		if pool.Closed == nil && o.Unavailable == nil && len(pool.MinValues) == 0 &&
			min(after.MilliCPU, after.MemoryBytes, after.GPUs, after.Replicas, after.Nodes) >= 0 {
			still = append(still, i)
		}
	}
	return still
}

func less(a, b planner.Physical) planner.Physical {
	minus := func(a, b int64) int64 {
		if a == planner.Unlimited {
			return a
		}
		return a - b
	}
	return planner.Physical{
		MilliCPU: minus(a.MilliCPU, b.MilliCPU), MemoryBytes: minus(a.MemoryBytes, b.MemoryBytes), GPUs: minus(a.GPUs, b.GPUs),
		Replicas: minus(a.Replicas, b.Replicas), Nodes: minus(a.Nodes, b.Nodes),
	}
}

// isImpossible reports whether the scheduler should find no node for a pod either. The scheduler does not know GPU memory, what Karve leaves to
// Karpenter, what an administrator forbids, and what Karve does not support.
func isImpossible(view *snapshot.View, u planner.Unplaced) bool {
	if slices.Contains([]planner.Reason{planner.ReasonLeftToKarpenter, planner.ReasonRequestsAboveOne, planner.ReasonUnsupported}, u.Reason) {
		return false
	}
	forbids := slices.ContainsFunc(view.Pools, func(p snapshot.Pool) bool { return p.Class != nil && p.Class.Spec.Sharing.RefusesAboveOne() })
	class := slices.IndexFunc(view.Classes, func(c planner.Class) bool { return slices.Contains(c.Pods, u.Pod) })
	// A topology spread counts all matching pods in the end, wherever they are. The scheduler admits pods that are counted but have no such constraint
	// once those that have it are placed. It does not count them on machines to which the latter cannot go. The plan leaves out some of both.
	strangers := slices.ContainsFunc(view.Rules, func(r planner.Rule) bool {
		return r.Kind == planner.Spread && !slices.Equal(r.Counted, r.Classes) && (slices.Contains(r.Counted, class) || slices.Contains(r.Classes, class))
	})
	return view.Classes[class].GPUMemoryBytes == 0 && !strangers && (!forbids || view.Classes[class].Requests.Replicas <= 1)
}

// sharesVolume reports whether another pod uses a volume of the pod. A plan counts each use as one more volume to attach.
func sharesVolume(s *Scenario, pod *corev1.Pod) bool {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil && slices.ContainsFunc(s.Pods, func(other corev1.Pod) bool {
			return other.Namespace == pod.Namespace && other.Name != pod.Name && slices.ContainsFunc(other.Spec.Volumes, func(o corev1.Volume) bool {
				return o.PersistentVolumeClaim != nil && *o.PersistentVolumeClaim == *v.PersistentVolumeClaim
			})
		}) {
			return true
		}
	}
	return false
}

func refusalOf(plan planner.Plan, pod string) planner.Refusal {
	for _, u := range plan.Unplaced {
		if u.Pod == pod {
			return u.Refusal
		}
	}
	return planner.Refusal{}
}

// daemonPod returns a pod as the DaemonSet controller and the API server create it.
func daemonPod(ds *appsv1.DaemonSet) *corev1.Pod {
	spec := ds.Spec.Template.Spec.DeepCopy()
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			requests := corev1.ResourceList{}
			maps.Copy(requests, containers[i].Resources.Limits)
			maps.Copy(requests, containers[i].Resources.Requests)
			containers[i].Resources.Requests = requests
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ds.Namespace, Name: ds.Name, UID: types.UID("daemon-" + ds.Name), Labels: ds.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: ds.Name, Controller: new(true)}},
		},
		Spec: *spec,
	}
}
