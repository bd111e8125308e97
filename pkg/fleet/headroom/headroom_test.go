package headroom_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/headroom"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

var xlarge = TypeNamed("g4dn.xlarge")

// warm returns a cluster whose pool has a headroom of the given number of replicas.
func warm(replicas int32, edits ...func(*facts.Cluster)) *facts.Cluster {
	c := Shared()
	c.GPUNodeClasses[0].Spec.Headroom = []v1alpha1.Headroom{{Replicas: replicas}}
	for _, edit := range edits {
		edit(c)
	}
	return c
}

// having adds a started machine of the type with the given number of pods.
func having(name, instanceType string, pods int) func(*facts.Cluster) {
	return func(c *facts.Cluster) {
		t := TypeNamed(instanceType)
		claim := Claim(name, &c.NodePools[0], t, Initialized(Now))
		c.NodeClaims = append(c.NodeClaims, claim)
		c.Nodes = append(c.Nodes, Node(&claim, t, 10*t.GPU.Count))
		c.Pods = append(c.Pods, Pods("on-"+name, pods, Running(name))...)
	}
}

// coming adds a machine that is still starting.
func coming(name string) func(*facts.Cluster) {
	return func(c *facts.Cluster) { c.NodeClaims = append(c.NodeClaims, Claim(name, &c.NodePools[0], xlarge)) }
}

// replacing marks the first machine as being replaced.
func replacing(c *facts.Cluster) {
	c.NodeClaims[0].Annotations[v1alpha1.ReplacingAnnotation] = "Drifted"
}

func waiting(pods int) func(*facts.Cluster) {
	return func(c *facts.Cluster) { c.Pods = append(c.Pods, Pods("waiting", pods)...) }
}

func limited(gpus string) func(*facts.Cluster) {
	return func(c *facts.Cluster) { c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts("nvidia.com/gpu", gpus)) }
}

