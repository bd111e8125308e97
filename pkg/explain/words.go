package explain

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

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
