package manifests

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"karve.sh/karve/pkg/amount"
)

// limitRange is a LimitRange with the defaults of its items.
type limitRange struct {
	name  string
	items []corev1.LimitRangeItem
}

func limitRangeOf(object *corev1.LimitRange) limitRange {
	l := limitRange{name: object.Name}
	for _, item := range object.Spec.Limits {
		if item.Type == corev1.LimitTypeContainer {
			item.Default = merged(item.Default, item.Max)
			item.DefaultRequest = merged(merged(item.DefaultRequest, item.Default), item.Min)
		}
		l.items = append(l.items, item)
	}
	return l
}

// merged returns a list with the amounts of another list for the resources that it lacks.
func merged(list, defaults corev1.ResourceList) corev1.ResourceList {
	both := maps.Clone(defaults)
	if both == nil {
		return list
	}
	maps.Copy(both, list)
	return both
}

// setDefaults sets the requests and limits of containers that have none.
func (l *limitRange) setDefaults(pod *corev1.PodSpec) {
	for _, item := range l.items {
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		for _, containers := range []*[]corev1.Container{&pod.InitContainers, &pod.Containers} {
			*containers = slices.Clone(*containers)
			for i := range *containers {
				r := &(*containers)[i].Resources
				r.Limits, r.Requests = merged(r.Limits, item.Default), merged(r.Requests, item.DefaultRequest)
			}
		}
	}
}

func (l *limitRange) refuse(pod *corev1.Pod) string {
	for _, item := range l.items {
		switch item.Type {
		case corev1.LimitTypeContainer:
			for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
				if why := beyondLimit(item, c.Resources.Requests, c.Resources.Limits); why != "" {
					return fmt.Sprintf("LimitRange %s: container %s: %s", l.name, c.Name, why)
				}
			}
		case corev1.LimitTypePod:
			options := resourcehelper.PodResourcesOptions{}
			if why := beyondLimit(item, resourcehelper.AggregateContainerRequests(pod, options), resourcehelper.AggregateContainerLimits(pod, options)); why != "" {
				return fmt.Sprintf("LimitRange %s: the pod: %s", l.name, why)
			}
		}
	}
	return ""
}

// beyondLimit returns how requests and limits are beyond those of an item, or "".
func beyondLimit(item corev1.LimitRangeItem, requests, limits corev1.ResourceList) string {
	for _, name := range slices.Sorted(maps.Keys(item.Min)) {
		least := item.Min[name]
		request, requested := requests[name]
		limit, limited := limits[name]
		if !requested || amount.Milli(request) < amount.Milli(least) || limited && amount.Milli(limit) < amount.Milli(least) {
			return fmt.Sprintf("it needs a request for %s of at least %s", name, amount.Text(least))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(item.Max)) {
		most := item.Max[name]
		request := requests[name]
		limit, limited := limits[name]
		if !limited || amount.Milli(limit) > amount.Milli(most) || amount.Milli(request) > amount.Milli(most) {
			return fmt.Sprintf("it needs a limit of %s of at most %s", name, amount.Text(most))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(item.MaxLimitRequestRatio)) {
		ratio := item.MaxLimitRequestRatio[name]
		request, requested := requests[name]
		limit, limited := limits[name]
		if !requested || !limited || float64(amount.Milli(limit))*1000 > float64(amount.Milli(ratio))*float64(amount.Milli(request)) {
			return fmt.Sprintf("its limit of %s may be at most %s times its request", name, amount.Text(ratio))
		}
	}
	return ""
}
