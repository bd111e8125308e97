package e2e

import (
	"fmt"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
	"karve.sh/karve/test/harness/nvidiadra"
)

// TestNVIDIAsDriverServesPodsBesideTheAgents has a pool for each backend in one cluster: pods with claims for NVIDIA's DeviceClass and pods that request nvidia.com/gpu share
// GPUs of NVIDIA's driver, and others have replicas of the agents' driver and of the device plugin.
func TestNVIDIAsDriverServesPodsBesideTheAgents(t *testing.T) {
	cluster.Long(t)
	cluster.Require(t)
	t.Parallel()
	w := ownWorld(t, cluster.Config{}, karve.Options{Alone: true, BatchIdle: 200 * time.Millisecond, DRA: true})
	s := w.scene(t, "nvidia")
	s.create(nvidiadra.DeviceClass("gpu"))
	s.class("5s", func(c *v1alpha1.GPUNodeClassSpec) {
		c.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(4)), Backend: v1alpha1.BackendNVIDIADRA}
	})
	s.pool(poolOptions{})
	agents, plugin := w.scene(t, "agents"), w.scene(t, "plugin")
	agents.class(v1alpha1.IdleNever, byDRA)
	agents.pool(poolOptions{})
	plugin.class(v1alpha1.IdleNever, func(c *v1alpha1.GPUNodeClassSpec) { c.Sharing.Backend = v1alpha1.BackendDevicePlugin })
	plugin.pool(poolOptions{})
	template := manifest("resource.k8s.io/v1", "ResourceClaimTemplate", "gpu", map[string]any{"spec": map[string]any{"devices": map[string]any{"requests": []any{
		map[string]any{"name": "gpu", "exactly": map[string]any{"deviceClassName": nvidiadra.Driver, "capacity": map[string]any{"requests": map[string]string{"memory": "3Gi"}}}},
	}}}})
	template.SetNamespace(s.name)
	s.create(template)
	claimed, requested := s.deploy("claims", 8, claimsByTemplate("gpu")), s.deploy("requests", 4, asks(v1alpha1.ResourceGPU, "1"))
	agents.deploy("replicas", 10)
	plugin.deploy("replicas", 10)
	s.untilRunning(12)
	agents.untilRunning(10)
	plugin.untilRunning(10)
	s.wantClaims(s.claims(), 3, karpv1.CapacityTypeOnDemand, 3*526_000)
	agents.wantClaims(agents.claims(), 1, karpv1.CapacityTypeOnDemand, 526_000)
	plugin.wantClaims(plugin.claims(), 1, karpv1.CapacityTypeOnDemand, 526_000)
	if got := s.backends(); got[string(v1alpha1.BackendNVIDIADRA)] != 3 {
		t.Errorf("the nodes have the backends %v", got)
	}
	shares := s.sharesOf(nvidiadra.Driver)
	if len(shares) != 3 {
		t.Errorf("claims have the GPUs %v, want three", shares)
	}
	for gpu, n := range shares {
		if n != 4 {
			t.Errorf("%d claims have the GPU %s, want 4", n, gpu)
		}
	}
	s.scale(claimed, 0)
	s.scale(requested, 0)
	s.untilGone(s.name)
	if n := len(s.claims()); n != 3 {
		t.Errorf("%d claims were made for 12 pods:\n%s", n, lines(s.claims()))
	}
}

// sharesOf returns how many claims have each GPU of a driver, by node and device.
func (s *scene) sharesOf(driver string) map[string]int {
	s.t.Helper()
	var list resourcev1.ResourceClaimList
	if err := s.api.List(s.t.Context(), &list); err != nil {
		s.t.Fatal(err)
	}
	count := map[string]int{}
	for i := range list.Items {
		if a := list.Items[i].Status.Allocation; a != nil {
			for _, r := range a.Devices.Results {
				if r.Driver == driver {
					count[fmt.Sprint(r.Pool, "/", r.Device)]++
				}
			}
		}
	}
	return count
}
