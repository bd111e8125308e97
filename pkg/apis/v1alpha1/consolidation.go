package v1alpha1

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// IdleNever is the value of Consolidation.IdleAfter that keeps idle nodes.
const IdleNever = "Never"

// DefaultIdleAfter is the idleAfter that the API server sets by default. IdleDuration reads an empty value as this default.
const DefaultIdleAfter = "5m"

// DefaultRestartCost is the restartCost that the API server sets by default. RestartMicroUSD reads an empty value as this default.
const DefaultRestartCost = "0.05"

// MovesPods reports whether Karve may move pods to reduce cost.
func (c Consolidation) MovesPods() bool { return c.Policy != ConsolidateWhenIdle }

// RestartMicroUSD returns RestartCost in micro-dollars.
func (c Consolidation) RestartMicroUSD() (int64, error) {
	cost := c.RestartCost
	if cost == "" {
		cost = DefaultRestartCost
	}
	micro, err := ParseUSD(cost)
	if err != nil {
		return 0, fmt.Errorf("reading restartCost: %w", err)
	}
	return micro, nil
}

// ParseUSD parses a decimal number of US dollars and returns it in micro-dollars.
func ParseUSD(usd string) (int64, error) {
	whole, part, _ := strings.Cut(usd, ".")
	if len(part) > 6 {
		return 0, fmt.Errorf("%q has more than six decimals", usd)
	}
	micro, err := strconv.ParseUint(whole+part+strings.Repeat("0", 6-len(part)), 10, 63)
	if err != nil || whole == "" {
		return 0, fmt.Errorf("%q is no decimal number of US dollars such as 0.02", usd)
	}
	return int64(micro), nil
}

// FormatUSD formats micro-dollars for a field, from which ParseUSD reads the same amount: with three decimals or as many more as needed.
func FormatUSD(micro int64) string {
	s := strconv.FormatInt(micro/1e6, 10) + "." + fmt.Sprintf("%06d", micro%1e6)
	for range 3 {
		s = strings.TrimSuffix(s, "0")
	}
	return s
}

// IdleDuration returns how long a node must be empty before it is deleted. If never is true, idle nodes are kept.
func (c Consolidation) IdleDuration() (d time.Duration, never bool, err error) {
	return durationOr("idleAfter", c.IdleAfter, DefaultIdleAfter, "; use Never to keep idle machines")
}

// durationOr returns the duration in a field, or its default if the field is empty. If never is true, the field is Never. hint is the end of the error for a negative one.
func durationOr(field, value, byDefault, hint string) (d time.Duration, never bool, err error) {
	switch value {
	case IdleNever:
		return 0, true, nil
	case "":
		value = byDefault
	}
	d, err = time.ParseDuration(value)
	if err != nil {
		return 0, false, fmt.Errorf("reading %s: %w", field, err)
	}
	if d < 0 {
		return 0, false, fmt.Errorf("reading %s: %q is negative%s", field, value, hint)
	}
	return d, false, nil
}
