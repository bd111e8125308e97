package metrics_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/metrics"
)

// TestMetricsOfInstances checks that a GPU and its MIG instances have their own metrics, and that its replicas are those of its instances.
func TestMetricsOfInstances(t *testing.T) {
	t.Parallel()
	devices := append(gputest.Divided(1, 2, "3g.20gb", 19968), gputest.T4s(2)[1])
	f := gputest.New(devices...)
	if _, err := f.Init(); err != nil {
		t.Fatal(err)
	}
	f.SetUsage(devices[0].UUID, gpu.Usage{MemoryUsedMiB: 900, GPUPercent: -1})
	f.SetUsage(devices[0].Instances[0].UUID, gpu.Usage{MemoryUsedMiB: 800, GPUPercent: -1})
	f.SetUsage(devices[0].Instances[1].UUID, gpu.Usage{MemoryUsedMiB: 100, GPUPercent: -1})
	held := []metrics.Held{
		{Namespace: "team", Pod: "infer", Container: "server", UUID: devices[0].Instances[1].UUID, Replicas: 1},
		{Namespace: "team", Pod: "train", Container: "main", UUID: devices[0].Instances[0].UUID, Replicas: 2},
		{Namespace: "team", Pod: "whole", Container: "main", UUID: devices[1].UUID, Replicas: 1},
	}
	x := metrics.New(metrics.Config{
		Library: f,
		Replicas: func() map[string]metrics.Replicas {
			return map[string]metrics.Replicas{devices[0].Instances[0].UUID: {Total: 3}, devices[0].Instances[1].UUID: {Total: 3}, devices[1].UUID: {Total: 1}}
		},
		Held: func() ([]metrics.Held, error) { return held, nil }, DCGM: true,
	})
	families := scrape(t, x)
	first, second := "mig="+devices[0].Instances[0].UUID+" profile=3g.20gb ", "mig="+devices[0].Instances[1].UUID+" profile=3g.20gb "
	for name, want := range map[string][]string{
		"karve_gpu_instance_memory_used_bytes":  {first + "838860800", second + "104857600"},
		"karve_gpu_instance_memory_total_bytes": {first + "20937965568", second + "20937965568"},
		"karve_gpu_instance_replicas":           {first + "3", second + "3"},
		"karve_gpu_instance_replicas_allocated": {first + "2", second + "1"},
		"karve_gpu_replicas":                    {" 6", " 1"},
		"karve_gpu_replicas_allocated":          {" 3", " 1"},
		"karve_pod_gpu_replicas": {
			"container=server gpu=" + devices[0].UUID + " mig=" + devices[0].Instances[1].UUID + " 1", "container=main gpu=" + devices[0].UUID + " mig=" + devices[0].Instances[0].UUID + " 2",
			"container=main gpu=" + devices[1].UUID + " 1",
		},
		"DCGM_FI_DEV_FB_USED": {
			"device=nvidia0 container=main GPU_I_PROFILE=3g.20gb GPU_I_ID=7 800", "device=nvidia0 container=server GPU_I_PROFILE=3g.20gb GPU_I_ID=8 100", "device=nvidia1 0",
		},
		"DCGM_FI_DEV_FB_FREE": {
			"device=nvidia0 container=main GPU_I_PROFILE=3g.20gb GPU_I_ID=7 19168", "device=nvidia0 container=server GPU_I_PROFILE=3g.20gb GPU_I_ID=8 19868", "device=nvidia1 15360",
		},
	} {
		without := []string{"product", "index", "namespace", "pod", "UUID", "modelName"}
		if name != "karve_pod_gpu_replicas" {
			without = append(without, "gpu")
		}
		if diff := cmp.Diff(want, samples(families[name], without...)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got := samples(families["karve_gpu_memory_used_bytes"], "product", "gpu"); !slices.Contains(got, "index=0 943718400") {
		t.Errorf("the memory of GPUs is %v", got)
	}
}

// TestReplicasOfInstancesCountOnce checks that a scrape, which sums the replicas of instances before and after it knows what pods hold, counts them once,
// also when the first instance has none.
func TestReplicasOfInstancesCountOnce(t *testing.T) {
	t.Parallel()
	devices := gputest.Divided(1, 2, "3g.20gb", 19968)
	f := gputest.New(devices...)
	if _, err := f.Init(); err != nil {
		t.Fatal(err)
	}
	second := devices[0].Instances[1].UUID
	x := metrics.New(metrics.Config{
		Library:  f,
		Replicas: func() map[string]metrics.Replicas { return map[string]metrics.Replicas{second: {Total: 3}} },
		Held: func() ([]metrics.Held, error) {
			return []metrics.Held{{Namespace: "team", Pod: "infer", Container: "server", UUID: second, Replicas: 2}}, nil
		},
	})
	families := scrape(t, x)
	for name, want := range map[string]string{"karve_gpu_replicas": "3", "karve_gpu_replicas_allocated": "2"} {
		if got := samples(families[name], "gpu", "index", "product"); !slices.Equal(got, []string{" " + want}) {
			t.Errorf("%s is %q instead of %s", name, got, want)
		}
	}
}
