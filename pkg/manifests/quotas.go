package manifests

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"karve.sh/karve/pkg/amount"
)

// quota is a ResourceQuota, and what pods use of it. Amounts are in thousandths.
type quota struct {
	name                string
	hard, used, another map[corev1.ResourceName]int64
	scopes              []corev1.ScopedResourceSelectorRequirement
}

func quotaOf(object *corev1.ResourceQuota) *quota {
	q := &quota{name: object.Name, hard: milliAmounts(object.Spec.Hard), another: milliAmounts(object.Status.Used), used: map[corev1.ResourceName]int64{}}
	for _, scope := range object.Spec.Scopes {
		q.scopes = append(q.scopes, corev1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: corev1.ScopeSelectorOpExists})
	}
	if object.Spec.ScopeSelector != nil {
		q.scopes = append(q.scopes, object.Spec.ScopeSelector.MatchExpressions...)
	}
	return q
}

func milliAmounts(list corev1.ResourceList) map[corev1.ResourceName]int64 {
	amounts := map[corev1.ResourceName]int64{}
	for name, q := range list {
		amounts[name] = amount.Milli(q)
	}
	return amounts
}

// quotaUsage returns what a pod uses of quotas, by the names that quotas have for it.
func quotaUsage(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	used := map[corev1.ResourceName]int64{corev1.ResourcePods: 1000, "count/pods": 1000}
	options := resourcehelper.PodResourcesOptions{}
	for name, n := range milliAmounts(resourcehelper.PodRequests(pod, options)) {
		used[corev1.DefaultResourceRequestsPrefix+name] = n
		if !strings.Contains(string(name), "/") {
			used[name] = n
		}
	}
	for name, n := range milliAmounts(resourcehelper.PodLimits(pod, options)) {
		used["limits."+name] = n
	}
	return used
}

func (q *quota) counts(pod *corev1.Pod) bool {
	for _, s := range q.scopes {
		in := false
		class := pod.Spec.PriorityClassName
		switch s.ScopeName {
		case corev1.ResourceQuotaScopeTerminating:
			in = pod.Spec.ActiveDeadlineSeconds != nil
		case corev1.ResourceQuotaScopeNotTerminating:
			in = pod.Spec.ActiveDeadlineSeconds == nil
		case corev1.ResourceQuotaScopeBestEffort:
			in = bestEffort(pod)
		case corev1.ResourceQuotaScopeNotBestEffort:
			in = !bestEffort(pod)
		case corev1.ResourceQuotaScopePriorityClass:
			switch s.Operator {
			case corev1.ScopeSelectorOpIn:
				in = slices.Contains(s.Values, class)
			case corev1.ScopeSelectorOpNotIn:
				in = !slices.Contains(s.Values, class)
			case corev1.ScopeSelectorOpExists:
				in = class != ""
			case corev1.ScopeSelectorOpDoesNotExist:
				in = class == ""
			}
		}
		if !in {
			return false
		}
	}
	return true
}

func bestEffort(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		return len(c.Resources.Requests)+len(c.Resources.Limits) > 0
	})
}

// take counts a pod that exists.
func (q *quota) take(pod *corev1.Pod, used map[corev1.ResourceName]int64) {
	if q.counts(pod) {
		for name := range q.hard {
			q.used[name] = amount.Add(q.used[name], used[name])
		}
	}
}

// explicit are the resources of which each container of a pod must state the amount if a quota limits it.
var explicit = []corev1.ResourceName{"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"}

// withoutStated returns the first container that does not state an amount which a quota limits by this name. An amount of the whole pod is enough.
func withoutStated(pod *corev1.Pod, name corev1.ResourceName) (container string, missing bool) {
	states := func(r *corev1.ResourceRequirements) bool {
		list, resource := r.Requests, corev1.ResourceName(strings.TrimPrefix(string(name), corev1.DefaultResourceRequestsPrefix))
		if limit, ok := strings.CutPrefix(string(name), "limits."); ok {
			list, resource = r.Limits, corev1.ResourceName(limit)
		}
		_, ok := list[resource]
		return ok
	}
	if pod.Spec.Resources != nil && states(pod.Spec.Resources) {
		return "", false
	}
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	i := slices.IndexFunc(all, func(c corev1.Container) bool { return !states(&c.Resources) })
	if i < 0 {
		return "", false
	}
	return all[i].Name, true
}

func (q *quota) refuse(pod *corev1.Pod, used map[corev1.ResourceName]int64) string {
	if !q.counts(pod) {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(q.hard)) {
		if slices.Contains(explicit, name) {
			if container, missing := withoutStated(pod, name); missing {
				return fmt.Sprintf("ResourceQuota %s: container %s must state %s", q.name, container, name)
			}
		}
		if n := used[name]; n > 0 && amount.Add(max(q.used[name], q.another[name]), n) > q.hard[name] {
			return fmt.Sprintf("ResourceQuota %s: it allows no more %s", q.name, name)
		}
	}
	return ""
}

// create counts a pod that is created, unless a quota refuses it. It returns why, or "".
func create(quotas []*quota, pod *corev1.Pod, used map[corev1.ResourceName]int64) string {
	for _, q := range quotas {
		if why := q.refuse(pod, used); why != "" {
			return why
		}
	}
	for _, q := range quotas {
		if q.counts(pod) {
			for name := range q.hard {
				q.used[name] = amount.Add(max(q.used[name], q.another[name]), used[name])
			}
		}
	}
	return ""
}
