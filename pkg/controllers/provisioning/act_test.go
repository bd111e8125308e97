package provisioning

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/events"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

func TestPoolsTakeTurnsLaunching(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	c.NodePools = append(c.NodePools, c.NodePools[0], c.NodePools[0])
	c.NodePools[1].Name, c.NodePools[2].Name = "stuck", "third"
	for i := range 3 {
		c.NodeClaims = append(c.NodeClaims, snapshottest.Claim(fmt.Sprintf("stuck-%d", i), &c.NodePools[1], snapshottest.TypeNamed("g4dn.xlarge")),
			snapshottest.Claim(fmt.Sprintf("launched-%d", i), &c.NodePools[1], snapshottest.TypeNamed("g4dn.xlarge"), snapshottest.Launched(c.Now)))
	}
	view := snapshot.Build(c)
	of := func(pools ...string) []planner.Launch {
		var launches []planner.Launch
		for _, pool := range pools {
			at := slices.IndexFunc(view.Snapshot.Offerings, func(o planner.Offering) bool { return view.Snapshot.Pools[o.Pool].Name == pool })
			launches = append(launches, planner.Launch{Offering: at})
		}
		return launches
	}
	for name, x := range map[string]struct {
		launches []planner.Launch
		window   int
		want     []int
	}{
		"all within the limit":                    {of("gpu-shared", "gpu-shared", "stuck"), 8, []int{0, 1, 2}},
		"one pool after another":                  {of("gpu-shared", "gpu-shared", "gpu-shared", "stuck", "third"), 6, []int{0, 3, 4}},
		"one for a pool without pending launches": {of("gpu-shared", "gpu-shared", "stuck", "third"), 3, []int{0, 3}},
		"none for a pool with pending launches":   {of("stuck", "stuck"), 3, nil},
		"none without launches":                   {nil, 8, nil},
		"none if the window is exceeded":          {of("stuck"), 1, nil},
		"a single pool fills the window":          {of("gpu-shared", "gpu-shared", "gpu-shared"), 5, []int{0, 1}},
	} {
		if got := inTurn(&view, x.launches, x.window); !slices.Equal(got, x.want) {
			t.Errorf("%s: %v, want %v", name, got, x.want)
		}
	}
}

func TestPodSetAsideGetsOneEvent(t *testing.T) {
	t.Parallel()
	recorder := events.NewFakeRecorder(100)
	c := New(Config{Recorder: recorder})
	cluster := snapshottest.Shared()
	cluster.Pods = snapshottest.Pods("web", 1)
	view := snapshot.Build(cluster)
	plan := planner.Plan{Unplaced: []planner.Unplaced{{
		Pod: snapshot.PodName(&cluster.Pods[0]), Refusal: planner.Refusal{Reason: planner.ReasonSetAside, Message: "no plan with it keeps all rules"},
	}}}
	for range 2 {
		c.recordEvents(&view, plan)
	}
	if n := len(recorder.Events); n != 1 {
		t.Fatalf("there are %d events, want one", n)
	}
	if got := <-recorder.Events; !strings.HasPrefix(got, "Warning SetAside ") {
		t.Errorf("the pod is told %q", got)
	}
}
