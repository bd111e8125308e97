package pool

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// bills returns what machines and canaries cost, from their launch until they are gone, with the holders of their replicas. labels are the keys by whose values
// costs are divided.
func bills(machines, canaries []records.Machine, labels []string) []bill.Node {
	var nodes []bill.Node
	for i := range machines {
		if n := billOf(&machines[i], labels); n != nil {
			nodes = append(nodes, *n)
		}
	}
	for i := range canaries {
		if n := billOf(&canaries[i], labels); n != nil {
			n.Name = ""
			nodes = append(nodes, *n)
		}
	}
	return nodes
}

// billOf returns what a machine costs, or nil before the cloud has launched it.
func billOf(m *records.Machine, labels []string) *bill.Node {
	if m.Node == nil && !m.Launched() {
		return nil
	}
	n := &bill.Node{
		NodePool: m.Pool(), GPUNodeClass: m.Claim.Labels[v1alpha1.GPUNodeClassLabel],
		MicroUSDPerHour: m.Promise.MicroUSDPerHour, ListMicroUSDPerHour: m.Promise.ListMicroUSDPerHour, Replicas: m.Shares(),
	}
	n.InstanceType, n.Zone, n.CapacityType = records.ShapeOf(m.Claim)
	if m.Node != nil {
		n.Name, n.TakesPods = m.Node.Name, m.Started() && !m.Leaving() && facts.TakesPods(m.Node)
	}
	for _, pod := range m.Pods {
		held := m.SharesOf(pod)
		if held <= 0 {
			continue
		}
		h := bill.Holder{Namespace: pod.Namespace, Name: pod.Name, Daemon: !facts.IsWorkload(pod), Replicas: held}
		h.Owner.Kind, h.Owner.Name = facts.OwnerOf(pod)
		for _, key := range labels {
			h.Labels = append(h.Labels, pod.Labels[key])
		}
		n.Holders = append(n.Holders, h)
	}
	return n
}

// limits returns the limits of a pool whose status is up to date.
func limits(np *karpv1.NodePool) map[string]metrics.Limit {
	all := map[string]metrics.Limit{}
	for name, limit := range np.Spec.Limits {
		all[string(name)] = metrics.Limit{Limit: limitAmount(name, limit), Used: limitAmount(name, np.Status.Resources[name])}
	}
	return all
}

// limitAmount converts a quantity to cores, bytes or pieces.
func limitAmount(name corev1.ResourceName, q resource.Quantity) float64 {
	if name == corev1.ResourceCPU {
		return float64(amount.Milli(q)) / 1000
	}
	return float64(amount.Value(q))
}
