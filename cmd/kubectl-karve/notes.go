package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/manifests"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

// builtinNotes returns notes on how the built-in instance types differ from those of the cluster.
func builtinNotes(c *facts.Cluster) []string {
	var notes []string
	for i := range c.Nodes {
		if region := c.Nodes[i].Labels[corev1.LabelTopologyRegion]; region != "" && region != builtin.Region {
			notes = append(notes, fmt.Sprintf("there are nodes in %s, but the zones and prices are those of %s; use --instance-types for your own", region, builtin.Region))
			break
		}
	}
	if pools := quote.Unpriced(c); len(pools) > 0 {
		notes = append(notes, fmt.Sprintf("no spot prices are known, so pools that allow spot get on-demand machines (NodePool %s); use --instance-types for your own prices",
			words.Named(pools, maxNamed)))
	}
	return notes
}

// planningNotes returns a note if the controller took longer than usual for a plan. The condition is the same for all pools.
func planningNotes(c *facts.Cluster) []string {
	for i := range c.NodePools {
		if is := facts.Condition(c.NodePools[i].Status.Conditions, v1alpha1.ConditionPlanningHealthy); is.IsTrue() && is.Message != "" {
			return []string{is.Message}
		}
	}
	return nil
}

const maxNamed = 3

func skippedNotes(skipped *manifests.Skipped) []string {
	var notes []string
	for _, r := range skipped.Refused {
		notes = append(notes, fmt.Sprintf("the API server would refuse %s of %s: %s", words.Count(len(r.Pods), "pod"), r.Object, r.Why))
	}
	for _, u := range skipped.Unplanned {
		notes = append(notes, fmt.Sprintf("the pods of %s are not part of the plan: %s", u.Object, u.Why))
	}
	if skipped.Aliased != "" {
		notes = append(notes, skipped.Aliased)
	}
	if len(skipped.Held) > 0 {
		notes = append(notes, "not part of the plan, because their pods do not wait for machines yet: "+words.Named(skipped.Held, maxNamed))
	}
	if len(skipped.Found) > 0 {
		notes = append(notes, "of unknown kinds, so they count with the pod templates in them and the replicas beside these: "+words.Named(skipped.Found, maxNamed))
	}
	if len(skipped.Missing) > 0 {
		notes = append(notes, "the plan may be wrong, because no file has what pods name: "+words.Named(skipped.Missing, maxNamed))
	}
	for _, e := range skipped.Effects {
		notes = append(notes, fmt.Sprintf("not part of the plan: %d %s, which %s", e.Count, e.Kind, e.Effect))
	}
	if len(skipped.Unused) > 0 {
		notes = append(notes, "not part of the plan, because only Karpenter and AWS know their effect: "+words.Named(skipped.Unused, maxNamed))
	}
	if len(skipped.Unnamed) > 0 {
		notes = append(notes, "not part of the plan, because no NodePool and no GPUNodeClass in the files names it: "+words.Named(skipped.Unnamed, maxNamed))
	}
	if len(skipped.Unknown) > 0 {
		notes = append(notes, "ignored, because their kinds are unknown and they have no pods: "+kindCounts(skipped.Unknown))
	}
	if len(skipped.Kinds) > 0 {
		notes = append(notes, "ignored, because plans do not depend on them: "+kindCounts(skipped.Kinds))
	}
	if files := skipped.NotObjects; len(files) > 0 {
		notes = append(notes, "ignored, because they are not Kubernetes objects: "+words.Named(files, maxNamed))
	}
	for _, r := range skipped.Replaced {
		notes = append(notes, fmt.Sprintf("%s is in %s and in %s: the latter applies, as with kubectl apply", r.Object, r.First, r.Last))
	}
	return notes
}

func kindCounts(kinds []manifests.KindCount) string {
	var all []string
	for _, k := range kinds {
		all = append(all, fmt.Sprintf("%d %s", k.Count, k.Kind))
	}
	return strings.Join(all, ", ")
}

func unservedNotes(q *quote.Quote) []string {
	var notes []string
	for _, u := range q.Unserved {
		notes = append(notes, u.String())
	}
	return notes
}

// annotationNotes name the workloads whose throughput or group does not count, and say why.
func annotationNotes(pods []corev1.Pod) []string {
	by := map[string][]string{}
	note := func(pod *corev1.Pod, err error) {
		if err != nil {
			kind, name := facts.OwnerOf(pod)
			by[err.Error()] = append(by[err.Error()], fmt.Sprintf("%s %s/%s", kind, pod.Namespace, name))
		}
	}
	for i := range pods {
		_, err := facts.ThroughputOf(&pods[i])
		note(&pods[i], err)
		_, err = facts.MembershipOf(&pods[i])
		note(&pods[i], err)
	}
	var notes []string
	for _, why := range slices.Sorted(maps.Keys(by)) {
		slices.Sort(by[why])
		notes = append(notes, words.Named(slices.Compact(by[why]), maxNamed)+": "+why)
	}
	return notes
}
