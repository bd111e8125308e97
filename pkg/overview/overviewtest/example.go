// Package overviewtest has a cluster with nodes in all states, for tests of code that shows overviews.
package overviewtest

import (
	"fmt"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// Now is the time of the cluster.
var Now = snapshottest.Now

// Example returns a cluster with the NodePool gpu-shared, nodes of Karve in different states, a node that Karve did not launch, and pending pods.
//
// busy has a report of its agent, and so does idle, which leaves in two minutes. silent has no agent, and the report of stale is an hour old. crowded
// has too many pods for a report that names them, and the report of garbled cannot be read. quad has four GPUs, of which one is out of service and one
// is cordoned. starting has no Node yet, and sick is not ready. other was not launched by Karve.
func Example() *facts.Cluster {
	t := example{snapshottest.Shared()}
	t.node("busy", 3*time.Hour)
	t.pod("team", "infer-0", "busy", 2, "4Gi")
	t.pod("team", "infer-1", "busy", 1, "4Gi")
	t.pod("lab", "notebook-0", "busy", 1, "")
	t.report("busy", 0, holder("team/infer-0", 0, 4), holder("team/infer-1", 1), holder("lab/notebook-0", 7))
	t.annotate("busy", nodecontract.UnusedSinceAnnotation, nodecontract.UnusedReport{
		AsOf: Now.Add(-time.Minute), Since: map[string]time.Time{"lab/notebook-0": Now.Add(-191 * time.Minute)},
	}.String())

	t.node("idle", 26*time.Hour)
	t.report("idle", 0)
	t.annotate("idle", v1alpha1.IdleSinceAnnotation, Now.Add(-3*time.Minute).Format(time.RFC3339))

	t.node("silent", time.Hour)
	t.pod("team", "train-0", "silent", 5, "")

	t.node("stale", time.Hour)
	t.pod("team", "train-1", "stale", 1, "1536Mi")
	t.report("stale", time.Hour, holder("team/gone", 3))

	t.node("crowded", time.Hour)
	t.pod("team", "many-0", "crowded", 10, "")
	r := reportOf("crowded", 0, holder("team/many-0", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
	r.GPUs[0].Holders, r.Truncated = nil, true
	t.annotate("crowded", nodecontract.HoldersAnnotation, r.String())

	t.node("garbled", time.Hour)
	t.annotate("garbled", nodecontract.HoldersAnnotation, "{")

	t.quad()
	t.claim("starting", "g4dn.xlarge", 40*time.Second)

	t.node("sick", time.Hour)
	t.report("sick", 0)
	t.edit("sick", func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(Now.Add(-4 * time.Minute))}}
	})

	t.Nodes = append(t.Nodes, corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "other", CreationTimestamp: metav1.NewTime(Now.Add(-100 * time.Hour)),
			Labels: map[string]string{nodecontract.GPUCountLabel: "1", nodecontract.GPUMemoryLabel: "23028", corev1.LabelInstanceTypeStable: "g5.xlarge"},
		},
		Status: corev1.NodeStatus{Allocatable: snapshottest.Amounts(v1alpha1.ResourceGPUShared, "4")},
	})
	t.pod("team", "old-0", "other", 1, "")
	t.waits("later", time.Minute, "2Gi")
	t.waits("first", 5*time.Minute, "")
	return t.Cluster
}

type example struct{ *facts.Cluster }

// node adds a node with one GPU and ten replicas that has started.
func (t example) node(name string, age time.Duration) { t.started(name, "g4dn.xlarge", age) }

func (t example) started(name, instanceType string, age time.Duration) {
	machine := snapshottest.TypeNamed(instanceType)
	claim := t.claim(name, instanceType, age, snapshottest.Initialized(Now.Add(-age)))
	node := snapshottest.Node(claim, machine, 10*machine.GPU.Count, func(n *corev1.Node) {
		n.Labels[nodecontract.GPUMemoryLabel] = "15360"
		n.CreationTimestamp = claim.CreationTimestamp
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	})
	t.Nodes = append(t.Nodes, node)
}

