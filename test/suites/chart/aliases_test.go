package chart_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/memoryalias"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// binpack is the pod template of gpushare's demonstration (KubeCon China 2019), word for word.
const binpack = `
metadata:
  labels:
    app: binpack-1

spec:
  containers:
    - name: binpack-1
      image: cheyang/gpu-player:v2
      resources:
        limits:
          # GiB
          aliyun.com/gpu-mem: 3
`

// amounts are the GPU resources of a container.
type amounts map[corev1.ResourceName]string

func aliased(containers ...amounts) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "aliased"}}
	for i, a := range containers {
		limits := corev1.ResourceList{}
		for name, amount := range a {
			limits[name] = resource.MustParse(amount)
		}
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "example.com/app", Resources: corev1.ResourceRequirements{Limits: limits}})
	}
	return pod
}

// gpusOf returns the extended resources of the containers of a pod, and fails if a limit is not the request.
func gpusOf(t *testing.T, containers []corev1.Container) []amounts {
	t.Helper()
	var all []amounts
	for _, c := range containers {
		a := amounts{}
		for name, q := range c.Resources.Limits {
			if strings.Contains(string(name), "/") {
				a[name] = q.String()
			}
			if r := c.Resources.Requests[name]; r.Cmp(q) != 0 {
				t.Errorf("the limit of %s is %s, and the request %s", name, q.String(), r.String())
			}
		}
		if len(c.Resources.Requests) != len(c.Resources.Limits) {
			t.Errorf("the limits are %v, and the requests %v", c.Resources.Limits, c.Resources.Requests)
		}
		all = append(all, a)
	}
	return all
}

// withSlots returns the GPUNodeClass whose slots the pods get.
func withSlots() *v1alpha1.GPUNodeClass {
	return &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu-memory"}, Spec: v1alpha1.GPUNodeClassSpec{
		NodeClassRef: v1alpha1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "gpu"},
		Sharing:      v1alpha1.Sharing{Strategy: v1alpha1.StrategyMemorySlots, Memory: &v1alpha1.MemorySharing{Sizes: []string{"1536Mi", "4Gi", "8Gi"}}},
	}}
}

