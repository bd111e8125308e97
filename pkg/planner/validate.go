package planner

import (
	"errors"
	"fmt"
)

// Validate returns the violations of a snapshot: indices out of range, impossible amounts, repeated names. It returns nil if the snapshot is valid.
func Validate(s Snapshot) error {
	var errs []error
	quotas := map[string]bool{}
	for i, q := range s.Quotas {
		bad := about(&errs, Violation{})
		if quotas[q.Name] {
			bad("quota %d: the name %q repeats", i, q.Name)
		}
		quotas[q.Name] = true
		if q.Each < 0 {
			bad("quota %d: each machine has less than nothing of it", i)
		}
	}
	names := map[string]bool{}
	for i, pool := range s.Pools {
		bad := about(&errs, Violation{Pools: []int{i}})
		if names[pool.Name] {
			bad("pool %d: the name %q repeats", i, pool.Name)
		}
		names[pool.Name] = true
		if pool.MaxPremium < 0 {
			bad("pool %d: alternatives would have to be cheaper", i)
		}
	}
	for i, x := range s.Stocks {
		bad := about(&errs, Violation{Stocks: []int{i}})
		if i > 0 && s.Stocks[i-1].Name >= x.Name {
			bad("stock %d: the name %q repeats or is not sorted", i, x.Name)
		}
		if x.Left < 0 || x.Left > MaxAmount {
			bad("stock %d: what is left, %d, is not within 0 and %d", i, x.Left, MaxAmount)
		}
	}
	for i := range s.Offerings {
		errs = append(errs, validateOffering(s, i)...)
	}
	nodes := map[string]bool{}
	for i, n := range s.Nodes {
		concerns := Violation{Nodes: []int{i}}
		bad := about(&errs, concerns)
		if nodes[n.Name] {
			bad("node %d: the name %q repeats", i, n.Name)
		}
		nodes[n.Name] = true
		if n.Free.negative() {
			bad("node %d: free capacity is negative", i)
		}
		errs = append(errs, validateMachine(s, concerns, fmt.Sprintf("node %d", i), n.GPUs, n.Quotas, n.Domains)...)
	}
	errs = append(errs, validateClasses(s)...)
	errs = append(errs, validateRules(s)...)
	errs = append(errs, validateGroups(s)...)
	return errors.Join(errs...)
}

func validateOffering(s Snapshot, i int) []error {
	var errs []error
	concerns := Violation{Offerings: []int{i}}
	bad := about(&errs, concerns)
	o := s.Offerings[i]
	if o.Pool < 0 || o.Pool >= len(s.Pools) {
		bad("offering %d: there is no pool %d", i, o.Pool)
	}
	validatePrices(o, i, bad)
	if o.Free.negative() {
		bad("offering %d: free capacity is negative", i)
	}
	p := o.Physical
	if min(p.MilliCPU, p.MemoryBytes, p.GPUs, p.Replicas) < 0 || p.Nodes != 1 {
		bad("offering %d: physical amounts are negative or not those of one machine", i)
	}
	for j, d := range o.Draws {
		if d.Stock < 0 || d.Stock >= len(s.Stocks) || d.Amount < 1 || d.Amount > MaxAmount || j > 0 && o.Draws[j-1].Stock >= d.Stock {
			bad("offering %d: draws from stocks that do not exist or are not sorted, or amounts that are not within 1 and %d", i, MaxAmount)
		}
	}
	errs = append(errs, validateMachine(s, concerns, fmt.Sprintf("offering %d", i), o.GPUs, o.Quotas, o.Domains)...)
	var replicas int64
	for _, g := range o.GPUs {
		replicas += max(0, min(g.Replicas, Unlimited-replicas))
	}
	if len(o.GPUs) > 0 && replicas != o.Free.Replicas {
		bad("offering %d: its GPUs have %d replicas, the machine has %d", i, replicas, o.Free.Replicas)
	}
	return errs
}

