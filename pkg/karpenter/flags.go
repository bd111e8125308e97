package karpenter

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Flags returns the flags and the environment variables that the first container of a pod is started with. Variables from other objects are not known.
func Flags(pod *corev1.PodSpec) (flags, variables map[string]string) {
	flags, variables = map[string]string{}, map[string]string{}
	if len(pod.Containers) == 0 {
		return flags, variables
	}
	for _, arg := range pod.Containers[0].Args {
		if flag, value, ok := strings.Cut(strings.TrimLeft(arg, "-"), "="); ok {
			flags[flag] = value
		}
	}
	for _, e := range pod.Containers[0].Env {
		if e.ValueFrom == nil {
			variables[e.Name] = e.Value
		}
	}
	return flags, variables
}
