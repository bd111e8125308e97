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
	micro, err := MicroUSD(cost)
	if err != nil {
		return 0, fmt.Errorf("reading restartCost: %w", err)
	}
	return micro, nil
}

// MicroUSD parses a decimal number of US dollars and returns it in micro-dollars.
func MicroUSD(usd string) (int64, error) {
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

// FormatUSD formats micro-dollars as dollars, with three decimals or as many more as needed.
func FormatUSD(micro int64) string {
	s := strconv.FormatInt(micro/1e6, 10) + "." + fmt.Sprintf("%06d", micro%1e6)
	for range 3 {
		s = strings.TrimSuffix(s, "0")
	}
	return s
}

// Removed returns, by field name, the replacement for each removed field that is set. The CRD's validation rules give the same advice.
func (c Consolidation) Removed() map[string]string {
	removed := map[string]string{}
	if c.MinSavingPerMove != "" {
		removed["minSavingPerMove"] = "minSavingPerMove was replaced: remove it, and write restartCost, what the restart of a pod costs in US dollars (default 0.05)"
	}
	if c.NearEnoughPercent != nil {
		removed["nearEnoughPercent"] = "nearEnoughPercent was removed: remove it, and raise restartCost to move fewer pods"
	}
	if c.SettleAfter != "" {
		removed["settleAfter"] = "settleAfter was removed: remove it, since a pod stays until its node has cost what its restart costs; raise restartCost to wait longer"
	}
	return removed
}

// WithoutFormerDefaults returns c without removed fields whose values are defaults that earlier versions of the API server wrote.
func (c Consolidation) WithoutFormerDefaults() Consolidation {
	if c.MinSavingPerMove == "0.05" {
		c.MinSavingPerMove = ""
	}
	if c.NearEnoughPercent != nil && *c.NearEnoughPercent == 4 {
		c.NearEnoughPercent = nil
	}
	if c.SettleAfter == "5m" {
		c.SettleAfter = ""
	}
	return c
}

// IdleDuration returns how long a node must be empty before it is deleted. If never is true, idle nodes are kept.
func (c Consolidation) IdleDuration() (d time.Duration, never bool, err error) {
	idleAfter := c.IdleAfter
	switch idleAfter {
	case IdleNever:
		return 0, true, nil
	case "":
		idleAfter = DefaultIdleAfter
	}
	d, err = time.ParseDuration(idleAfter)
	if err != nil {
		return 0, false, fmt.Errorf("reading idleAfter: %w", err)
	}
	if d < 0 {
		return 0, false, fmt.Errorf("reading idleAfter: %q is negative; use Never to keep idle machines", idleAfter)
	}
	return d, false, nil
}
