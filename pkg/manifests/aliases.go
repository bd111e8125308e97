package manifests

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/memoryalias"
)

// gpushareInMiB is the argument with which gpushare's device plugin serves its memory in MiB.
const gpushareInMiB = "--memory-unit=mib"

// alias makes pods of gpushare and HAMi get slots, as with the chart's memoryAliases, of the first GPUNodeClass that has some.
func (r *reader) alias() {
	var classes []memoryalias.Policy
	for i := range r.cluster.GPUNodeClasses {
		if policy, ok := memoryalias.For(&r.cluster.GPUNodeClasses[i]); ok {
			classes = append(classes, policy)
		}
	}
	if len(classes) == 0 || !slices.ContainsFunc(r.workloads, func(w workload) bool { return memoryalias.In(&w.spec) && !isAdmitted(&w.object, &w.spec) }) {
		return
	}
	policy := slices.MinFunc(classes, func(a, b memoryalias.Policy) int { return strings.Compare(a.GPUNodeClass, b.GPUNodeClass) })
	set := "memoryAliases.gpuNodeClass=" + policy.GPUNodeClass
	policy.MiB = slices.ContainsFunc(r.cluster.DaemonSets, func(ds appsv1.DaemonSet) bool { return servesMiB(&ds.Spec.Template.Spec) })
	if policy.MiB {
		set += ",memoryAliases.gpushareUnit=MiB,node.gpushareUnit=MiB"
	}
	r.aliases = &policy
	r.skipped.Aliased = fmt.Sprintf("pods of gpushare and HAMi get slots of GPUNodeClass %s, as with --set %s of the chart", policy.GPUNodeClass, set)
}

// servesMiB reports whether a pod is one of gpushare's device plugin with memory in MiB.
func servesMiB(pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool { return strings.EqualFold(arg, gpushareInMiB) })
	})
}
