package pool

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/snapshot/records"
)

// bills returns the nodes of the machines, with their prices and the holders of their replicas. Machines that have not registered have no node yet.
func bills(machines []records.Machine) []bill.Node {
	var nodes []bill.Node
	for i := range machines {
		m := &machines[i]
		if m.Node == nil {
			continue
		}
		n := bill.Node{Name: m.Node.Name, NodePool: m.Pool(), MicroUSDPerHour: m.Promise.MicroUSDPerHour, Replicas: m.Shares()}
		n.InstanceType, n.Zone, n.CapacityType = records.ShapeOf(m.Claim)
		for _, pod := range m.Pods {
			if held := m.SharesOf(pod); held > 0 {
				n.Holders = append(n.Holders, bill.Holder{Namespace: pod.Namespace, Name: pod.Name, Replicas: held})
			}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// limits returns the limits of a pool whose status is up to date.
func limits(np *karpv1.NodePool) map[string]metrics.Limit {
	all := map[string]metrics.Limit{}
	for name, limit := range np.Spec.Limits {
		all[string(name)] = metrics.Limit{Limit: number(name, limit), Used: number(name, np.Status.Resources[name])}
	}
	return all
}

// number converts a quantity to cores, bytes or pieces.
func number(name corev1.ResourceName, q resource.Quantity) float64 {
	if name == corev1.ResourceCPU {
		return float64(amount.Milli(q)) / 1000
	}
	return float64(amount.Value(q))
}
