package main

import (
	"fmt"
	"slices"
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
			notes = append(notes, fmt.Sprintf("there are nodes in %s, but the zones and prices are those of %s; use --instance-types for your own", region, builtinRegion))
			break
		}
	}
	if pools := quote.Unpriced(c); len(pools) > 0 {
		notes = append(notes, fmt.Sprintf("no spot prices are known, so pools that allow spot get on-demand machines (NodePool %s); use --instance-types for your own prices",
			strings.Join(pools, ", ")))
	}
	return notes
}

// maxNamed is the number of names in a note.
const maxNamed = 3

func skippedNotes(skipped *manifests.Skipped) []string {
	var notes, kinds []string
	for _, k := range skipped.Kinds {
		kinds = append(kinds, fmt.Sprintf("%d %s", k.Count, k.Kind))
	}
	if len(kinds) > 0 {
		notes = append(notes, "ignored, because plans do not depend on them: "+strings.Join(kinds, ", "))
	}
	if files := skipped.NotObjects; len(files) > 0 {
		notes = append(notes, "ignored, because they are not Kubernetes objects: "+named(files))
	}
	for _, r := range skipped.Replaced {
		notes = append(notes, fmt.Sprintf("%s is in %s and in %s: the latter applies, as with kubectl apply", r.Object, r.First, r.Last))
	}
	return notes
}

// named joins names, and counts those beyond the first few.
func named(names []string) string {
	if more := len(names) - maxNamed; more > 1 {
		names = append(slices.Clone(names[:maxNamed]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

func unservedNotes(q *quote.Quote) []string {
	var notes []string
	for _, u := range q.Unserved {
		notes = append(notes, u.String())
	}
	return notes
}
