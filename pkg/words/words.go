// Package words writes numbers of things, amounts of money, ages and lists of names, the same in all messages and tables.
package words

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Count formats a number of things: "1 pod", "2 pods".
func Count[N int | int32 | int64](n N, thing string) string {
	return fmt.Sprintf("%d %s", n, Noun(n, thing))
}

// Noun returns the word for one thing or for several: "pod", "pods".
func Noun[N int | int32 | int64](n N, thing string) string {
	if n == 1 {
		return thing
	}
	return thing + "s"
}

// USD formats micro-dollars as dollars, rounded to three decimals, for the price of an hour.
func USD[N ~int64](micro N) string { return FloorUSD(micro + 500) }

// FloorUSD formats micro-dollars as dollars, rounded down to three decimals, for lower bounds.
func FloorUSD[N ~int64](micro N) string { return fmt.Sprintf("%d.%03d", micro/1e6, micro/1000%1000) }

// CeilUSD formats micro-dollars as dollars, rounded up to three decimals, for what is above a limit.
func CeilUSD[N ~int64](micro N) string { return FloorUSD(micro + 999) }

// Cents formats micro-dollars as dollars, rounded to cents, for the price of a longer time.
func Cents[N ~int64](micro N) string {
	cents := (micro + 5000) / 1e4
	return fmt.Sprintf("%d.%02d", cents/100, cents%100)
}

// Age formats a time span as kubectl get does. It is 0s for a time in the future, as after a step of a clock.
func Age(d time.Duration) string { return duration.HumanDuration(max(0, d)) }

// Span formats a time span, rounded to minutes, for totals: "31d", "2d1h", "13h57m". It is 0m for less.
func Span(d time.Duration) string {
	rest, text := max(0, d.Round(time.Minute)), ""
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if n := rest / unit.length; n > 0 {
			text += fmt.Sprintf("%d%s", n, unit.name)
		}
		rest %= unit.length
	}
	return cmp.Or(text, "0m")
}

// Named joins at most this many names, and counts the others: "a, b and 3 more".
func Named(names []string, limit int) string {
	return More(strings.Join(names[:min(limit, len(names))], ", "), len(names)-limit)
}

// More adds the number of others to names, if there are others: "a and 3 more".
func More(named string, others int) string {
	if others <= 0 {
		return named
	}
	return fmt.Sprintf("%s and %d more", named, others)
}

// Distinct sorts and joins the names without repetitions.
func Distinct(names []string) string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(names))), ", ")
}

// And joins all names for a sentence: "a, b and c".
func And(names []string) string { return joined(names, " and ") }

// Or joins alternatives: "a, b or c".
func Or(names []string) string { return joined(names, " or ") }

func joined(names []string, last string) string {
	n := max(0, len(names)-1)
	if n == 0 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:n], ", ") + last + names[n]
}
