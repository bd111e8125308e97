package manifests

import (
	"maps"
	"slices"

	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// systemPriorities returns the PriorityClasses that every cluster has.
func systemPriorities() map[string]*schedulingv1.PriorityClass {
	all := map[string]*schedulingv1.PriorityClass{}
	for name, value := range map[string]int32{"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000} {
		all[name] = &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
	}
	return all
}

// findMissing names the objects that pods with GPUs need and no file has. The plan may be wrong without them.
func (r *reader) findMissing() {
	missing := map[string]bool{}
	for i := range r.workloads {
		w := &r.workloads[i]
		pod := &w.spec
		if !asksGPU(pod) || w.status != nil && isAdmitted(&w.object, pod) {
			continue
		}
		if name := pod.RuntimeClassName; name != nil && !isSet(r.runtimeClasses, *name) {
			missing["RuntimeClass "+*name] = true
		}
		if name := pod.PriorityClassName; name != "" && !isSet(r.priorities, name) {
			missing["PriorityClass "+name] = true
		}
		namespace := namespaceOf(w.object.Namespace)
		if name := pod.ServiceAccountName; name != "" && name != "default" && !isSet(r.seen, id(schema.GroupKind{Kind: "ServiceAccount"}, namespace, name)) {
			missing["ServiceAccount "+namespace+"/"+name] = true
		}
	}
	r.skipped.Missing = slices.Sorted(maps.Keys(missing))
}
