package disruption

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
)

// Each GPUNodeClass has an account of the excess cost of its nodes. A step to a cheaper layout begins once the account covers the restarts of its pods
// (consolidate.Account). If pods of several classes move in a step, each class has a share of the saving in proportion to its restart costs.

// account is the state of an account at a given time.
type account struct {
	consolidate.Account
	at time.Time
}

// saved is the hourly saving of a proposal, according to a plan with all constraints of its pods, and until when it is valid.
type saved struct {
	perHour planner.MicroUSD
	until   time.Time
}

const (
	// savedFor is how long the saving of a proposal is valid. It is computed again before the step begins.
	savedFor = time.Minute
	// wasteEvery is the shortest time between two writes of an account, except those that pay for a step.
	wasteEvery = time.Minute
)

// possible returns the proposals that could begin now, with their savings, and commands for the machines of those that do not save. It computes unknown
// savings.
func (s *pass) possible(marked []string) (possible []proposal, commands []command) {
	kept := slices.Clone(s.proposals)
	s.proposals = nil
	for _, p := range kept {
		machines := s.ready(p)
		if machines == nil {
			s.proposals = append(s.proposals, p)
			continue
		}
		if known, ok := s.saved[p.String()]; ok && s.now.Before(known.until) {
			p.saving = known.perHour
		} else {
			saving, why := s.whatIf.saves(marked, p)
			switch why {
			case "":
				p.saving = min(saving, p.found)
				s.saved[p.String()] = saved{p.saving, s.now.Add(savedFor)}
			case later:
				s.proposals = append(s.proposals, p)
				continue
			default:
				commands = append(commands, stays(machines, saving, why)...)
				continue
			}
		}
		s.proposals = append(s.proposals, p)
		possible = append(possible, p)
	}
	worth := make([]consolidate.Worth, len(possible))
	for i, p := range possible {
		worth[i] = consolidate.Worth{Saving: p.saving, Restarts: p.cost()}
	}
	ranked := make([]proposal, 0, len(possible))
	for _, i := range consolidate.Ranked(worth) {
		ranked = append(ranked, possible[i])
	}
	return ranked, commands
}

// look adds the waste since the last look to the accounts, given the proposals that are possible now. Until all machines have been searched once, there
// may be other proposals.
func (s *pass) look(possible []proposal) {
	saving, restarts := map[string]planner.MicroUSD{}, map[string]planner.MicroUSD{}
	for _, p := range possible {
		for class, share := range p.shares() {
			saving[class] += share
		}
	}
	for _, p := range s.proposals {
		for class, cost := range p.restarts {
			restarts[class] += cost
		}
	}
	for class, a := range s.accounts {
		if s.searched {
			s.accounts[class] = account{a.Look(s.now.Sub(a.at), saving[class], restarts[class]), s.now}
		}
	}
}

// untilCovered returns the time until the accounts cover another of the possible proposals.
func (s *pass) untilCovered() time.Duration {
	soonest := longestWait
	for _, p := range s.offered {
		wait := time.Duration(0)
		for class, cost := range p.restarts {
			a := s.accounts[class]
			if cost > a.Wasted && a.Saving > 0 {
				wait = max(wait, time.Duration(float64(cost-a.Wasted)/float64(a.Saving)*float64(time.Hour)))
			}
		}
		if wait > 0 {
			soonest = min(soonest, max(soon, wait))
		}
	}
	return soonest
}

// covers reports whether the accounts cover a proposal. Accounts of classes that save up for other proposals do not count.
func (s *pass) covers(p proposal, saves map[string]bool) bool {
	for class, cost := range p.restarts {
		if saves[class] || cost > s.accounts[class].Wasted {
			return false
		}
	}
	return true
}

// pay deducts the cost of a proposal from the accounts.
func (s *pass) pay(p proposal) {
	shares := p.shares()
	for class, cost := range p.restarts {
		a := s.accounts[class]
		a.Wasted, a.Saving = a.Wasted-cost, max(0, a.Saving-shares[class])
		s.accounts[class] = a
	}
	s.begun = append(s.begun, p)
}

// cost returns the restart costs of a proposal.
func (p proposal) cost() (sum planner.MicroUSD) {
	for _, cost := range p.restarts {
		sum += cost
	}
	return sum
}

