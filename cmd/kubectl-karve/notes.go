package main

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/manifests"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/pkg/snapshot"
)

// builtinRegion is the region of the built-in instance types.
const builtinRegion = "us-east-1"

// builtinNotes returns notes on how the built-in instance types differ from those of the cluster.
func builtinNotes(c *snapshot.Cluster) []string {
	var notes []string
	for i := range c.Nodes {
		if region := c.Nodes[i].Labels[corev1.LabelTopologyRegion]; region != "" && region != builtinRegion {
			notes = append(notes, fmt.Sprintf("there are nodes in %s, but the zones and prices are those of %s; --instance-types takes your own", region, builtinRegion))
			break
		}
	}
	if pools := quote.Unpriced(c); len(pools) > 0 {
		notes = append(notes, fmt.Sprintf("no spot prices are known, so what takes spot machines too is planned on demand (NodePool %s); --instance-types takes prices of your own",
			strings.Join(pools, ", ")))
	}
	return notes
}

func skippedNote(skipped []manifests.Skipped) []string {
	if len(skipped) == 0 {
		return nil
	}
	var kinds []string
	for _, s := range skipped {
		kinds = append(kinds, fmt.Sprintf("%d %s", s.Count, s.Kind))
	}
	return []string{"no plan depends on these, they are left out: " + strings.Join(kinds, ", ")}
}
