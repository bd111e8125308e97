// Package bill divides the price of a node among the pods that hold its replicas. All amounts are micro-dollars per hour, and a bill always adds up to the price of
// the node.
package bill

import (
	"cmp"
	"math/bits"
)

// Split divides the price of a node, in micro-dollars per hour, among pods. held is the number of the node's replicas that each pod holds. Split
// returns the share of each pod, and idle, the price of the replicas that no pod holds. The shares and idle add up to the price.
//
// Shares are rounded down. The remainder is less than a micro-dollar for each pod. It goes to idle if a replica is free, and otherwise to the first pod
// that holds any. If pods hold more replicas than the node has, the price is divided by the number of held replicas. Negative numbers count as 0.
func Split(price, replicas int64, held []int64) (shares []int64, idle int64) {
	price, replicas = max(0, price), max(0, replicas)
	var taken int64
	for _, n := range held {
		taken = plus(taken, max(0, n))
	}
	all := max(replicas, taken)
	shares, idle = make([]int64, len(held)), price
	for i, n := range held {
		shares[i] = part(price, max(0, n), all)
		idle -= shares[i]
	}
	if taken < all || taken == 0 {
		return shares, idle
	}
	for i, n := range held {
		if n > 0 {
			shares[i] += idle
			return shares, 0
		}
	}
	return shares, idle
}

// part returns price * n / all, rounded down. n is at most all.
func part(price, n, all int64) int64 {
	if n == 0 {
		return 0
	}
	high, low := bits.Mul64(uint64(price), uint64(n)) // Neither is negative.
	quotient, _ := bits.Div64(high, low, uint64(all)) // high < all, because n ≤ all.
	return int64(quotient)
}

// plus adds without overflow.
func plus(a, b int64) int64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return 1<<63 - 1
}

// Node is a machine with its price and the holders of its replicas.
type Node struct {
	// Name is the name of the Node. It is "" for a machine that has no Node yet, and for a canary: their prices count in a [Ledger] only.
	Name                             string
	NodePool, GPUNodeClass           string
	InstanceType, CapacityType, Zone string
	// MicroUSDPerHour is the price of the node, and ListMicroUSDPerHour that in the cloud's list, or 0 if it is the same. Replicas is its number of replicas, or another number of equal parts, such as its device memory in MiB.
	MicroUSDPerHour, ListMicroUSDPerHour, Replicas int64
	// TakesPods reports whether pods may come to its free replicas. They may not while it starts, is cordoned or drained, and until it is gone.
	TakesPods bool
	// Holders are the pods that hold replicas, in a stable order.
	Holders []Holder
}

// Holder is a pod that holds replicas of a node.
type Holder struct {
	Namespace, Name string
	// Owner is the workload that created the pod.
	Owner Owner
	// Daemon reports that the pod belongs to the node: that of a DaemonSet, or a static pod.
	Daemon bool
	// Labels are the values of the labels by which costs are divided, in their order. They are "" for labels that the pod does not have.
	Labels   []string
	Replicas int64
}

// Owner is a workload in a namespace. It is the pod itself for a pod without one.
type Owner struct{ Kind, Name string }

// Split divides the price of the node among its holders: see the function [Split].
func (n *Node) Split() (shares []int64, idle int64) {
	held := make([]int64, len(n.Holders))
	for i, h := range n.Holders {
		held[i] = h.Replicas
	}
	return Split(n.MicroUSDPerHour, n.Replicas, held)
}

// Listed returns the node at its price in the cloud's list.
func (n *Node) Listed() Node {
	at := *n
	at.MicroUSDPerHour = cmp.Or(n.ListMicroUSDPerHour, n.MicroUSDPerHour)
	return at
}
