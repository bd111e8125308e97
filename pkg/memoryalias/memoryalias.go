// Package memoryalias gives pods that request device memory by the names of gpushare and HAMi slots of a GPUNodeClass, like the admission policies of the
// chart (memoryAliases). The admission webhook for clusters without these policies uses it, and a test of the chart compares all of them.
package memoryalias

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
)

// The names of gpushare and HAMi.
const (
	GPUShareMemory = "aliyun.com/gpu-mem"
	HAMiMemory     = "nvidia.com/gpumem"
	HAMiPercentage = "nvidia.com/gpumem-percentage"
	HAMiCores      = "nvidia.com/gpucores"
)

// names are the resources that stand for device memory, and removed are those that a slot replaces.
var (
	names   = []corev1.ResourceName{GPUShareMemory, HAMiMemory, HAMiPercentage}
	removed = []corev1.ResourceName{GPUShareMemory, v1alpha1.ResourceGPU, HAMiMemory, HAMiPercentage, HAMiCores}
)

// Is reports whether a resource is device memory of gpushare or HAMi.
func Is(name string) bool { return slices.Contains(names, corev1.ResourceName(name)) }

// Replaces reports whether a slot replaces a resource in a container that requests device memory.
func Replaces(name corev1.ResourceName) bool { return slices.Contains(removed, name) }

// In reports whether a container of a pod requests device memory of gpushare or HAMi.
func In(pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.Containers, aliased) || slices.ContainsFunc(pod.InitContainers, aliased)
}

func aliased(c corev1.Container) bool {
	return slices.ContainsFunc(names, func(name corev1.ResourceName) bool { _, ok := c.Resources.Limits[name]; return ok })
}

// Policy has the chart's values of memoryAliases, and the sizes of the slots of its GPUNodeClass in the order of the class.
type Policy struct {
	// GPUNodeClass is the name of the class.
	GPUNodeClass string
	SizesMiB     []int64
	// MiB reports whether the unit of gpushare is MiB and not GiB.
	MiB bool
	// HAMiGPUMemoryMiB is the memory of a GPU to which percentages refer, or 0 if it is unknown.
	HAMiGPUMemoryMiB int64
	// TaintKey is the key of the taint that the pods tolerate then, or "".
	TaintKey string
}

// For returns the policy of a GPUNodeClass with the defaults of the chart. It returns false if the class has no slots.
func For(class *v1alpha1.GPUNodeClass) (Policy, bool) {
	p := Policy{GPUNodeClass: class.Name, TaintKey: v1alpha1.ResourceGPU}
	memory := class.Spec.Sharing.Memory
	if class.Spec.Sharing.Strategy != v1alpha1.StrategyMemorySlots || memory == nil {
		return p, false
	}
	for _, size := range memory.Sizes {
		q, err := amount.Parse(size)
		if err != nil {
			return p, false
		}
		p.SizesMiB = append(p.SizesMiB, amount.Value(q)>>20)
	}
	return p, len(p.SizesMiB) > 0
}

// Apply gives the containers of a new pod slots, and the pod the toleration. It copies what it changes. It returns why the API server refuses the pod if no
// slot can serve a container, or "".
func (p *Policy) Apply(pod *corev1.PodSpec) (refused string) {
	if !In(pod) {
		return ""
	}
	pod.InitContainers, pod.Containers = slices.Clone(pod.InitContainers), slices.Clone(pod.Containers)
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range containers {
			if slot := p.slotFor(containers[i].Resources.Limits); slot > 0 {
				r := &containers[i].Resources
				r.Limits, r.Requests = withSlot(r.Limits, slot), withSlot(r.Requests, slot)
			}
		}
	}
	if p.TaintKey != "" {
		pod.Tolerations = append(slices.Clone(pod.Tolerations), corev1.Toleration{Key: p.TaintKey, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	for _, c := range slices.Concat(pod.Containers, pod.InitContainers) {
		if aliased(c) {
			return p.refusal(&c)
		}
	}
	return ""
}

// slotFor returns the first size in MiB that is large enough, or 0 if there is none or if none is requested.
func (p *Policy) slotFor(limits corev1.ResourceList) int64 {
	mib := p.requested(limits)
	for _, size := range p.SizesMiB {
		if mib > 0 && size >= mib {
			return size
		}
	}
	return 0
}

// requested returns the MiB that a container requests, 0 if it requests none, and -1 if that is not known or on several GPUs.
func (p *Policy) requested(limits corev1.ResourceList) int64 {
	value := func(name corev1.ResourceName) (int64, bool) {
		q, ok := limits[name]
		return amount.Value(q), ok
	}
	if memory, ok := value(GPUShareMemory); ok {
		if p.MiB {
			return memory
		}
		return amount.Times(memory, 1<<10)
	}
	memory, inMiB := value(HAMiMemory)
	percent, inPercent := value(HAMiPercentage)
	gpus, _ := value(v1alpha1.ResourceGPU)
	switch {
	case !inMiB && !inPercent:
		return 0
	case gpus > 1:
		return -1
	case inMiB:
		return memory
	case p.HAMiGPUMemoryMiB > 0:
		return (amount.Times(percent, p.HAMiGPUMemoryMiB) + 99) / 100
	}
	return -1
}

func withSlot(list corev1.ResourceList, slotMiB int64) corev1.ResourceList {
	with := maps.Clone(list)
	if with == nil {
		with = corev1.ResourceList{}
	}
	for _, name := range removed {
		delete(with, name)
	}
	with[corev1.ResourceName(nodecontract.SlotResource(slotMiB))] = *resource.NewQuantity(1, resource.DecimalSI)
	return with
}

// refusal returns the message of the chart's validating policy for a container.
func (p *Policy) refusal(c *corev1.Container) string {
	text := func(name corev1.ResourceName) string { q := c.Resources.Limits[name]; return amount.Text(q) }
	has := func(name corev1.ResourceName) bool { _, ok := c.Resources.Limits[name]; return ok }
	gpus := c.Resources.Limits[v1alpha1.ResourceGPU]
	var what string
	switch {
	case has(GPUShareMemory) && p.MiB:
		what = text(GPUShareMemory) + " MiB of device memory (" + GPUShareMemory + ")"
	case has(GPUShareMemory):
		what = text(GPUShareMemory) + " GiB of device memory (" + GPUShareMemory + ")"
	case amount.Value(gpus) > 1:
		what = "device memory of " + text(v1alpha1.ResourceGPU) + " GPUs (" + v1alpha1.ResourceGPU + ")"
	case has(HAMiMemory):
		what = text(HAMiMemory) + " MiB of device memory (" + HAMiMemory + ")"
	default:
		what = text(HAMiPercentage) + " percent of the memory of a GPU (" + HAMiPercentage + ")"
		if p.HAMiGPUMemoryMiB == 0 {
			what += ", and memoryAliases.hamiGPUMemoryMiB of the chart does not say how much that is"
		}
	}
	if len(p.SizesMiB) == 0 {
		return fmt.Sprintf("container %s requests %s, and GPUNodeClass %s has no slots (spec.sharing.memory.sizes)", c.Name, what, p.GPUNodeClass)
	}
	var sizes []string
	for _, mib := range p.SizesMiB {
		sizes = append(sizes, resource.NewQuantity(mib<<20, resource.BinarySI).String())
	}
	return fmt.Sprintf("container %s requests %s, and one slot of GPUNodeClass %s has %s: request less, or add a larger size to spec.sharing.memory.sizes",
		c.Name, what, p.GPUNodeClass, strings.Join(sizes, ", "))
}