func validatePrices(o Offering, i int, bad func(string, ...any)) {
	if o.ListPrice < 0 || o.ListPrice > MaxPrice {
		bad("offering %d: the list price %d is not within 0 and %d", i, o.ListPrice, int64(MaxPrice))
	}
	if o.Surcharge < 0 || o.Surcharge >= max(1, o.Price) {
		bad("offering %d: the surcharge %d is not within 0 and the price %d", i, o.Surcharge, o.Price)
	}
	if o.Price <= 0 || o.Price > MaxPrice {
		bad("offering %d: the price %d is not within 1 and %d", i, o.Price, int64(MaxPrice))
	}
}

// validateMachine checks what offerings and nodes have in common: GPUs, quotas and domains.
func validateMachine(s Snapshot, concerns Violation, what string, gpus []GPU, quotas []Amount, domains []int) []error {
	var errs []error
	bad := about(&errs, concerns)
	for i, g := range gpus {
		if g.Replicas < 0 || g.MemoryBytes < 0 {
			bad("%s: GPU %d has less than nothing", what, i)
		}
	}
	if !amounts(quotas, len(s.Quotas)) {
		bad("%s: quotas are not sorted, repeat, are out of range, or negative", what)
	}
	if len(domains) > len(s.Topologies) {
		bad("%s: has domains of %d topologies, there are %d", what, len(domains), len(s.Topologies))
		domains = domains[:len(s.Topologies)]
	}
	for t, d := range domains {
		if d < -1 || d >= len(s.Topologies[t].Domains) {
			bad("%s: topology %s has no domain %d", what, s.Topologies[t].Key, d)
		}
	}
	return errs
}

// amounts reports whether xs are amounts ≥ 0 of n quotas, sorted and at most one for each quota.
func amounts(xs []Amount, n int) bool {
	for i, x := range xs {
		if x.Quota < 0 || x.Quota >= n || x.Count < 0 || i > 0 && xs[i-1].Quota >= x.Quota {
			return false
		}
	}
	return true
}

func validateClasses(s Snapshot) []error {
	var errs []error
	pods := map[string]int{}
	for i, c := range s.Classes {
		bad := about(&errs, Violation{Classes: []int{i}})
		if c.Requests.negative() || c.Requests.Pods != 1 {
			bad("class %d: requests are negative or not those of one pod", i)
		}
		if c.GPUMemoryBytes < 0 {
			bad("class %d: device memory is negative", i)
		}
		if !amounts(c.Quotas, len(s.Quotas)) {
			bad("class %d: quotas are not sorted, repeat, are out of range, or negative", i)
		}
		if !ascending(c.Pods) {
			bad("class %d: pods are not sorted or repeat", i)
		}
		for _, pod := range c.Pods {
			if first, ok := pods[pod]; ok && first != i {
				bad("class %d: pod %s is in class %d as well", i, pod, first)
			}
			pods[pod] = i
		}
		if !indices(c.Offerings, len(s.Offerings)) {
			bad("class %d: offerings are not sorted, repeat, or are out of range", i)
		}
		if !indices(c.Nodes, len(s.Nodes)) {
			bad("class %d: nodes are not sorted, repeat, or are out of range", i)
		}
	}
	return errs
}

func validateGroups(s Snapshot) []error {
	var errs []error
	names, groupOf := map[string]bool{}, map[int]int{}
	for i, g := range s.Groups {
		bad := about(&errs, Violation{Groups: []int{i}})
		if names[g.Name] {
			bad("group %d: the name %q repeats", i, g.Name)
		}
		names[g.Name] = true
		if g.Min < 1 {
			bad("group %d: needs fewer pods than one", i)
		}
		if !indices(g.Classes, len(s.Classes)) {
			bad("group %d: classes are not sorted, repeat, or are out of range", i)
		}
		for _, c := range g.Classes {
			if first, ok := groupOf[c]; ok && first != i {
				bad("group %d: class %d is in group %d as well", i, c, first)
			}
			groupOf[c] = i
		}
	}
	return errs
}

// indices reports whether xs are indices of n items, sorted and unique.
func indices(xs []int, n int) bool {
	return ascending(xs) && (len(xs) == 0 || xs[0] >= 0 && xs[len(xs)-1] < n)
}

// ascending reports whether xs is sorted and unique.
func ascending[T string | int](xs []T) bool {
	for i := 1; i < len(xs); i++ {
		if xs[i-1] >= xs[i] {
			return false
		}
	}
	return true
}
