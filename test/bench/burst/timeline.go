package main

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// timeline is what a watch shows of a burst, by the names of the objects.
type timeline struct {
	claims map[string]*claimSeen
	nodes  map[string]*nodeSeen
	pods   map[string]*podSeen
	// stored has a pod of each Deployment as the API server returns it, by the beginning of the name.
	stored map[string]*corev1.Pod
}

// claimSeen is a NodeClaim.
type claimSeen struct {
	Name string
	Seen time.Time
	// Type is the instance type. Planned has the numbers of pods for which it was launched, by the keys of their shapes, and Plan the plan that launched it.
	Type    string
	Planned map[string]int
	Plan    string
	// Changed is how often the pods were exchanged, the last time for those in Now.
	Changed  int
	Now      map[string]int
	Launched time.Time
	Node     string
}

// nodeSeen is a Node.
type nodeSeen struct {
	// Opened is when its startup taint was removed.
	Seen, Opened time.Time
}

// podSeen is a pod.
type podSeen struct {
	Name                string
	Created, Bound, Ran time.Time
	// Tried is when the scheduler found no node for it, and why. A try with the same result as the one before is not seen.
	Tried  []time.Time
	reason string
	Node   string
	// Nominated has its nominations and, with an empty node, their ends, in order.
	Nominated []nomination
}

type nomination struct {
	Node string
	At   time.Time
}

// nominatedAt returns the node for which the pod is nominated at a time, or "" if there is none.
func (p *podSeen) nominatedAt(at time.Time) string {
	node := ""
	for _, n := range p.Nominated {
		if n.At.After(at) {
			break
		}
		node = n.Node
	}
	return node
}

func newTimeline() timeline {
	return timeline{claims: map[string]*claimSeen{}, nodes: map[string]*nodeSeen{}, pods: map[string]*podSeen{}, stored: map[string]*corev1.Pod{}}
}

// noteClaim records a NodeClaim. It reports whether it is new.
func (t *timeline) noteClaim(o *karpv1.NodeClaim, now time.Time) bool {
	c, known := t.claims[o.Name]
	planned := plannedPods(o.Annotations[v1alpha1.PlannedPodsAnnotation])
	if !known {
		plan, _, _ := strings.Cut(o.Annotations[v1alpha1.PlanAnnotation], "/")
		c = &claimSeen{Name: o.Name, Seen: now, Planned: planned, Now: planned, Plan: plan}
		t.claims[o.Name] = c
	}
	if !maps.Equal(planned, c.Now) {
		c.Changed, c.Now = c.Changed+1, planned
	}
	if is := o.Labels[corev1.LabelInstanceTypeStable]; is != "" {
		c.Type = is
	}
	if c.Launched.IsZero() && o.Status.ProviderID != "" {
		c.Launched = now
	}
	c.Node = o.Status.NodeName
	return !known
}

// plannedPods parses the annotation with the pods of a NodeClaim.
func plannedPods(text string) map[string]int {
	planned := map[string]int{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, "=")
		if n, err := strconv.Atoi(value); err == nil {
			planned[key] = n
		}
	}
	return planned
}

func (t *timeline) noteNode(o *corev1.Node, now time.Time) {
	n := t.nodes[o.Name]
	if n == nil {
		n = &nodeSeen{Seen: now}
		t.nodes[o.Name] = n
	}
	closed := slices.ContainsFunc(o.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.ReplicasNotReadyTaintKey })
	if n.Opened.IsZero() && !closed && o.Annotations[v1alpha1.ReplicasReadySinceAnnotation] != "" {
		n.Opened = now
	}
}

// notePod records a pod. It reports whether it runs now and did not before.
func (t *timeline) notePod(o *corev1.Pod, now time.Time) bool {
	p := t.pods[o.Name]
	if p == nil {
		p = &podSeen{Name: o.Name, Created: now}
		t.pods[o.Name] = p
		if of, _, _ := strings.Cut(o.Name, "-"); t.stored[of] == nil {
			t.stored[of] = o.DeepCopy()
		}
	}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != p.reason {
			p.Tried, p.reason = append(p.Tried, now), c.Message
		}
	}
	if o.Spec.NodeName != "" {
		if p.Bound.IsZero() {
			p.Bound, p.Node = now, o.Spec.NodeName
		}
	} else if is := o.Status.NominatedNodeName; is != p.nominatedAt(now) {
		p.Nominated = append(p.Nominated, nomination{is, now})
	}
	if p.Ran.IsZero() && o.Status.Phase == corev1.PodRunning {
		p.Ran = now
		return true
	}
	return false
}
