package claims

import (
	"fmt"
	"maps"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/words"
)

// partition groups the requests of a claim. Requests in a group have the same number, which is the index of one of them.
type partition []int

func newPartition(n int) partition {
	p := make(partition, n)
	for i := range p {
		p[i] = i
	}
	return p
}

func (p partition) joinAll(members []int) {
	for _, m := range members {
		was, is := p[m], p[members[0]]
		for i := range p {
			if p[i] == was {
				p[i] = is
			}
		}
	}
}

// setsOf returns the sets of GPUs that a claim requests, and which requests are on the same GPU. Requests without a constraint are separate sets. If
// constraints on different GPUs overlap, all of those GPUs are in one set, which is stricter than the claim.
func setsOf(f *podClaim, d *driver, shares []Share) (sets []Set, same partition, refusal string) {
	same, apart := newPartition(len(shares)), newPartition(len(shares))
	for _, c := range f.spec.Devices.Constraints {
		has := func(name *resourcev1.FullyQualifiedName, all []string) bool {
			return name != nil && slices.Contains(all, string(*name))
		}
		of := constrainedRequests(f, c)
		switch {
		case has(c.MatchAttribute, d.alike):
		case has(c.MatchAttribute, d.unique):
			if slices.ContainsFunc(of, func(i int) bool { return shares[i].GPUs > 1 }) {
				return nil, nil, fmt.Sprintf("%s has matchAttribute %s for a request with a count above 1, whose GPUs differ: remove the constraint or the count", f.name, *c.MatchAttribute)
			}
			same.joinAll(of)
			apart.joinAll(of)
		case has(c.DistinctAttribute, d.unique):
			apart.joinAll(of)
		default:
			return nil, nil, fmt.Sprintf("%s has a constraint that Karve does not plan for: use matchAttribute with %s, or distinctAttribute with %s", f.name,
				words.Or(slices.Concat(d.alike, d.unique)), words.Or(d.unique))
		}
	}
	for _, c := range f.spec.Devices.Constraints {
		on := map[int]bool{}
		for _, i := range constrainedRequests(f, c) {
			if c.DistinctAttribute != nil && on[same[i]] {
				return nil, nil, f.name + " has matchAttribute and distinctAttribute for the same requests, which no GPUs meet: remove one of the constraints"
			}
			on[same[i]] = true
		}
	}
	joined := make([]Share, len(shares))
	for i, s := range shares {
		j := &joined[same[i]]
		*j = Share{s.GPUs, amount.Add(j.Replicas, s.Replicas), amount.Add(j.MemoryBytes, s.MemoryBytes)}
	}
	sets = make([]Set, len(shares))
	for i, s := range joined {
		if same[i] == i {
			sets[apart[i]] = append(sets[apart[i]], s)
		}
	}
	return slices.DeleteFunc(sets, func(s Set) bool { return len(s) == 0 }), same, ""
}

// byIndex reports whether a constraint is on the index of GPUs.
func byIndex(c resourcev1.DeviceConstraint) bool {
	const index = nodecontract.DRADriver + "/" + nodecontract.DRAIndex
	return c.MatchAttribute != nil && *c.MatchAttribute == index || c.DistinctAttribute != nil && *c.DistinctAttribute == index
}

func constrainedRequests(f *podClaim, c resourcev1.DeviceConstraint) []int {
	var of []int
	for i, r := range f.spec.Devices.Requests {
		if len(c.Requests) == 0 || slices.Contains(c.Requests, r.Name) {
			of = append(of, i)
		}
	}
	return of
}

// allocatedSet returns what claims have been allocated, or one replica if they have not been.
func allocatedSet(all []*podClaim) Set {
	shares := map[string]Share{}
	for _, f := range all {
		if f.claim == nil || f.claim.Status.Allocation == nil {
			continue
		}
		for _, r := range f.claim.Status.Allocation.Devices.Results {
			d := driverNamed(r.Driver)
			if d == nil || r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			s, capacity := shares[r.Device], r.ConsumedCapacity
			shares[r.Device] = Share{1, amount.Add(s.Replicas, max(1, amount.Value(capacity[d.replicas]))), amount.Add(s.MemoryBytes, amount.Value(capacity[d.memory]))}
		}
	}
	if len(shares) == 0 {
		return Set{{GPUs: 1, Replicas: 1}}
	}
	return slices.Collect(maps.Values(shares))
}
