package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"karve.sh/karve/test/bench/results"
)

// table compares the two sides.
func table(out io.Writer, karve, karpenter figures) {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	row := func(name string, of func(figures) string) {
		fmt.Fprintf(w, "%s\t%s\t%s\n", name, of(karve), of(karpenter))
	}
	fmt.Fprintf(w, "%d pods\tKarve\tKarpenter alone\n", karve.pods)
	row("machines", func(f figures) string { return kinds(f.claims) })
	row("price an hour", func(f figures) string { return dollars(f.microUSD) })
	row("to the last NodeClaim", func(f figures) string { return seconds(f.toClaims) })
	row("to the last pod Running", func(f figures) string { return seconds(f.toRunning) })
	row("from zero pods to no machine", func(f figures) string { return seconds(f.toGone) })
	_ = w.Flush() // only writes to out can fail
}

func saving(karve, karpenter figures) string {
	if karve.microUSD == karpenter.microUSD {
		return "Karve pays as much as Karpenter alone for the same pods."
	}
	return fmt.Sprintf("Karve pays %.1f%% less than Karpenter alone for the same pods in the same cluster.",
		100*(1-float64(karve.microUSD)/float64(karpenter.microUSD)))
}

// document is the content of _output/demo.json.
type document struct {
	Pods                     int            `json:"pods"`
	Claims                   map[string]int `json:"claims"`
	MicroUSDPerHour          int64          `json:"microUSDPerHour"`
	KarpenterMicroUSDPerHour int64          `json:"karpenterMicroUSDPerHour"`
	SecondsToClaims          float64        `json:"secondsToClaims"`
	SecondsToRunning         float64        `json:"secondsToRunning"`
	SecondsToGone            float64        `json:"secondsToGone"`
}

func save(path string, karve, karpenter figures) error {
	return results.Save(path, document{
		Pods: karve.pods, Claims: byType(karve.claims),
		MicroUSDPerHour: karve.microUSD, KarpenterMicroUSDPerHour: karpenter.microUSD,
		SecondsToClaims: tenths(karve.toClaims), SecondsToRunning: tenths(karve.toRunning), SecondsToGone: tenths(karve.toGone),
	})
}

func byType(claims []claim) map[string]int {
	n := map[string]int{}
	for _, c := range claims {
		n[c.instanceType]++
	}
	return n
}

// kinds counts the machines by type, as in "8 × g4dn.xlarge (on-demand)".
func kinds(claims []claim) string {
	n := map[string]int{}
	for _, c := range claims {
		n[fmt.Sprintf("%s (%s)", c.instanceType, c.capacityType)]++
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%d × %s", n[kind], kind))
	}
	return strings.Join(parts, ", ")
}

func dollars(microUSD int64) string { return fmt.Sprintf("$%.3f", float64(microUSD)/1e6) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

func tenths(d time.Duration) float64 { return math.Round(d.Seconds()*10) / 10 }

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
