package snapshot_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// two returns a cluster with two machines. The first one runs pods of all kinds.
func two(edits ...func(*facts.Cluster)) *facts.Cluster {
	c := Shared()
	c.NodeClaims = []karpv1.NodeClaim{Claim("a", &c.NodePools[0], xlarge, Initialized(Now)), Claim("b", &c.NodePools[0], xlarge, Initialized(Now))}
	c.Nodes = []corev1.Node{Node(&c.NodeClaims[0], xlarge, 10), Node(&c.NodeClaims[1], xlarge, 10)}
	terminating := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: Now} }
	on := func(name string, edits ...func(*corev1.Pod)) corev1.Pod {
		return Pod(name, append([]func(*corev1.Pod){Running("a")}, edits...)...)
	}
	c.Pods = []corev1.Pod{
		on("web"), on("evicted", terminating), on("ended", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		on("agent", OwnedBy("apps/v1", "DaemonSet", "agent")), on("cpu", Asking("cpu", "1")),
		on("db-0", OwnedBy("apps/v1", "StatefulSet", "db"), terminating),
	}
	for _, edit := range edits {
		edit(c)
	}
	return c
}

func replacing(c *facts.Cluster) {
	c.NodeClaims[0].Annotations[v1alpha1.ReplacingAnnotation] = "NodePoolDrifted"
}

func deleted(c *facts.Cluster) { c.NodeClaims[0].DeletionTimestamp = &metav1.Time{Time: Now} }

func wanting(v snapshot.View) []string { return slices.Sorted(maps.Keys(v.Pods)) }

func nodes(v snapshot.View) []string {
	var names []string
	for _, n := range v.Nodes {
		names = append(names, n.Name)
	}
	return names
}

func TestPodsOfLeavingMachineNeedPlaceElsewhere(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*facts.Cluster){
		"replaced":         replacing,
		"deleted":          deleted,
		"its Node deleted": func(c *facts.Cluster) { c.Nodes[0].DeletionTimestamp = &metav1.Time{Time: Now} },
		"drained by Karpenter": func(c *facts.Cluster) {
			c.Nodes[0].Spec.Taints = append(c.Nodes[0].Spec.Taints, karpv1.DisruptedNoScheduleTaint)
		},
	} {
		v := snapshot.Build(two(edit))
		// These pods come back elsewhere. A StatefulSet creates a pod again only after the old one is gone.
		if diff := cmp.Diff([]string{"default/db-0", "default/web"}, wanting(v)); diff != "" {
			t.Errorf("%s: pods (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff([]string{"b"}, nodes(v)); diff != "" {
			t.Errorf("%s: rooms (-want +got):\n%s", name, diff)
		}
	}
	stays := snapshot.Build(two(func(c *facts.Cluster) {
		c.Nodes[0].Spec.Taints = append(c.Nodes[0].Spec.Taints, corev1.Taint{Key: v1alpha1.DisruptingTaintKey, Effect: corev1.TaintEffectNoSchedule})
	}))
	if diff := cmp.Diff([]string{"a", "b"}, nodes(stays)); diff != "" || len(stays.Pods) != 0 {
		t.Errorf("a machine that is kept when pods come: %v (-want +got):\n%s", wanting(stays), diff)
	}
}

// A pod with anti-affinity to a pod that is about to move need not avoid that pod's current domain.
func TestRulesIgnoreCurrentDomainOfMovingPods(t *testing.T) {
	t.Parallel()
	apart := func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "web"}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}, TopologyKey: corev1.LabelTopologyZone},
			},
		}}
	}
	one := func(c *facts.Cluster) { c.Pods = []corev1.Pod{Pod("web", Running("a"), apart)} }
	plan := func(edits ...func(*facts.Cluster)) planner.Plan {
		return solve.Plan(snapshot.Build(two(edits...)).Snapshot)
	}
	if p := plan(one, replacing); len(p.Placements) != 1 || len(p.Launches)+len(p.Unplaced) > 0 {
		t.Errorf("the pod has no place on the other machine in its zone: %+v", p)
	}
	waits := func(c *facts.Cluster) { c.Pods = append(c.Pods, Pod("other", apart)) }
	if p := plan(one, waits); len(p.Placements) > 0 {
		t.Errorf("a pod of the same kind has a place in the zone: %+v", p)
	}
}

func TestAsIsHoldsOnlyReadyNodes(t *testing.T) {
	t.Parallel()
	starting := func(c *facts.Cluster) {
		c.NodeClaims = append(c.NodeClaims, Claim("c", &c.NodePools[0], xlarge, Registered(Now)))
		c.Nodes = append(c.Nodes, Node(&c.NodeClaims[2], xlarge, 0))
	}
	c := two(replacing, starting)
	if diff := cmp.Diff([]string{"b", "c"}, nodes(snapshot.Build(c))); diff != "" {
		t.Errorf("with all that is to come (-want +got):\n%s", diff)
	}
	v := asIs(c)
	if diff := cmp.Diff([]string{"b"}, nodes(v)); diff != "" || len(v.Pods) > 0 {
		t.Errorf("%v need a place; rooms (-want +got):\n%s", wanting(v), diff)
	}
	v = asIs(c, "a")
	if diff := cmp.Diff([]string{"default/db-0", "default/web"}, wanting(v)); diff != "" {
		t.Errorf("pods of a machine that goes (-want +got):\n%s", diff)
	}
	if got := wanting(asIs(two(deleted))); len(got) != 2 {
		t.Errorf("pods of a machine that somebody deletes: %v", got)
	}
	full := two(replacing, func(c *facts.Cluster) {
		c.Pods = append(c.Pods, Pods("full", 9, Running("b"))...)
	})
	if p := solve.Plan(asIs(full, "a").Snapshot); len(p.Launches) > 0 || len(p.Unplaced) != 1 {
		t.Errorf("one place for two pods: %+v", p)
	}
}

// asIs returns the view of the current cluster when these machines leave.
func asIs(c *facts.Cluster, going ...string) snapshot.View {
	v := snapshot.Build(c)
	return v.AsIs(snapshot.WhatIf{}, going)
}

func TestWhatIfMatchesChangedCluster(t *testing.T) {
	t.Parallel()
	cordoned := func(c *facts.Cluster) { c.Nodes[1].Spec.Unschedulable = true }
	for name, tc := range map[string]struct {
		before, after *facts.Cluster
		change        snapshot.WhatIf
	}{
		"no change":          {two(replacing), two(replacing), snapshot.WhatIf{}},
		"a machine leaves":   {two(), two(replacing), snapshot.WhatIf{Leaving: []string{"a"}}},
		"a machine stays":    {two(replacing), two(), snapshot.WhatIf{Staying: []string{"a"}}},
		"a node is cordoned": {two(replacing), two(replacing, cordoned), snapshot.WhatIf{Cordoned: []string{"b"}}},
	} {
		before := snapshot.Build(tc.before)
		if diff := cmp.Diff(snapshot.Build(tc.after).Snapshot, before.WhatIf(tc.change).Snapshot); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
