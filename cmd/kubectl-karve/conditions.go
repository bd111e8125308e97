package main

import (
	"errors"
	"fmt"
	"math"

	"github.com/spf13/pflag"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/pkg/words"
)

// conditions are the conditions that a plan must meet in a pipeline. The command fails if it does not.
type conditions struct {
	failOnUnplaced bool
	maxUSDPerHour  string
}

func (c *conditions) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.failOnUnplaced, "fail-on-unplaced", false, "exit with status 1 if a pod has no place; the plan is still printed")
	fs.StringVar(&c.maxUSDPerHour, "max-usd-per-hour", "", "exit with status 1 if the plan, including its headroom, costs more than this many dollars per hour; the plan is still printed")
}

// limit returns the highest price that the conditions allow. comparing reports whether the command compares numbers of replicas or strategies instead
// of planning.
func (c *conditions) limit(comparing bool) (planner.MicroUSD, error) {
	if comparing && (c.failOnUnplaced || c.maxUSDPerHour != "") {
		return 0, errors.New("--fail-on-unplaced and --max-usd-per-hour are conditions for a plan: remove --replicas and --sharing")
	}
	if c.maxUSDPerHour == "" {
		return math.MaxInt64, nil
	}
	micro, err := v1alpha1.ParseUSD(c.maxUSDPerHour)
	if err != nil {
		return 0, fmt.Errorf("--max-usd-per-hour: %w", err)
	}
	return planner.MicroUSD(micro), nil
}

// check returns an error for each condition that the plan does not meet.
func (c *conditions) check(q *quote.Quote, limit planner.MicroUSD) error {
	var errs []error
	homeless := q.Homeless()
	if c.failOnUnplaced && len(homeless) > 0 {
		errs = append(errs, fmt.Errorf("%s (--fail-on-unplaced)", noPlace(homeless)))
	}
	for _, u := range q.Unplanned {
		if c.failOnUnplaced || c.maxUSDPerHour != "" {
			errs = append(errs, fmt.Errorf("the pods of %s are not part of the plan: %s (%s)", u.Object, u.Message, c.flag()))
		}
	}
	if c.maxUSDPerHour != "" && !c.failOnUnplaced && len(homeless) > 0 {
		errs = append(errs, fmt.Errorf("%s, so the price of all pods is unknown (--max-usd-per-hour)", noPlace(homeless)))
	}
	if total := q.Total(); total > limit {
		errs = append(errs, fmt.Errorf("the plan costs $%s an hour, more than --max-usd-per-hour %s allows", words.CeilUSD(total), c.maxUSDPerHour))
	}
	return errors.Join(errs...)
}

// flag returns the first of the flags that are set.
func (c *conditions) flag() string {
	if c.failOnUnplaced {
		return "--fail-on-unplaced"
	}
	return "--max-usd-per-hour"
}

func noPlace(pods []string) string {
	have := "have"
	if len(pods) == 1 {
		have = "has"
	}
	return fmt.Sprintf("%s %s no place: %s", words.Count(len(pods), "pod"), have, words.Named(pods, maxNamed))
}
