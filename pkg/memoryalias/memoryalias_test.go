package memoryalias_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/memoryalias"
)

func limits(of ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(of); i += 2 {
		list[corev1.ResourceName(of[i])] = resource.MustParse(of[i+1])
	}
	return list
}

func policy(t *testing.T) memoryalias.Policy {
	t.Helper()
	var class v1alpha1.GPUNodeClass
	class.Name = "gpu-memory"
	class.Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMemorySlots, Memory: &v1alpha1.MemorySharing{Sizes: []string{"1536Mi", "4Gi", "8Gi"}}}
	p, ok := memoryalias.For(&class)
	if !ok {
		t.Fatal("the class has no slots")
	}
	return p
}

func TestPodsGetSmallestSlotThatIsLargeEnough(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		has, want corev1.ResourceList
		mib       bool
		gpuMiB    int64
		refused   string
	}{
		"gpushare":           {has: limits("aliyun.com/gpu-mem", "3"), want: limits("nvidia.com/gpu-4gb", "1")},
		"gpushare in MiB":    {has: limits("aliyun.com/gpu-mem", "3000"), mib: true, want: limits("nvidia.com/gpu-4gb", "1")},
		"HAMi":               {has: limits("nvidia.com/gpu", "1", "nvidia.com/gpumem", "1000", "nvidia.com/gpucores", "30", "cpu", "1"), want: limits("nvidia.com/gpu-1536mb", "1", "cpu", "1")},
		"HAMi in percent":    {has: limits("nvidia.com/gpu", "1", "nvidia.com/gpumem-percentage", "11"), gpuMiB: 15360, want: limits("nvidia.com/gpu-4gb", "1")},
		"a whole GPU":        {has: limits("nvidia.com/gpu", "1"), want: limits("nvidia.com/gpu", "1")},
		"too much":           {has: limits("aliyun.com/gpu-mem", "9"), want: limits("aliyun.com/gpu-mem", "9"), refused: "container c requests 9 GiB of device memory (aliyun.com/gpu-mem), and one slot of GPUNodeClass gpu-memory has 1536Mi, 4Gi, 8Gi: request less"},
		"two GPUs":           {has: limits("nvidia.com/gpu", "2", "nvidia.com/gpumem", "1000"), want: limits("nvidia.com/gpu", "2", "nvidia.com/gpumem", "1000"), refused: "device memory of 2 GPUs"},
		"percent of unknown": {has: limits("nvidia.com/gpumem-percentage", "5"), want: limits("nvidia.com/gpumem-percentage", "5"), refused: "memoryAliases.hamiGPUMemoryMiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := policy(t)
			p.MiB, p.HAMiGPUMemoryMiB = c.mib, c.gpuMiB
			before := c.has.DeepCopy()
			pod := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: c.has, Requests: c.has}}}}
			refused := p.Apply(&pod)
			if refused == "" != (c.refused == "") || !strings.Contains(refused, c.refused) {
				t.Errorf("refused: %q, want %q", refused, c.refused)
			}
			for _, got := range []corev1.ResourceList{pod.Containers[0].Resources.Limits, pod.Containers[0].Resources.Requests} {
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Error(diff)
				}
			}
			if diff := cmp.Diff(before, c.has); diff != "" {
				t.Errorf("what was shared is changed: %s", diff)
			}
			if tolerates, changed := len(pod.Tolerations) > 0, !strings.Contains(name, "whole"); tolerates != changed {
				t.Errorf("tolerations: %v", pod.Tolerations)
			}
		})
	}
}
