package explain

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// count formats a number of things.
func count(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// bytes formats an amount of memory in Gi or Mi, rounded down, so that it never overstates what is left.
func bytes(n int64) string {
	const mi, gi = 1 << 20, 1 << 30
	switch {
	case n < 0:
		return "0Mi"
	case n >= gi:
		return strings.TrimSuffix(fmt.Sprintf("%d.%d", n/gi, n%gi*10/gi), ".0") + "Gi"
	}
	return strconv.FormatInt(n/mi, 10) + "Mi"
}

// cpus formats thousandths of a CPU as Kubernetes does.
func cpus(milli int64) string {
	return resource.NewMilliQuantity(max(0, milli), resource.DecimalSI).String()
}

// duration formats a duration with its two largest units, such as 4m12s.
func duration(d time.Duration) string {
	if d < 0 {
		d = 0
	}
	d = d.Truncate(time.Second)
	day := 24 * time.Hour
	switch {
	case d >= day:
		return trim(fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour))
	case d >= time.Hour:
		return trim(fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute))
	case d >= time.Minute:
		return trim(fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second))
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// trim removes a second unit of zero.
func trim(s string) string {
	for _, zero := range []string{"h0m", "m0s", "d0h"} {
		if strings.HasSuffix(s, zero) {
			return s[:len(s)-2]
		}
	}
	return s
}

// nearest returns the word that a misspelled one probably means, or "" if none is near.
func nearest(word string, words []string) string {
	best, least := "", max(2, len(word)/4)+1
	for _, w := range words {
		if d := distance(word, w); d < least {
			best, least = w, d
		}
	}
	return best
}

// distance returns the number of letters to insert, remove or replace to turn a into b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			above := row[j]
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(row[j]+1, row[j-1]+1, diagonal+cost)
			diagonal = above
		}
	}
	return row[len(b)]
}
