package provisioning

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func TestNothingIsLaunchedToSaveNothing(t *testing.T) {
	t.Parallel()
	const moving, pending = "default/moving-000", "default/pending"
	deleting := func(claim *karpv1.NodeClaim) { claim.DeletionTimestamp = &claim.CreationTimestamp }
	for name, c := range map[string]struct {
		why      string // of the replacement of a g4dn.2xlarge
		edits    []func(*karpv1.NodeClaim)
		types    []string // of the launches
		pods     [][]string
		wantWait []bool
	}{
		"for less":                     {"Underutilized", nil, []string{"g4dn.xlarge"}, [][]string{{moving}}, []bool{false}},
		"for as much":                  {"Underutilized", nil, []string{"g4dn.2xlarge"}, [][]string{{moving}}, []bool{true}},
		"for more":                     {"Underutilized", nil, []string{"g4dn.12xlarge"}, [][]string{{moving}}, []bool{true}},
		"two that together cost more":  {"Underutilized", nil, []string{"g4dn.xlarge", "g4dn.xlarge"}, [][]string{{moving}, {"default/moving-001"}}, []bool{true, true}},
		"with a pending pod":           {"Underutilized", nil, []string{"g4dn.2xlarge"}, [][]string{{moving, pending}}, []bool{false}},
		"beside one for a pending pod": {"Underutilized", nil, []string{"g4dn.2xlarge", "g4dn.2xlarge"}, [][]string{{pending}, {moving}}, []bool{false, true}},
		"the machine has drifted":      {"Drifted", nil, []string{"g4dn.2xlarge"}, [][]string{{moving}}, []bool{false}},
		"the machine is being deleted": {"Underutilized", []func(*karpv1.NodeClaim){deleting}, []string{"g4dn.2xlarge"}, [][]string{{moving}}, []bool{false}},
		"for headroom":                 {"Underutilized", nil, []string{"g4dn.2xlarge"}, [][]string{{"headroom"}}, []bool{false}},
		"no launch":                    {"Underutilized", nil, nil, nil, []bool{}},
		"no machine is replaced":       {"", nil, []string{"g4dn.2xlarge"}, [][]string{{pending}}, []bool{false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := Shared()
			large := TypeNamed("g4dn.2xlarge")
			claim := Claim("leaving", &cluster.NodePools[0], large, slices.Concat([]func(*karpv1.NodeClaim){Initialized(Now.Add(-time.Hour)), func(claim *karpv1.NodeClaim) {
				if c.why != "" {
					claim.Annotations[v1alpha1.ReplacingAnnotation] = c.why
				}
			}}, c.edits)...)
			node := Node(&claim, large, 10)
			cluster.NodeClaims, cluster.Nodes = append(cluster.NodeClaims, claim), append(cluster.Nodes, node)
			cluster.Pods = slices.Concat(Pods("moving", 2, Running(node.Name)), []corev1.Pod{Pod("pending")})
			view := snapshot.Build(cluster)
			var launches []planner.Launch
			for i, name := range c.types {
				at := slices.IndexFunc(view.Offerings, func(o *snapshot.Offering) bool { return o.Type.Name == name })
				launches = append(launches, planner.Launch{Offering: at, Pods: c.pods[i]})
			}
			if got := saveNothing(&view, launches); !slices.Equal(got, c.wantWait) {
				t.Errorf("they wait: %v, want %v", got, c.wantWait)
			}
		})
	}
}
