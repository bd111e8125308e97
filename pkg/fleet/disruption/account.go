package disruption

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
)

// Each GPUNodeClass has an account of the excess cost of its nodes. A step to a cheaper layout begins once the account covers the restarts of its pods
// (consolidate.Account). If pods of several classes move in a step, each class has a share of the saving in proportion to its restart costs.

// Account is the state of an account at a given time.
type Account struct {
	consolidate.Account
	At time.Time
}

// Accounts has the accounts of GPUNodeClasses by name.
type Accounts map[string]Account

const (
	// savedFor is how long the saving of a proposal is valid. It is computed again before the step begins.
	savedFor = time.Minute
	// wasteEvery is the shortest time between two writes of an account, except those that pay for a step.
	wasteEvery = time.Minute
)

// Look adds the waste since the last look, given the proposals that are possible now and all that are known.
func (a Accounts) Look(now time.Time, possible, known []Proposal) {
	saving, restarts := map[string]planner.MicroUSD{}, map[string]planner.MicroUSD{}
	for _, p := range possible {
		for class, share := range p.shares() {
			saving[class] += share
		}
	}
	for _, p := range known {
		for class, cost := range p.Restarts {
			restarts[class] += cost
		}
	}
	for class, account := range a {
		a[class] = Account{account.Look(now.Sub(account.At), saving[class], restarts[class]), now}
	}
}

// Answer is what is known about a proposal before it begins.
type Answer int

const (
	// Begins means that the proposal may begin.
	Begins Answer = iota
	// Refused means that something keeps it, or that it does not save.
	Refused
	// Unknown means that there is no time to find out.
	Unknown
)

// Spend pays for proposals in the given order, and returns those that begin. A class that saves up for one proposal pays for no other. may reports whether
// nothing but the cost keeps a proposal, and confirms is asked before a proposal is paid for. If its answer is unknown, no other proposal begins.
func (a Accounts) Spend(proposals []Proposal, may func(Proposal) bool, confirms func(Proposal) Answer) (begun []Proposal) {
	saves := map[string]bool{}
	for _, p := range proposals {
		if !may(p) {
			continue
		}
		if !a.covers(p, saves) {
			for class := range p.Restarts {
				saves[class] = true
			}
			continue
		}
		switch confirms(p) {
		case Unknown:
			return begun
		case Refused:
		case Begins:
			a.pay(p)
			begun = append(begun, p)
		}
	}
	return begun
}

// Ranked returns proposals in the order in which accounts pay for them.
func Ranked(proposals []Proposal) []Proposal {
	worth := make([]consolidate.Worth, len(proposals))
	for i, p := range proposals {
		worth[i] = consolidate.Worth{Saving: p.Saving, Restarts: p.cost()}
	}
	ranked := make([]Proposal, 0, len(proposals))
	for _, i := range consolidate.Ranked(worth) {
		ranked = append(ranked, proposals[i])
	}
	return ranked
}

// untilCovered returns the time until the accounts cover another of the proposals.
func (a Accounts) untilCovered(proposals []Proposal) time.Duration {
	soonest := maxWait
	for _, p := range proposals {
		wait := time.Duration(0)
		for class, cost := range p.Restarts {
			account := a[class]
			if cost > account.Wasted && account.Saving > 0 {
				wait = max(wait, time.Duration(float64(cost-account.Wasted)/float64(account.Saving)*float64(time.Hour)))
			}
		}
		if wait > 0 {
			soonest = min(soonest, max(soon, wait))
		}
	}
	return soonest
}

// covers reports whether the accounts cover a proposal. Accounts of classes that save up for other proposals do not count.
func (a Accounts) covers(p Proposal, saves map[string]bool) bool {
	for class, cost := range p.Restarts {
		if saves[class] || cost > a[class].Wasted {
			return false
		}
	}
	return true
}

// pay deducts the cost of a proposal from the accounts.
func (a Accounts) pay(p Proposal) {
	shares := p.shares()
	for class, cost := range p.Restarts {
		account := a[class]
		account.Wasted, account.Saving = account.Wasted-cost, max(0, account.Saving-shares[class])
		a[class] = account
	}
}

// shares returns the saving of a proposal by GPUNodeClass, in proportion to the restart costs. If restarts cost nothing, one class has the whole
// saving.
func (p Proposal) shares() map[string]planner.MicroUSD {
	shares, all, left := map[string]planner.MicroUSD{}, p.cost(), p.Saving
	classes := slices.Sorted(maps.Keys(p.Restarts))
	for i, class := range classes {
		share := left
		if i < len(classes)-1 && all > 0 {
			share = planner.MicroUSD(float64(p.Saving) * float64(p.Restarts[class]) / float64(all))
		}
		shares[class] = share
		left -= share
	}
	return shares
}

const (
	// listedSteps and listedNodes limit the number of steps in the status of a GPUNodeClass, and the number of NodeClaims of a step.
	listedSteps = 20
	listedNodes = 100
)

// statusOf returns the account of a GPUNodeClass for its status, or nil if it is empty and no step is possible.
func (a Accounts) statusOf(class string, possible []Proposal) *v1alpha1.Waste {
	account := a[class]
	w := v1alpha1.Waste{USD: usd(account.Wasted), USDPerHour: usd(account.Saving), AsOf: metav1.NewTime(account.At)}
	for _, p := range possible {
		cost, ok := p.Restarts[class]
		if !ok || len(w.Steps) == listedSteps {
			continue
		}
		w.Steps = append(w.Steps, v1alpha1.WasteStep{
			NodeClaims: p.Claims[:min(len(p.Claims), listedNodes)], Pods: int32(min(len(p.Pods), 1<<30)), RestartUSD: usd(cost), USDPerHour: usd(p.shares()[class]),
		})
	}
	if account.Wasted == 0 && len(w.Steps) == 0 {
		return nil
	}
	return &w
}

// sameWaste reports whether only the times differ.
func sameWaste(a, b *v1alpha1.Waste) bool {
	if a == nil || b == nil {
		return a == b
	}
	x := *b
	x.AsOf = a.AsOf
	return equality.Semantic.DeepEqual(*a, x)
}

// AccountWrite is the account of a GPUNodeClass that has to be written to its status.
type AccountWrite struct {
	Class string
	// Waste is nil if the account is empty.
	Waste *v1alpha1.Waste
	At    time.Time
}
