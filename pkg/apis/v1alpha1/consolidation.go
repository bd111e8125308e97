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

// Values that the API server writes where fields of Consolidation are left out; empty values are read as them.
const (
	DefaultMinSavingPerMove  = "0.05"
	DefaultNearEnoughPercent = 4
	DefaultSettleAfter       = "5m"
)

// MovesPods says whether pods are moved to make the machines cheaper.
func (c Consolidation) MovesPods() bool { return c.Policy != ConsolidateWhenIdle }

// SavingPerMove is MinSavingPerMove in micro-dollars an hour.
func (c Consolidation) SavingPerMove() (int64, error) {
	saving := c.MinSavingPerMove
	if saving == "" {
		saving = DefaultMinSavingPerMove
	}
	whole, part, _ := strings.Cut(saving, ".")
	if len(part) > 6 {
		return 0, fmt.Errorf("reading minSavingPerMove: %q has more than six decimals", saving)
	}
	micro, err := strconv.ParseUint(whole+part+strings.Repeat("0", 6-len(part)), 10, 63)
	if err != nil || whole == "" {
		return 0, fmt.Errorf("reading minSavingPerMove: %q is no decimal number of US dollars such as 0.02", saving)
	}
	return int64(micro), nil
}

// NearEnough is NearEnoughPercent, or what the API server writes where it is left out.
func (c Consolidation) NearEnough() int {
	if c.NearEnoughPercent == nil {
		return DefaultNearEnoughPercent
	}
	return int(*c.NearEnoughPercent)
}

// SettleDuration is how long a pod or a machine has run once it counts as settled.
func (c Consolidation) SettleDuration() (time.Duration, error) {
	settleAfter := c.SettleAfter
	if settleAfter == "" {
		settleAfter = DefaultSettleAfter
	}
	d, err := time.ParseDuration(settleAfter)
	if err != nil {
		return 0, fmt.Errorf("reading settleAfter: %w", err)
	}
	if d < 0 {
		return 0, fmt.Errorf("reading settleAfter: %q is negative", settleAfter)
	}
	return d, nil
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