// TestPodsOfGPUShareAndHAMiGetSlots runs the policies on a real API server.
func TestPodsOfGPUShareAndHAMiGetSlots(t *testing.T) {
	cluster.Require(t)
	k, err := karve.Client(server)
	if err != nil {
		t.Fatal(err)
	}
	class := withSlots()
	create(t, k, class)
	keep(t, k, class)
	for _, o := range objects(t, needed, "--set=node.enabled=false,memoryAliases.gpuNodeClass=gpu-memory,memoryAliases.hamiGPUMemoryMiB=15360", mutating) {
		if strings.HasSuffix(o.GetName(), "-memory-aliases") {
			create(t, k, o)
			keep(t, k, o)
		}
	}
	try := func(pod *corev1.Pod) error { return k.Create(t.Context(), pod, client.DryRunAll) }
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		pod := aliased(amounts{"aliyun.com/gpu-mem": "3"})
		err := try(pod)
		if _, mapped := pod.Spec.Containers[0].Resources.Limits["nvidia.com/gpu-4gb"]; mapped && try(aliased(amounts{"aliyun.com/gpu-mem": "9"})) != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the policies are not in force: %v, %v", err, pod.Spec.Containers[0].Resources)
		}
	}
	slot := func(size string) amounts { return amounts{corev1.ResourceName("nvidia.com/gpu-" + size): "1"} }
	offline, ok := memoryalias.For(class)
	if !ok {
		t.Fatal("the class has no slots")
	}
	offline.HAMiGPUMemoryMiB = 15360
	for name, c := range map[string]struct {
		containers []amounts
		want       []amounts
	}{
		"gpushare":                    {[]amounts{{"aliyun.com/gpu-mem": "3"}}, []amounts{slot("4gb")}},
		"gpushare, exactly":           {[]amounts{{"aliyun.com/gpu-mem": "8"}}, []amounts{slot("8gb")}},
		"gpushare, small":             {[]amounts{{"aliyun.com/gpu-mem": "1"}}, []amounts{slot("1536mb")}},
		"several containers":          {[]amounts{{"aliyun.com/gpu-mem": "3"}, {}, {"aliyun.com/gpu-mem": "5"}}, []amounts{slot("4gb"), {}, slot("8gb")}},
		"HAMi":                        {[]amounts{{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}}, []amounts{slot("4gb")}},
		"HAMi with cores":             {[]amounts{{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4097", "nvidia.com/gpucores": "30"}}, []amounts{slot("8gb")}},
		"HAMi in percent":             {[]amounts{{"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "10"}}, []amounts{slot("1536mb")}},
		"HAMi in percent, rounded up": {[]amounts{{"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "11"}}, []amounts{slot("4gb")}},
		"a whole GPU of HAMi":         {[]amounts{{"nvidia.com/gpu": "1"}}, []amounts{{"nvidia.com/gpu": "1"}}},
		"a slot already":              {[]amounts{slot("4gb")}, []amounts{slot("4gb")}},
		"no GPU":                      {[]amounts{{}}, []amounts{{}}},
	} {
		pod, planned := aliased(c.containers...), withRequests(aliased(c.containers...))
		if err := try(pod); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if why := offline.Apply(&planned.Spec); why != "" || !slices.EqualFunc(gpusOf(t, planned.Spec.Containers), c.want, maps.Equal[amounts, amounts]) {
			t.Errorf("%s: plans have %v, %s", name, planned.Spec.Containers, why)
		}
		for _, toleration := range planned.Spec.Tolerations {
			if !slices.Contains(pod.Spec.Tolerations, toleration) {
				t.Errorf("%s: plans tolerate %v", name, toleration)
			}
		}
		if got := gpusOf(t, pod.Spec.Containers); !slices.EqualFunc(got, c.want, maps.Equal[amounts, amounts]) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		changed := !slices.EqualFunc(c.containers, c.want, maps.Equal[amounts, amounts])
		if tolerates := slices.Contains(pod.Spec.Tolerations, corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}); tolerates != changed {
			t.Errorf("%s: the tolerations are %v", name, pod.Spec.Tolerations)
		}
	}
	for name, c := range map[string]struct {
		container amounts
		want      string
	}{
		"too much of gpushare": {amounts{"aliyun.com/gpu-mem": "9"}, "container c0 requests 9 GiB of device memory (aliyun.com/gpu-mem), and one slot of GPUNodeClass gpu-memory has 1536Mi, 4Gi, 8Gi: request less, or add a larger size"},
		"too much of HAMi":     {amounts{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9001"}, "requests 9001 MiB of device memory (nvidia.com/gpumem)"},
		"two GPUs of HAMi":     {amounts{"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"}, "requests device memory of 2 GPUs (nvidia.com/gpu)"},
		"too many percent":     {amounts{"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "90"}, "requests 90 percent of the memory of a GPU (nvidia.com/gpumem-percentage)"},
	} {
		if err := try(aliased(c.container)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if planned := withRequests(aliased(c.container)); err != nil && !strings.Contains(err.Error(), offline.Apply(&planned.Spec)) {
			t.Errorf("%s: plans say otherwise than %v", name, err)
		}
	}

	var demo corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(binpack), &demo); err != nil {
		t.Fatal(err)
	}
	demo.Namespace, demo.Name = "default", "binpack-1-0"
	demo.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "example.com/app", Resources: aliased(amounts{"aliyun.com/gpu-mem": "1"}).Spec.Containers[0].Resources}}
	demo.Spec.Tolerations = []corev1.Toleration{{Key: "other", Operator: corev1.TolerationOpExists}}
	if err := try(&demo); err != nil || !slices.EqualFunc(gpusOf(t, append(demo.Spec.InitContainers, demo.Spec.Containers...)), []amounts{slot("1536mb"), slot("4gb")}, maps.Equal[amounts, amounts]) ||
		demo.Spec.Tolerations[0].Key != "other" {
		t.Errorf("%v: %v", err, demo.Spec)
	}
}

// withRequests returns a pod with the requests that the API server sets by its limits.
func withRequests(pod *corev1.Pod) *corev1.Pod {
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Resources.Requests = maps.Clone(pod.Spec.Containers[i].Resources.Limits)
	}
	return pod
}

// mutating tells helm that the API server has MutatingAdmissionPolicies.
const mutating = "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"

// keep deletes an object when the test ends.
func keep(t *testing.T, k client.Client, o client.Object) {
	t.Helper()
	t.Cleanup(func() {
		if err := k.Delete(context.WithoutCancel(t.Context()), o); err != nil {
			t.Error(err)
		}
	})
}

func TestUnitsOfControllerAndAgentAreTheSame(t *testing.T) {
	t.Parallel()
	for _, version := range []string{older, newer} {
		inMiB := "--set=memoryAliases.gpuNodeClass=gpu-memory,memoryAliases.gpushareUnit=MiB"
		if _, err := controller.Template(t.Context(), needed, inMiB, version); err == nil || !strings.Contains(err.Error(), "node.gpushareUnit") {
			t.Errorf("%s: containers would have another unit: %v", version, err)
		}
		if _, err := controller.Template(t.Context(), needed, inMiB+",node.gpushareUnit=MiB", version); err != nil {
			t.Error(err)
		}
	}
}
