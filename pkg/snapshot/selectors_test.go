package snapshot_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// selecting returns a pod with a claim that has the selectors.
func selecting(namespace, name string, expressions ...string) corev1.Pod {
	pod := Pod(name, in(namespace), Asking("cpu", "100m"), func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
	})
	claim := resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	request := resourcev1.ExactDeviceRequest{DeviceClassName: "gpu.karve.sh", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}
	for _, e := range expressions {
		request.Selectors = append(request.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: e}})
	}
	claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &request}}
	class := claims.DeviceClass(v1alpha1.ResourceGPUShared)
	class.Name = "gpu.karve.sh"
	return *claims.New([]resourcev1.ResourceClaim{claim}, nil, []resourcev1.DeviceClass{class}, nil).On(&pod)
}

// selectors returns n selectors of 900 bytes.
func selectors(n int, name string) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("'%s-%d'!=''", name, i) + strings.Repeat("||device.driver==''", 45)
	}
	return all
}

func TestClaimsWithManySelectorsTakeTurnsWithoutDelayingOtherNamespaces(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.DRA = facts.DRA{Known: true, Enabled: true, Classes: []resourcev1.DeviceClass{claims.DeviceClass(v1alpha1.ResourceGPUShared)}}
	c.GPUNodeClasses[0].Spec.Sharing.Backend = v1alpha1.BackendDRA
	const pods = 60
	for i := range pods {
		name := fmt.Sprintf("many-%02d", i)
		c.Pods = append(c.Pods, selecting("crowd", name, selectors(4, name)...))
	}
	c.Pods = append(c.Pods, selecting("other", "plain", "device.driver == 'gpu.karve.sh'"))
	for i := range 200 { // Equal selectors are evaluated once.
		c.Pods = append(c.Pods, selecting("third", fmt.Sprintf("equal-%03d", i), selectors(4, "equal")...))
	}
	had := map[string]bool{}
	for round := 0; len(had) < pods; round++ {
		if round > pods {
			t.Fatalf("%d of %d pods had a turn in %d rounds", len(had), pods, round)
		}
		v := snapshot.Build(c)
		now := 0
		for name := range v.Pods {
			if strings.HasPrefix(name, "crowd/") {
				had[name] = true
				now++
			}
		}
		if now > pods/2 {
			t.Errorf("%d pods with selectors of their own are planned for in round %d", now, round)
		}
		if v.Pods["other/plain"] == nil || v.Pods["third/equal-199"] == nil {
			t.Fatalf("a pod of another namespace waits in round %d", round)
		}
		plan := refused(&v)
		if round == 0 {
			plan = solve.Solver{}.Plan(v.Snapshot)
			if err := check.Plan(v.Snapshot, plan); err != nil {
				t.Fatal(err)
			}
			if plan.Unplaced != nil {
				t.Errorf("pods have no place: %v", plan.Unplaced[0])
			}
			plan = refused(&v)
		}
		c.Queue = v.NextQueue(c.Queue, plan)
	}
}
