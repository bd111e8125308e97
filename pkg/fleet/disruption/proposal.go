package disruption

import (
	"slices"
	"strings"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/layout"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
	"karve.sh/karve/pkg/planner/solve"
)

// A cheaper layout is reached in steps. A step is a set of machines: without them, the other machines cost less per hour, including those that are
// launched for their pods. A step begins once the waste without it pays for the restarts of its pods (account.go). To begin a step, Karve only marks the
// machines together. The rest is the same as for all machines that are replaced, and each machine keeps its mark as long as removing it still saves.

// Proposal is a step to a cheaper layout.
type Proposal struct {
	// Claims has the NodeClaims of the machines, sorted.
	Claims []string
	// Pods has the sorted names of their pods, and Restarts their restart costs by GPUNodeClass.
	Pods     []string
	Restarts map[string]planner.MicroUSD
	// Found is the hourly saving on top of the search's other proposals, without most constraints of the pods. Saving is the saving that counts: Found, or
	// less if a plan with all constraints finds less. It is 0 if unknown.
	Found, Saving planner.MicroUSD
}

func (p Proposal) String() string { return strings.Join(p.Claims, " ") }

// same reports whether two proposals remove the same machines.
func (p Proposal) same(o Proposal) bool { return slices.Equal(p.Claims, o.Claims) }

func (p Proposal) cost() (sum planner.MicroUSD) {
	for _, cost := range p.Restarts {
		sum += cost
	}
	return sum
}

// Found is what a search for a cheaper layout has found.
type Found struct {
	// Proposals are steps, the most promising first. Constraints between pods are checked before a step begins.
	Proposals []Proposal
	// Surplus has the NodeClaims of the surplus machines, which the cheapest layout does not need.
	Surplus []string
	// Price is the hourly price of the layout's machines. Bound is a lower bound on the price of any machines for the same pods.
	Price, Bound planner.MicroUSD
}

// with merges the result of a search among the machines in claims. It drops earlier results about any of them.
func (f Found) with(claims []string, found Found) Found {
	again := map[string]bool{}
	for _, claim := range claims {
		again[claim] = true
	}
	isAgain := func(claim string) bool { return again[claim] }
	proposals := slices.DeleteFunc(slices.Clone(f.Proposals), func(p Proposal) bool { return slices.ContainsFunc(p.Claims, isAgain) })
	surplus := slices.DeleteFunc(slices.Clone(f.Surplus), isAgain)
	return Found{Proposals: slices.Concat(found.Proposals, proposals), Surplus: slices.Concat(found.Surplus, surplus)}
}

// Resident describes a machine of a layout.
type Resident struct {
	// Claim is the name of its NodeClaim, and Class that of its GPUNodeClass.
	Claim, Class string
	// Room reports whether it has free replicas.
	Room bool
	// Restarts has the restart costs of its pods, in the order of the layout.
	Restarts []planner.MicroUSD
}

// Propose returns the steps of a search for a cheaper layout, given the machines of the layout. The steps of the search follow in the order of the proposals.
func Propose(l consolidate.Layout, residents []Resident, found consolidate.Outlook) (out Found, steps []consolidate.Step) {
	out = Found{Price: found.Price, Bound: found.Bound, Surplus: surplusOf(l, residents, found)}
	for _, step := range found.Steps {
		p := Proposal{Found: step.Saving, Restarts: map[string]planner.MicroUSD{}}
		for _, i := range step.Leave {
			if len(l.Machines[i].Pods) == 0 {
				continue // It has no pods, or they are ending. Unused machines are deleted, if at all, when they have been idle long enough.
			}
			p.Claims = append(p.Claims, residents[i].Claim)
			p.Restarts[residents[i].Class] += 0
			for n, cost := range residents[i].Restarts {
				p.Restarts[residents[i].Class] += cost
				p.Pods = append(p.Pods, l.Machines[i].Pods[n].Name)
			}
		}
		if len(p.Claims) > 0 {
			slices.Sort(p.Claims)
			slices.Sort(p.Pods)
			out.Proposals, steps = append(out.Proposals, p), append(steps, step)
		}
	}
	return out, steps
}

// surplusOf returns the machines that the cheapest layout does not need. There are none if nothing can be cheaper, or if no other machine has room to steer
// pods to.
func surplusOf(l consolidate.Layout, residents []Resident, found consolidate.Outlook) []string {
	if found.Price <= found.Bound {
		return nil
	}
	claims, room := map[int]string{}, false
	for i := range l.Machines {
		claims[l.Machines[i].Node] = residents[i].Claim
		room = room || residents[i].Room && !slices.Contains(found.Surplus, l.Machines[i].Node)
	}
	if !room {
		return nil
	}
	var surplus []string
	for _, node := range found.Surplus {
		if claim, ok := claims[node]; ok {
			surplus = append(surplus, claim)
		}
	}
	return surplus
}

func propose(l *layout.Layout, search solve.Solver) Found {
	residents := make([]Resident, len(l.Machines))
	for i, m := range l.Machines {
		residents[i] = Resident{
			Claim: m.Claim.Name, Class: l.View.Pools[l.Layout.Machines[i].Pool].Class.Name, Room: m.Exposed() > m.ReplicasInUse(), Restarts: l.Restarts[i],
		}
	}
	found, _ := Propose(l.Layout, residents, consolidate.Plan(search, l.Layout))
	return found
}

func usd(amount planner.MicroUSD) string { return v1alpha1.FormatUSD(int64(amount)) }