func (t example) claim(name, instanceType string, age time.Duration, edits ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	claim := snapshottest.Claim(name, &t.NodePools[0], snapshottest.TypeNamed(instanceType), edits...)
	claim.CreationTimestamp = metav1.NewTime(Now.Add(-age))
	t.NodeClaims = append(t.NodeClaims, claim)
	return &t.NodeClaims[len(t.NodeClaims)-1]
}

// quad adds a node with four GPUs. One of them is out of service, and one is cordoned.
func (t example) quad() {
	t.started("quad", "g4dn.12xlarge", 49*time.Hour)
	t.pod("team", "wide-0", "quad", 3, "2Gi")
	r := nodecontract.HoldersReport{AsOf: Now.Add(-time.Minute)}
	for i := range 4 {
		r.GPUs = append(r.GPUs, reportOf("quad-"+strconv.Itoa(i), 0).GPUs[0])
		r.GPUs[i].Index = i
	}
	r.GPUs[0].Held, r.GPUs[0].Holders = 2, []nodecontract.GPUHolder{holder("team/wide-0", 0, 1)}
	r.GPUs[3].Held, r.GPUs[3].Holders = 1, []nodecontract.GPUHolder{holder("team/wide-0", 9)}
	r.GPUs[1].Health, r.GPUs[2].Health = nodecontract.GPUCordoned, nodecontract.GPUOutOfService
	t.edit("quad", snapshottest.CordonedGPUs(20))
	t.annotate("quad", nodecontract.HoldersAnnotation, r.String())
}

func (t example) pod(namespace, name, node string, replicas int, memory string) {
	pod := snapshottest.Pod(name, snapshottest.Asking("cpu", "300m", v1alpha1.ResourceGPUShared, strconv.Itoa(replicas)), snapshottest.Running(node))
	pod.Namespace, pod.CreationTimestamp = namespace, metav1.NewTime(Now.Add(-4*time.Hour))
	pod.Status.StartTime = new(metav1.NewTime(Now.Add(-4 * time.Hour)))
	if memory != "" {
		snapshottest.GPUMemory(memory)(&pod)
	}
	t.Pods = append(t.Pods, pod)
}

func (t example) waits(name string, since time.Duration, memory string) {
	pod := snapshottest.Pod(name)
	pod.CreationTimestamp = metav1.NewTime(Now.Add(-since))
	if memory != "" {
		snapshottest.GPUMemory(memory)(&pod)
	}
	t.Pods = append(t.Pods, pod)
}

func (t example) edit(node string, edit func(*corev1.Node)) {
	for i := range t.Nodes {
		if t.Nodes[i].Name == node {
			edit(&t.Nodes[i])
			return
		}
	}
	panic(fmt.Sprintf("there is no node %s", node))
}

func (t example) annotate(node, key, value string) {
	t.edit(node, func(n *corev1.Node) {
		n.Annotations = maps.Clone(n.Annotations)
		n.Annotations[key] = value
	})
}

// report adds the report of an agent that last looked a minute before the age.
func (t example) report(node string, age time.Duration, holders ...nodecontract.GPUHolder) {
	t.annotate(node, nodecontract.HoldersAnnotation, reportOf(node, age, holders...).String())
}

func reportOf(name string, age time.Duration, holders ...nodecontract.GPUHolder) nodecontract.HoldersReport {
	g := nodecontract.HeldGPU{UUID: "GPU-" + name, Product: "Tesla T4", MemoryMiB: 15360, Replicas: 10, Health: nodecontract.GPUInService, Holders: holders}
	for _, h := range holders {
		g.Held += len(h.IDs)
	}
	return nodecontract.HoldersReport{AsOf: Now.Add(-age - time.Minute), GPUs: []nodecontract.HeldGPU{g}}
}

func holder(pod string, ids ...int) nodecontract.GPUHolder {
	return nodecontract.GPUHolder{Pod: pod, Container: "main", IDs: ids}
}
