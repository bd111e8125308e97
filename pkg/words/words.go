// Package words writes numbers of things, amounts of money, ages and lists of names, the same in all messages and tables.
package words

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Count formats a number of things: "1 pod", "2 pods".
func Count[N int | int64](n N, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// USD formats micro-dollars as dollars, rounded to three decimals.
func USD[N ~int64](micro N) string { return FloorUSD(micro + 500) }

// FloorUSD formats micro-dollars as dollars, rounded down to three decimals, for lower bounds.
func FloorUSD[N ~int64](micro N) string { return fmt.Sprintf("%d.%03d", micro/1e6, micro/1000%1000) }

// Age formats a time span as kubectl get does. It is 0s for a time in the future, as after a step of a clock.
func Age(d time.Duration) string { return duration.HumanDuration(max(0, d)) }

// Named joins at most this many names, and counts the others: "a, b and 3 more".
func Named(names []string, most int) string {
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Distinct sorts and joins the names without repetitions.
func Distinct(names []string) string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(names))), ", ")
}
