package v1alpha1

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// IdleNever is the value of Consolidation.IdleAfter that keeps idle machines.
const IdleNever = "Never"

// DefaultIdleAfter is the value that the API server writes where idleAfter is left out; IdleDuration reads an empty value as it.
const DefaultIdleAfter = "5m"

// DefaultRestartCost is the value that the API server writes where restartCost is left out; RestartMicroUSD reads an empty value as it.
const DefaultRestartCost = "0.05"

// MovesPods says whether pods are moved to make the machines cheaper.
func (c Consolidation) MovesPods() bool { return c.Policy != ConsolidateWhenIdle }

// RestartMicroUSD is RestartCost in micro-dollars.
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

// MicroUSD reads a decimal number of US dollars.
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

// Removed returns, for each field that is set and was removed, what to write instead, by the name of the field. The rules of the CRD say the same.
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

// WithoutFormerDefaults returns c without removed fields that have the values which earlier versions of the API server wrote where they were left out.
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

// IdleDuration is how long a machine holds no pod before it is given back; never says that it is kept instead.
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