// shares returns the saving of a proposal by GPUNodeClass, in proportion to the restart costs. If restarts cost nothing, one class has the whole
// saving.
func (p proposal) shares() map[string]planner.MicroUSD {
	shares, all, left := map[string]planner.MicroUSD{}, p.cost(), p.saving
	classes := slices.Sorted(maps.Keys(p.restarts))
	for i, class := range classes {
		share := left
		if i < len(classes)-1 && all > 0 {
			share = planner.MicroUSD(float64(p.saving) * float64(p.restarts[class]) / float64(all))
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

// waste returns the account of a GPUNodeClass for its status, or nil if it is empty and no step is possible.
func (s *pass) waste(class string, possible []proposal) *v1alpha1.Waste {
	a := s.accounts[class]
	w := v1alpha1.Waste{USD: usdOf(a.Wasted), USDPerHour: usdOf(a.Saving), AsOf: metav1.NewTime(a.at)}
	for _, p := range possible {
		cost, ok := p.restarts[class]
		if !ok || len(w.Steps) == listedSteps {
			continue
		}
		w.Steps = append(w.Steps, v1alpha1.WasteStep{
			NodeClaims: p.claims[:min(len(p.claims), listedNodes)], Pods: int32(min(len(p.pods), 1<<30)), RestartUSD: usdOf(cost), USDPerHour: usdOf(p.shares()[class]),
		})
	}
	if a.Wasted == 0 && len(w.Steps) == 0 {
		return nil
	}
	return &w
}

func usdOf(amount planner.MicroUSD) string { return v1alpha1.FormatUSD(int64(amount)) }

// openAccounts gives the pass the accounts of the GPUNodeClasses of its pools. An account starts with the amount that an earlier controller has
// written, without the time since then, in which nobody measured.
func (m *memory) openAccounts(s *pass) {
	for i := range s.view.Pools {
		class := s.view.Pools[i].Class
		if class == nil {
			continue
		}
		kept, ok := m.accounts[class.Name]
		if !ok {
			kept = keptAccount{account: account{at: s.now}, stored: class.Status.Waste}
			if stored := class.Status.Waste; stored != nil {
				if micro, err := v1alpha1.MicroUSD(stored.USD); err == nil {
					kept.Wasted = planner.MicroUSD(micro)
				}
				kept.written = stored.AsOf.Time
			}
			m.accounts[class.Name] = kept
		}
		s.accounts[class.Name] = kept.account
	}
	maps.DeleteFunc(m.accounts, func(class string, _ keptAccount) bool { _, ok := s.accounts[class]; return !ok })
	maps.DeleteFunc(m.saved, func(_ string, known saved) bool { return !s.now.Before(known.until) })
	s.saved = m.saved
}

// keptAccount is an account, the amount in the status of its GPUNodeClass, and when that was written.
type keptAccount struct {
	account
	stored  *v1alpha1.Waste
	written time.Time
}

// keepAccounts stores the accounts of a pass, and writes them to the GPUNodeClasses. It writes immediately if they have paid for steps, so that a
// restarted controller does not spend the same waste again, and otherwise at most once a minute. If it returns an error, no step may begin.
func (c *Controller) keepAccounts(ctx context.Context, s *pass) error {
	paying := map[string]bool{}
	for _, p := range s.begun {
		for class, cost := range p.restarts {
			paying[class] = paying[class] || cost > 0
		}
	}
	left := slices.DeleteFunc(slices.Clone(s.offered), func(p proposal) bool { return slices.ContainsFunc(s.begun, p.same) })
	c.Metrics.Wasted.Reset()
	for _, class := range slices.Sorted(maps.Keys(s.accounts)) {
		kept := c.memory.accounts[class]
		kept.account = s.accounts[class]
		c.Metrics.Wasted.WithLabelValues(class).Set(metrics.USD(int64(kept.Wasted)))
		waste := s.waste(class, left)
		if due := paying[class] || !s.now.Before(kept.written.Add(wasteEvery)); due && !sameWaste(waste, kept.stored) {
			if err := c.writeWaste(ctx, class, waste); err != nil {
				return err
			}
			kept.stored, kept.written = waste, s.now
		}
		c.memory.accounts[class] = kept
	}
	return nil
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

// +kubebuilder:rbac:groups=karve.sh,resources=gpunodeclasses/status,verbs=patch

// writeWaste writes an account to a GPUNodeClass. The patch contains the whole account, whatever the cache shows.
func (c *Controller) writeWaste(ctx context.Context, class string, waste *v1alpha1.Waste) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"waste": waste}})
	if err != nil {
		return fmt.Errorf("writing the waste of GPUNodeClass %s: %w", class, err)
	}
	object := &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: class}}
	if err := c.Client.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the waste of GPUNodeClass %s: %w", class, err)
	}
	return nil
}

// same reports whether two proposals remove the same machines.
func (p proposal) same(o proposal) bool { return slices.Equal(p.claims, o.claims) }
