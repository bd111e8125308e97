package bill

import "maps"

// Ledger says what machines cost at one moment, and for what. All amounts are micro-dollars per hour. Shares adds up to the prices of the machines, and so do
// the used parts in Owners, and those in Labels for each label.
type Ledger struct {
	// Shares divides the prices by what they are for.
	Shares map[Share]int64
	// Owners divides the used parts among the workloads of the pods, and Labels among the values of each label.
	Owners map[OwnerShare]int64
	Labels map[LabelShare]int64
	// Unpriced is the number of machines without a known price, which count as free of charge.
	Unpriced int
}

// Share is a part of the prices of a NodePool's machines.
type Share struct {
	NodePool, GPUNodeClass string
	For                    Purpose
}

// Purpose is what a part of a price is for.
type Purpose string

const (
	// Used is for the replicas that pods hold, without those of DaemonSets.
	Used Purpose = "used"
	// Idle is for the free replicas of machines that take pods.
	Idle Purpose = "idle"
	// Overhead is for the free replicas of machines that take none, because they start or leave, and for the replicas that DaemonSets hold.
	Overhead Purpose = "overhead"
)

// OwnerShare is the part of the prices of a NodePool's machines that a workload uses.
type OwnerShare struct {
	Namespace string
	Owner     Owner
	NodePool  string
}

// LabelShare is the part of the prices of a NodePool's machines that pods with a label use. The value is "" for pods without it.
type LabelShare struct{ Key, Value, NodePool string }

// Sum adds up the bills of machines. labels are the keys of the holders' labels. Of two machines with the same Node, the first counts.
func Sum(nodes []Node, labels []string) Ledger {
	l := Ledger{Shares: map[Share]int64{}, Owners: map[OwnerShare]int64{}, Labels: map[LabelShare]int64{}}
	seen := map[string]bool{}
	for i := range nodes {
		n := &nodes[i]
		if n.Name != "" && seen[n.Name] {
			continue
		}
		seen[n.Name] = true
		if n.MicroUSDPerHour <= 0 {
			l.Unpriced++
		}
		l.add(n, labels)
	}
	return l
}

// Discounts returns by how much the list prices of machines exceed their prices, of which l is the sum, divided like their bills. Amounts are negative where the prices are
// higher, and there are none of 0.
func (l *Ledger) Discounts(nodes []Node, labels []string) Ledger {
	listed, differs := make([]Node, len(nodes)), false
	for i := range nodes {
		listed[i] = nodes[i].Listed()
		differs = differs || listed[i].MicroUSDPerHour != nodes[i].MicroUSDPerHour
	}
	if !differs {
		return Ledger{}
	}
	at := Sum(listed, labels)
	return Ledger{Shares: less(at.Shares, l.Shares), Owners: less(at.Owners, l.Owners), Labels: less(at.Labels, l.Labels)}
}

func less[K comparable](a, b map[K]int64) map[K]int64 {
	left := maps.Clone(a)
	for key, amount := range b {
		left[key] -= amount
	}
	maps.DeleteFunc(left, func(_ K, amount int64) bool { return amount == 0 })
	return left
}

func (l *Ledger) add(n *Node, labels []string) {
	part := func(purpose Purpose, amount int64) {
		if amount > 0 {
			l.Shares[Share{n.NodePool, n.GPUNodeClass, purpose}] += amount
		}
	}
	shares, free := n.Split()
	if n.TakesPods {
		part(Idle, free)
	} else {
		part(Overhead, free)
	}
	for i, h := range n.Holders {
		if h.Daemon {
			part(Overhead, shares[i])
			continue
		}
		part(Used, shares[i])
		if shares[i] == 0 {
			continue
		}
		l.Owners[OwnerShare{h.Namespace, h.Owner, n.NodePool}] += shares[i]
		for j, key := range labels {
			value := ""
			if j < len(h.Labels) {
				value = h.Labels[j]
			}
			l.Labels[LabelShare{key, value, n.NodePool}] += shares[i]
		}
	}
}
