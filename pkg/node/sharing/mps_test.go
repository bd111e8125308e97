package sharing_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/labels"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

func TestLimitsOfMPS(t *testing.T) {
	t.Parallel()
	devices := gpus(2)
	for i := range devices {
		devices[i].ComputeMajor, devices[i].MemoryMiB = 7, 15360
	}
	of := func(at int, memory, threads int64, multiUser bool) mps.Limits {
		return mps.Limits{UUID: devices[at].UUID, MemoryMiB: memory, ThreadPercent: threads, MultiUser: multiUser}
	}
	read := func(yaml string) sharing.Config {
		c, _, err := sharing.Read([]byte(yaml), true)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	promised := func(replicas int, m nodecontract.MPS) sharing.Config {
		c, err := sharing.FromPromise(sharing.Promise{Resource: nodecontract.ResourceGPUShared, Replicas: replicas, MPS: m})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for name, c := range map[string]struct {
		config sharing.Config
		want   []mps.Limits
		label  labels.Strategy
	}{
		"NVIDIA's configuration":  {read("sharing: {mps: {resources: [{name: gpu, replicas: 10}]}}"), []mps.Limits{of(0, 1536, 10, true), of(1, 1536, 10, true)}, labels.MPS},
		"each GPU has its own":    {read("sharing: {mps: {resources: [{name: gpu, replicas: 10, devices: [0]}, {name: gpu, replicas: 4, devices: [1]}]}}"), []mps.Limits{of(0, 1536, 10, true), of(1, 3840, 25, true)}, labels.MPS},
		"one GPU is not shared":   {read("sharing: {mps: {resources: [{name: gpu, replicas: 10, devices: [1]}]}}"), []mps.Limits{of(1, 1536, 10, true)}, labels.MPS},
		"a promise":               {promised(16, nodecontract.DefaultMPS), []mps.Limits{of(0, 960, 6, true), of(1, 960, 6, true)}, labels.MPS},
		"a promise with settings": {promised(16, nodecontract.MPS{MemoryOvercommitPercent: 150, ActiveThreadPercent: 40, Users: nodecontract.MPSUsersSingle}), []mps.Limits{of(0, 1440, 40, false), of(1, 1440, 40, false)}, labels.MPS},
		"time-slicing has none":   {promised(16, nodecontract.MPS{}), nil, labels.TimeSlicing},
		"whole GPUs have none":    {read("version: v1"), nil, labels.None},
		"MPS without a value":     {read("sharing: {mps: null, timeSlicing: {resources: [{name: gpu, replicas: 10}]}}"), nil, labels.TimeSlicing},
	} {
		got, err := c.config.Limits(devices)
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil || c.config.Label() != c.label {
			t.Errorf("%s: %v, %s (-want +got)\n%s", name, err, c.config.Label(), diff)
		}
	}
	settings := nodecontract.MPS{MemoryOvercommitPercent: 150, Users: nodecontract.MPSUsersAny}
	if p, alike := promised(16, settings).Promise(); !alike || !p.Equal(sharing.Promise{Resource: nodecontract.ResourceGPUShared, Replicas: 16, MPS: settings}) {
		t.Errorf("the promise is not kept: %+v", p)
	}
	resources, err := promised(16, settings).Resources(devices)
	if err != nil || !resources[0].FailRequestsGreaterThanOne {
		t.Errorf("a container may request several replicas: %+v, %v", resources, err)
	}
}
