package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/quote"
)

func parseStrategies(text string) ([]v1alpha1.Strategy, error) {
	if text == "" {
		return nil, nil
	}
	known := quote.Strategies()
	var all []v1alpha1.Strategy
	for name := range strings.SplitSeq(text, ",") {
		i := slices.IndexFunc(known, func(s v1alpha1.Strategy) bool { return strings.EqualFold(string(s), name) })
		if i < 0 {
			return nil, fmt.Errorf("--sharing takes strategies of %s, separated by commas, not %q", strategyNames(known), text)
		}
		if !slices.Contains(all, known[i]) {
			all = append(all, known[i])
		}
	}
	return all, nil
}

func strategyNames(all []v1alpha1.Strategy) string {
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}

const maxReplicas = 128

// parseReplicas parses numbers of replicas such as 10, 2,4,8 or 1..48, or a list of them.
func parseReplicas(text string) ([]int32, error) {
	if text == "" {
		return nil, nil
	}
	var all []int32
	seen := map[int]bool{}
	for part := range strings.SplitSeq(text, ",") {
		low, high, ranged := strings.Cut(part, "..")
		if !ranged {
			high = low
		}
		from, err1 := strconv.Atoi(low)
		to, err2 := strconv.Atoi(high)
		if err1 != nil || err2 != nil || from < 1 || to > maxReplicas || from > to {
			return nil, fmt.Errorf("--replicas takes numbers from 1 to %d such as 10, 2,4,8 or 1..48, not %q", maxReplicas, text)
		}
		for n := from; n <= to; n++ {
			if !seen[n] {
				seen[n] = true
				all = append(all, int32(n))
			}
		}
	}
	return all, nil
}
