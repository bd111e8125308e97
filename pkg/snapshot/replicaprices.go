package snapshot

import (
	"cmp"
	"maps"
	"slices"
)

// ReplicaPrice is what one replica of a model of GPU costs, in micro-dollars per hour.
type ReplicaPrice struct {
	// GPUName is the name of the GPU, as in the label karpenter.k8s.aws/instance-gpu-name.
	GPUName, CapacityType string
	// MicroUSDPerHour is the price that is paid, and ListMicroUSDPerHour that of the same machine in the cloud's list.
	MicroUSDPerHour, ListMicroUSDPerHour int64
}

// ReplicaPrices returns, for each model of GPU and capacity type of the pool, the lowest price of a replica on a machine all of whose replicas are held, sorted by name and
// capacity type. Prices that only a limited number of machines have do not count, and neither does whether the cloud refuses an offering now.
func (p *Pool) ReplicaPrices() []ReplicaPrice {
	type model struct{ gpu, capacityType string }
	least := map[model]ReplicaPrice{}
	for i := range p.Offerings {
		o := &p.Offerings[i]
		replicas := o.Free().Replicas
		if o.limited != nil || replicas <= 0 || o.Type.GPU.Name == "" {
			continue
		}
		each := ReplicaPrice{o.Type.GPU.Name, o.CapacityType, o.MicroUSDPerHour / replicas, o.ListMicroUSDPerHour / replicas}
		of := model{each.GPUName, each.CapacityType}
		if known, ok := least[of]; !ok || each.MicroUSDPerHour < known.MicroUSDPerHour {
			least[of] = each
		}
	}
	return slices.SortedFunc(maps.Values(least), func(a, b ReplicaPrice) int {
		return cmp.Or(cmp.Compare(a.GPUName, b.GPUName), cmp.Compare(a.CapacityType, b.CapacityType))
	})
}
