package advice

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

// As in KRR: memory requests are the maximum plus margin, and no request is less than these.
const (
	margin         = 1.15
	minMilliCPU    = 10
	minMemoryBytes = 100 << 20
)

const (
	// memoryStep is the amount of which memory requests are multiples.
	memoryStep = 16 << 20
	// lowerEnough is the largest part of the present value for which a lower one is worth a change.
	lowerEnough = 0.9
)

// milliCPU returns the CPU request for a use, in thousandths of a core.
func milliCPU(u Use) int64 { return max(minMilliCPU, int64(math.Ceil(u.P95*100))*10) }

func memoryBytes(u Use) int64 { return max(minMemoryBytes, inMemorySteps(u.Max*margin)) }

func inMemorySteps(bytes float64) int64 { return int64(math.Ceil(bytes/memoryStep)) * memoryStep }

// loweredRequest is a request of a container and its new value.
type loweredRequest struct {
	container string
	resource  corev1.ResourceName
	to        resource.Quantity
}

// lowerRequests returns the change to lower the requests of a resource of the workload with an index, if there are any to lower.
func (sc *scenario) lowerRequests(i int, name corev1.ResourceName) (change, bool) {
	w := &sc.workloads[i]
	c := change{Change: Change{Kind: Requests, Object: w.String(), Namespace: w.Namespace}}
	var all []loweredRequest
	var does []string
	for _, container := range sc.templates[i].Spec.Containers {
		use, known := w.Containers[container.Name]
		if !known {
			continue
		}
		u, to, what, written := use.CPU, milliCPU(use.CPU), fmt.Sprintf("p95 %.2f, mean %.2f cores", use.CPU.P95, use.CPU.Mean), cores
		if name == corev1.ResourceMemory {
			u, to, what, written = use.Memory, memoryBytes(use.Memory), fmt.Sprintf("peak %s, mean %s", gib(use.Memory.Max), gib(use.Memory.Mean)), func(n int64) string { return gib(float64(n)) }
		}
		now := requestOf(&container, name)
		if w.measuredRarely(u) || float64(to) > lowerEnough*float64(now) {
			continue
		}
		all = append(all, loweredRequest{container.Name, name, quantityOf(name, to)})
		does = append(does, fmt.Sprintf("%s -> %s (%s)", written(now), written(to), container.Name))
		c.Evidence = append(c.Evidence, fmt.Sprintf("%s of %s requested, %s, %s", what, written(now), words.Count(w.Pods, "pod"), words.Count(u.Samples, "sample")))
	}
	if len(all) == 0 {
		return c, false
	}
	c.Do = fmt.Sprintf("lower the %s request %s", strings.ReplaceAll(string(name), "cpu", "CPU"), strings.Join(does, ", "))
	c.Risks = requestRisks(&sc.templates[i], name)
	c.Patches = []Patch{w.patchOf(object{"spec": object{"containers": requestsPatch(all)}})}
	c.apply = func(sc *scenario) {
		containers := sc.template(i).Spec.Containers
		for _, l := range all {
			at := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == l.container })
			if containers[at].Resources.Requests == nil {
				containers[at].Resources.Requests = corev1.ResourceList{}
			}
			containers[at].Resources.Requests[l.resource] = l.to
		}
	}
	return c, true
}

// requestOf returns the request of a container in thousandths of a core or in bytes. It is the limit if there is none.
func requestOf(c *corev1.Container, name corev1.ResourceName) int64 {
	if _, ok := c.Resources.Requests[name]; ok {
		return facts.AmountOf(c.Resources.Requests, name)
	}
	return facts.AmountOf(c.Resources.Limits, name)
}

// quantityOf returns an amount as requestOf does as a quantity.
func quantityOf(name corev1.ResourceName, n int64) resource.Quantity {
	if name == corev1.ResourceCPU {
		return *resource.NewMilliQuantity(n, resource.DecimalSI)
	}
	return *resource.NewQuantity(n, resource.BinarySI)
}

func cores(milli int64) string { return amount.Text(quantityOf(corev1.ResourceCPU, milli)) }

func requestRisks(pod *corev1.Pod, name corev1.ResourceName) []string {
	risks := []string{"5 % of the time a pod used more CPU than this: it then gets what others leave"}
	if name == corev1.ResourceMemory {
		risks = []string{"pods that use more memory than ever measured plus 15 % may be evicted"}
	}
	if pod.Status.QOSClass == corev1.PodQOSGuaranteed {
		risks = append(risks, "the pods are no longer of the QoS class Guaranteed")
	}
	return risks
}

// requestsPatch returns the containers of a patch, of which each has one lower request.
func requestsPatch(all []loweredRequest) (containers []any) {
	for _, l := range all {
		containers = append(containers, object{"name": l.container, "resources": object{"requests": object{string(l.resource): amount.Text(l.to)}}})
	}
	return containers
}

// lowerDeviceMemory returns the change to lower the device memory that a workload states, if it is more than enough.
func (sc *scenario) lowerDeviceMemory(i int) (change, bool) {
	w := &sc.workloads[i]
	now, err := facts.GPUMemory(&sc.templates[i])
	to := inMemorySteps(w.GPU.Bytes.Max * margin)
	if err != nil || now == 0 || w.measuredRarely(w.GPU.Bytes) || w.reserves() || float64(to) > lowerEnough*float64(now) {
		return change{}, false
	}
	stated := amount.Text(*resource.NewQuantity(max(to, memoryStep), resource.BinarySI))
	c := change{Change: Change{
		Kind: DeviceMemory, Object: w.String(), Namespace: w.Namespace,
		Do:       fmt.Sprintf("state less GPU memory: %s %s -> %s", v1alpha1.GPUMemoryAnnotation, sc.templates[i].Annotations[v1alpha1.GPUMemoryAnnotation], stated),
		Evidence: []string{fmt.Sprintf("peak %s, mean %s, %s, %s", gib(w.GPU.Bytes.Max), gib(w.GPU.Bytes.Mean), words.Count(w.Pods, "pod"), words.Count(w.GPU.Bytes.Samples, "sample"))},
		Risks:    []string{"a pod that needs more GPU memory than ever measured plus 15 % may find none left, and fails"},
		Patches:  []Patch{w.patchOf(object{"metadata": object{"annotations": object{v1alpha1.GPUMemoryAnnotation: stated}}})},
	}}
	c.apply = func(sc *scenario) { sc.template(i).Annotations[v1alpha1.GPUMemoryAnnotation] = stated }
	return c, true
}

func gib(bytes float64) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%.0f MiB", bytes/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", bytes/(1<<30))
}