// headroomOf makes a plan for the pods of a cluster and then for its headroom.
func headroomOf(t *testing.T, c *facts.Cluster) headroom.Headroom {
	t.Helper()
	v := snapshot.Build(c)
	plan := solve.Plan(v.Snapshot)
	h := headroom.Build(&v, plan, solve.Solver{})
	if err := check.Plan(h.Snapshot, h.Plan); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestHeadroom(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		cluster *facts.Cluster
		// wanted, free and coming are replicas. launches are the types to launch, and keeps the Nodes that are kept for the headroom.
		wanted, free, coming int64
		launches             []string
		keeps                []string
		refused              planner.Reason
	}{
		"launches a machine if nothing is free": {
			cluster: warm(10), wanted: 10, coming: 10, launches: []string{"g4dn.xlarge"},
		},
		"prefers machines with pods over idle ones": {
			cluster: warm(10, having("a", "g4dn.xlarge", 0), having("b", "g4dn.12xlarge", 30)), wanted: 10, free: 10, keeps: []string{"b"},
		},
		"keeps a needed idle machine": {
			cluster: warm(10, having("a", "g4dn.xlarge", 6), having("b", "g4dn.xlarge", 0), having("c", "g4dn.xlarge", 0)), wanted: 10, free: 10, keeps: []string{"a", "b"},
		},
		"keeps the cheaper of two idle machines": {
			cluster: warm(10, having("a", "g4dn.12xlarge", 0), having("b", "g4dn.xlarge", 0)), wanted: 10, free: 10, keeps: []string{"b"},
		},
		"prefers a started machine over a starting one": {
			cluster: warm(10, coming("a"), having("b", "g4dn.2xlarge", 0)), wanted: 10, free: 10, keeps: []string{"b"},
		},
		"drops a machine that costs more than twice as much as others": {
			cluster: warm(10, having("b", "g4dn.12xlarge", 0)), wanted: 10, coming: 10, launches: []string{"g4dn.xlarge"},
		},
		"drops an expensive machine for a starting one": {
			cluster: warm(10, coming("a"), having("b", "g4dn.12xlarge", 0)), wanted: 10, coming: 10, keeps: []string{"a"},
		},
		"keeps an expensive machine if others cost more than half": {
			cluster: warm(40, having("b", "g4dn.12xlarge", 0)), wanted: 40, free: 40, keeps: []string{"b"},
		},
		"keeps an expensive machine at the limit of the pool": {
			cluster: warm(10, having("b", "g4dn.12xlarge", 0), limited("4")), wanted: 10, free: 10, keeps: []string{"b"},
		},
		"counts starting machines and launches the rest": {
			cluster: warm(25, coming("a"), having("b", "g4dn.xlarge", 7)), wanted: 25, free: 3, coming: 22, keeps: []string{"a", "b"},
			launches: []string{"g4dn.xlarge", "g4dn.xlarge"},
		},
		"uses what pending pods leave": {
			cluster: warm(4, having("a", "g4dn.xlarge", 3), waiting(5)), wanted: 4, free: 2, coming: 2, keeps: []string{"a"}, launches: []string{"g4dn.xlarge"},
		},
		"uses what is left on machines launched for pods": {
			cluster: warm(4, waiting(5)), wanted: 4, coming: 4,
		},
		"ignores leaving machines": {
			cluster: warm(10, having("a", "g4dn.xlarge", 0), replacing), wanted: 10, coming: 10, launches: []string{"g4dn.xlarge"},
		},
		"ignores machines that take no pods of the pool": {
			cluster: warm(10, having("a", "g4dn.xlarge", 0), func(c *facts.Cluster) {
				c.Nodes[0].Spec.Taints = append(c.Nodes[0].Spec.Taints, corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoSchedule})
			}), wanted: 10, coming: 10, launches: []string{"g4dn.xlarge"},
		},
		"ignores replicas without CPU": {
			cluster: warm(1, having("a", "g4dn.xlarge", 1), func(c *facts.Cluster) {
				Asking("cpu", "3600m", v1alpha1.ResourceGPUShared, "1")(&c.Pods[0])
			}), wanted: 1, coming: 1, launches: []string{"g4dn.xlarge"},
		},
		"stays within the limits of the pool": {
			cluster: warm(25, having("a", "g4dn.xlarge", 0), limited("2")), wanted: 25, free: 10, coming: 10, keeps: []string{"a"},
			launches: []string{"g4dn.xlarge"}, refused: planner.ReasonLimitReached,
		},
		"yields to pods that a limit leaves out": {
			cluster: warm(10, having("a", "g4dn.xlarge", 0), limited("1"), func(c *facts.Cluster) {
				c.Pods = append(c.Pods, Pod("large", Asking("cpu", "6", v1alpha1.ResourceGPUShared, "1")))
			}), wanted: 10, refused: planner.ReasonLimitReached,
		},
		"waits for a pool that is not ready": {
			cluster: warm(10, func(c *facts.Cluster) { c.NodePools[0].Spec.Template.Spec.Taints = nil }), wanted: 10, refused: planner.ReasonPoolClosed,
		},
		"launches one machine while the pool is probed": {
			cluster: warm(30, func(c *facts.Cluster) {
				np := &c.NodePools[0]
				np.StatusConditions().SetUnknownWithReason(v1alpha1.ConditionReplicasHealthy, "Probing", "")
			}), wanted: 30, coming: 10, launches: []string{"g4dn.xlarge"}, refused: planner.ReasonPoolClosed,
		},
		"is empty for a deleted pool": {
			cluster: warm(10, func(c *facts.Cluster) { c.NodePools[0].DeletionTimestamp = &metav1.Time{Time: Now} }),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := headroomOf(t, x.cluster)
			r, asked := h.Of("gpu-shared")
			if asked != (x.wanted > 0) || r.Wanted != x.wanted || r.Free != x.free || r.Coming != x.coming {
				t.Errorf("%d wanted, %d free, %d coming; want %d, %d, %d", r.Wanted, r.Free, r.Coming, x.wanted, x.free, x.coming)
			}
			var refused planner.Reason
			if r.Refused != nil {
				refused = r.Refused.Reason
			}
			if refused != x.refused {
				t.Errorf("refused for %q (%+v), want %q", refused, r.Refused, x.refused)
			}
			var launches []string
			for _, l := range h.Plan.Launches {
				launches = append(launches, h.Offerings[l.Offering].Type.Name)
			}
			if diff := cmp.Diff(x.launches, launches); diff != "" {
				t.Errorf("launches (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(x.keeps, slices.Sorted(maps.Keys(h.Keeps()))); diff != "" {
				t.Errorf("Nodes that are kept (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHeadroomDoesNotChangePlanForPods(t *testing.T) {
	t.Parallel()
	edits := []func(*facts.Cluster){having("a", "g4dn.xlarge", 3), waiting(17)}
	with, without := snapshot.Build(warm(100, edits...)), snapshot.Build(warm(1, append(edits, func(c *facts.Cluster) { c.GPUNodeClasses[0].Spec.Headroom = nil })...))
	if diff := cmp.Diff(without.Snapshot, with.Snapshot); diff != "" {
		t.Errorf("the snapshot changes (-without +with):\n%s", diff)
	}
	view := snapshot.Build(warm(100, edits...))
	as := view.AsIs(snapshot.WhatIf{}, nil)
	if h := headroom.Build(&as, planner.Plan{}, solve.Solver{}); len(h.Plan.Unplaced)+len(h.Plan.Launches)+len(h.Plan.Placements) > 0 {
		t.Errorf("a view as is has headroom: %+v", h.Plan)
	}
}

func TestBurstOfPodsWithReplicaShareFitsHeadroom(t *testing.T) {
	t.Parallel()
	c := warm(10, having("a", "g4dn.xlarge", 3), having("b", "g4dn.xlarge", 0))
	h := headroomOf(t, c)
	share, memory := h.Pools[0].ReplicaShare()
	if want := (planner.Resources{MilliCPU: 351, MemoryBytes: 15 << 30 / 10 * 9 / 10, Pods: 1, Replicas: 1}); share != want {
		t.Errorf("a replica comes with %+v, want %+v", share, want)
	}
	c.Pods = append(c.Pods, Pods("burst", 10, Asking("cpu", fmt.Sprintf("%dm", share.MilliCPU), "memory", fmt.Sprint(share.MemoryBytes), v1alpha1.ResourceGPUShared, "1"),
		GPUMemory(fmt.Sprint(memory)))...)
	if plan := solve.Plan(snapshot.Build(c).Snapshot); len(plan.Launches)+len(plan.Unplaced) > 0 {
		t.Errorf("a burst within the headroom needs %d machines, and %d pods find no place", len(plan.Launches), len(plan.Unplaced))
	}
}

func TestHeadroomFollowsSchedule(t *testing.T) {
	t.Parallel()
	at := func(when string) time.Time {
		now, err := time.Parse(time.RFC3339, when)
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	entries := []v1alpha1.Headroom{
		{Replicas: 2},
		{Replicas: 10, Schedule: "0 7 * * mon-fri", Duration: "10h"},
		{Replicas: 30, Schedule: "0 9 * * mon", Duration: "30m"},
		{Replicas: 99, Schedule: "0 0 31 2 *", Duration: "720h"}, // a day that does not exist
	}
	for when, want := range map[string]int64{
		"2026-03-02T06:59:59Z":      2, // Monday
		"2026-03-02T07:00:00Z":      10,
		"2026-03-02T09:00:00Z":      30,
		"2026-03-02T09:29:59Z":      30,
		"2026-03-02T09:30:00Z":      10,
		"2026-03-02T16:59:59Z":      10,
		"2026-03-02T17:00:00Z":      2,
		"2026-03-07T12:00:00Z":      2, // Saturday
		"2026-03-02T09:00:00+02:00": 10,
	} {
		c := warm(1, func(c *facts.Cluster) { c.GPUNodeClasses[0].Spec.Headroom, c.Now = entries, at(when) })
		h := headroomOf(t, c)
		if r, _ := h.Of("gpu-shared"); r.Wanted != want {
			t.Errorf("at %s %d are wanted, want %d", when, r.Wanted, want)
		}
	}
}

func TestInvalidHeadroomEntryIsReportedAndIgnored(t *testing.T) {
	t.Parallel()
	for want, entry := range map[string]v1alpha1.Headroom{
		"spec.headroom[1].schedule": {Replicas: 5, Schedule: "0 25 * * *", Duration: "1h"},
		"spec.headroom[1].duration": {Replicas: 5, Schedule: "0 5 * * *", Duration: "1 hour"},
	} {
		c := warm(2)
		class := &c.GPUNodeClasses[0]
		class.Spec.Headroom = append(class.Spec.Headroom, entry)
		if err := snapshot.HeadroomError(class); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want one that begins with %s", err, want)
		}
		h := headroomOf(t, c)
		if r, _ := h.Of("gpu-shared"); r.Wanted != 2 {
			t.Errorf("%d are wanted, want those of the other entry", r.Wanted)
		}
	}
	if err := snapshot.HeadroomError(&warm(2).GPUNodeClasses[0]); err != nil {
		t.Error(err)
	}
}
