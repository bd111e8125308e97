// Package waste reports how far the waste of a GPUNodeClass covers the steps to a cheaper layout.
package waste

import (
	"fmt"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/words"
)

// Step is a set of nodes that are removed together, after their pods have room elsewhere.
type Step struct {
	GPUNodeClass string `json:"gpuNodeClass"`
	// NodeClaims lists the names of the NodeClaims, truncated like in the status of the GPUNodeClass.
	NodeClaims []string `json:"nodeClaims"`
	// Pods is the number of pods that the step restarts.
	Pods int `json:"pods"`
	// Saving is how much less the nodes cost per hour afterwards.
	Saving planner.MicroUSD `json:"savingMicroUSDPerHour"`
	// Wasted is the excess cost of the nodes. Needed is the cost of the restarts, including those of earlier steps. Before is the number of earlier steps.
	Wasted planner.MicroUSD `json:"wastedMicroUSD"`
	Needed planner.MicroUSD `json:"neededMicroUSD"`
	Before int              `json:"stepsBefore"`
	// Covered is when Wasted reaches Needed if nothing changes. It is nil if it never does.
	Covered *time.Time `json:"covered,omitempty"`
}

// Steps returns the steps in the status of a GPUNodeClass, in the order in which they are paid for. It returns none if the status is invalid, which the
// API server refuses.
func Steps(class *v1alpha1.GPUNodeClass, now time.Time) []Step {
	stored := class.Status.Waste
	if stored == nil {
		return nil
	}
	wasted, err := v1alpha1.ParseUSD(stored.USD)
	if err != nil {
		return nil
	}
	perHour, err := v1alpha1.ParseUSD(stored.USDPerHour)
	if err != nil {
		return nil
	}
	// The stored status lacks the waste since it was written.
	since := max(0, now.Sub(stored.AsOf.Time)).Hours() * float64(perHour)
	var steps []Step
	needed := planner.MicroUSD(0)
	for i := range stored.Steps {
		step := &stored.Steps[i]
		cost, err := v1alpha1.ParseUSD(step.RestartUSD)
		if err != nil {
			return nil
		}
		saving, err := v1alpha1.ParseUSD(step.USDPerHour)
		if err != nil || len(step.NodeClaims) == 0 {
			return nil
		}
		needed += planner.MicroUSD(cost)
		missing := float64(max(0, needed-planner.MicroUSD(wasted)))
		s := Step{
			GPUNodeClass: class.Name, NodeClaims: step.NodeClaims, Pods: int(step.Pods), Saving: planner.MicroUSD(saving),
			Wasted: min(needed, planner.MicroUSD(wasted)+planner.MicroUSD(min(since, missing))), Needed: needed, Before: i,
		}
		if perHour > 0 {
			s.Covered = new(stored.AsOf.Add(time.Duration(missing / float64(perHour) * float64(time.Hour))))
		}
		steps = append(steps, s)
	}
	return steps
}

func (s *Step) String() string {
	pods := fmt.Sprintf("moving %s costs", words.Count(s.Pods, "pod"))
	if s.Before > 0 {
		pods = fmt.Sprintf("this step and the %d before it cost", s.Before)
	}
	return fmt.Sprintf("wasted $%s of the $%s that %s", words.Cents(s.Wasted), words.Cents(s.Needed), pods)
}
