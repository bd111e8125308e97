package snapshot_test

import (
	"testing"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func TestNodePoolAndClassDecideConsolidation(t *testing.T) {
	t.Parallel()
	const underutilized, empty = karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized, karpv1.ConsolidationPolicyWhenEmpty
	for name, tc := range map[string]struct {
		pool             karpv1.ConsolidationPolicy
		consolidateAfter string
		class            v1alpha1.ConsolidationPolicy
		idleAfter        string
		after            time.Duration
		never, moves     bool
		keeps            string
	}{
		"the defaults leave it to the class":             {underutilized, "0s", v1alpha1.ConsolidateWhenCheaper, "5m", 5 * time.Minute, false, true, ""},
		"a shorter consolidateAfter is met by idleAfter": {underutilized, "30s", v1alpha1.ConsolidateWhenCheaper, "5m", 5 * time.Minute, false, true, ""},
		"a longer consolidateAfter wins":                 {underutilized, "30m", v1alpha1.ConsolidateWhenCheaper, "5m", 30 * time.Minute, false, true, ""},
		"WhenEmpty moves no pods":                        {empty, "0s", v1alpha1.ConsolidateWhenCheaper, "5m", 5 * time.Minute, false, false, ""},
		"WhenIdle moves no pods":                         {underutilized, "0s", v1alpha1.ConsolidateWhenIdle, "5m", 5 * time.Minute, false, false, ""},
		"Balanced equals the default":                    {karpv1.ConsolidationPolicyBalanced, "0s", v1alpha1.ConsolidateWhenCheaper, "5m", 5 * time.Minute, false, true, ""},
		"no policy is the default":                       {"", "0s", v1alpha1.ConsolidateWhenCheaper, "5m", 5 * time.Minute, false, true, ""},
		"idleAfter Never still moves pods":               {underutilized, "30m", v1alpha1.ConsolidateWhenCheaper, "Never", 0, true, true, ""},
		"an invalid idleAfter still moves pods":          {underutilized, "0s", v1alpha1.ConsolidateWhenCheaper, "soon", 0, true, true, ""},
		"a NodePool that never consolidates keeps idle nodes and moves no pods": {
			underutilized, "Never", v1alpha1.ConsolidateWhenCheaper, "5m", 5 * time.Minute, false, false,
			"spec.disruption.consolidateAfter of NodePool gpu-shared is Never; 0s leaves it to the GPUNodeClass",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			c.GPUNodeClasses[0].Spec.Consolidation = v1alpha1.Consolidation{IdleAfter: tc.idleAfter, Policy: tc.class}
			c.NodePools[0].Spec.Disruption = karpv1.Disruption{ConsolidationPolicy: tc.pool, ConsolidateAfter: karpv1.MustParseNillableDuration(tc.consolidateAfter)}
			pool := snapshot.Pools(c)[0]
			if after, never := pool.IdleAfter(); after != tc.after || never != tc.never {
				t.Errorf("IdleAfter() = %v, %t; want %v, %t", after, never, tc.after, tc.never)
			}
			if moves := pool.MovesPods(); moves != tc.moves {
				t.Errorf("MovesPods() = %t, want %t", moves, tc.moves)
			}
			if keeps := pool.KeepsIdle(); keeps != tc.keeps {
				t.Errorf("KeepsIdle() = %q, want %q", keeps, tc.keeps)
			}
		})
	}
}

func TestPoolWithoutClassUsesDefaultIdleDuration(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.GPUNodeClasses = nil
	pool := snapshot.Pools(c)[0]
	if after, never := pool.IdleAfter(); after != 5*time.Minute || never || pool.MovesPods() {
		t.Errorf("IdleAfter() = %v, %t; MovesPods() = %t", after, never, pool.MovesPods())
	}
}
