package quote

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

type alternative struct {
	isolates string
	// of returns the sharing of a GPUNodeClass with the strategy and the same resource. It returns an error if replicas is 0 and must be known.
	of func(c *facts.Cluster, was v1alpha1.Sharing, replicas int32) (v1alpha1.Sharing, error)
}

var alternatives = map[v1alpha1.Strategy]alternative{
	v1alpha1.StrategyTimeSlicing: {"nothing", func(_ *facts.Cluster, was v1alpha1.Sharing, replicas int32) (v1alpha1.Sharing, error) {
		return replicatedSharing(was, v1alpha1.StrategyTimeSlicing, replicas)
	}},
	v1alpha1.StrategyMPS: {"memory", func(_ *facts.Cluster, was v1alpha1.Sharing, replicas int32) (v1alpha1.Sharing, error) {
		s, err := replicatedSharing(was, v1alpha1.StrategyMPS, replicas)
		return atMost(s, nodecontract.MaxMPSReplicas), err
	}},
	v1alpha1.StrategyMIG:         {"hardware", instanceSharing},
	v1alpha1.StrategyMemorySlots: {"nothing, watches memory", memorySlots},
	v1alpha1.StrategyNone:        {"everything", wholeGPUs},
}

// Strategies returns the strategies that can be compared, sorted.
func Strategies() []v1alpha1.Strategy { return slices.Sorted(maps.Keys(alternatives)) }

// replicaOf returns the resource of the replicas that pods of a GPUNodeClass request, or would request in place of slots of memory.
func replicaOf(was v1alpha1.Sharing) string {
	if was.Strategy == v1alpha1.StrategyMemorySlots {
		return v1alpha1.ResourceGPUShared
	}
	return was.Resource()
}

// replicatedSharing returns a sharing with replicas of the same resource. If replicas is 0, it keeps the previous number.
func replicatedSharing(was v1alpha1.Sharing, strategy v1alpha1.Strategy, replicas int32) (v1alpha1.Sharing, error) {
	s := v1alpha1.Sharing{Strategy: strategy, ResourceName: replicaOf(was), RequestsAboveOne: was.RequestsAboveOne, MPS: was.MPS, Overrides: was.Overrides}
	switch {
	case replicas > 0:
		s.Replicas = &replicas
	case was.Replicas == nil:
		return s, fmt.Errorf("the number of replicas per GPU is unknown for %s: add --replicas", strategy)
	default:
		s.Replicas, s.MaxReplicas = was.Replicas, was.MaxReplicas
	}
	return s, nil
}

// atMost limits the replicas of a GPU.
func atMost(s v1alpha1.Sharing, limit int32) v1alpha1.Sharing {
	for _, n := range []**int32{&s.Replicas, &s.MaxReplicas} {
		if *n != nil {
			*n = new(min(**n, limit))
		}
	}
	s.Overrides = slices.Clone(s.Overrides)
	for i := range s.Overrides {
		s.Overrides[i].Replicas = min(s.Overrides[i].Replicas, limit)
	}
	return s
}

// wholeGPUs returns a sharing in which each replica is a GPU.
func wholeGPUs(_ *facts.Cluster, was v1alpha1.Sharing, _ int32) (v1alpha1.Sharing, error) {
	return v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(1)), ResourceName: replicaOf(was), RequestsAboveOne: was.RequestsAboveOne}, nil
}

// instanceSharing returns a sharing in which each replica is a MIG instance: on each GPU the smallest one with the device memory of the largest pending pod.
func instanceSharing(c *facts.Cluster, was v1alpha1.Sharing, _ int32) (v1alpha1.Sharing, error) {
	largest := int64(0)
	for _, class := range snapshot.Build(c).Classes {
		largest = max(largest, class.GPUMemoryBytes)
	}
	divided := &v1alpha1.MIGSharing{Naming: v1alpha1.MIGNamingSingle}
	seen := map[string]bool{}
	for _, t := range c.InstanceTypes() {
		for _, model := range mig.Models(t.GPU.Name, t.GPU.MemoryMiB) {
			if key := fmt.Sprint(model.Name, model.MemoryMiB); !seen[key] {
				seen[key] = true
				if profile := smallest(model, (largest+1<<20-1)>>20); profile != "" {
					divided.Layouts = append(divided.Layouts, v1alpha1.MIGLayout{GPUName: model.Name, GPUMemoryMiB: new(model.MemoryMiB), Profile: profile})
				}
			}
		}
	}
	return v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, ResourceName: replicaOf(was), MIG: divided}, nil
}

// smallest returns the profile with at least this memory in MiB of which most instances fit on a GPU, or "" if there is none.
func smallest(model mig.Model, memoryMiB int64) string {
	profile, count := "", int64(0)
	for i := range model.Kinds {
		kind := &model.Kinds[i]
		if n := model.Fit(kind.Profile); n > count && model.InstanceMiB(kind.Profile) >= memoryMiB {
			profile, count = kind.Profile, n
		}
	}
	return profile
}

// withStrategy returns the cluster as if its GPUNodeClasses had the strategy, and whether they already have it. Classes with whole GPUs stay, unless
// there are no others: their pods want whole GPUs.
func withStrategy(c *facts.Cluster, strategy v1alpha1.Strategy, replicas int32) (*facts.Cluster, bool, error) {
	shares := slices.ContainsFunc(c.GPUNodeClasses, func(class v1alpha1.GPUNodeClass) bool { return class.Spec.Sharing.Shared() })
	changed, current, names := *c, true, map[string]string(nil)
	changed.GPUNodeClasses = slices.Clone(c.GPUNodeClasses)
	if strategy != v1alpha1.StrategyMIG {
		names = oneName(c.GPUNodeClasses)
		if len(names) > 0 {
			changed.Pods, changed.Index = inOneResource(c.Pods, names), nil
		}
	}
	for i := range changed.GPUNodeClasses {
		class := &changed.GPUNodeClasses[i]
		was := class.Spec.Sharing
		if shares && !was.Shared() || was.Strategy == strategy && (replicas == 0 || was.MaxReplicas == nil && was.Replicas != nil && *was.Replicas == replicas) {
			continue
		}
		current = false
		s, err := alternatives[strategy].of(c, was, replicas)
		if err != nil {
			return nil, false, fmt.Errorf("GPUNodeClass %s: %w", class.Name, err)
		}
		if name, ok := names[s.ResourceName]; ok {
			s.ResourceName = name
		}
		s.BusyPercent = was.BusyPercent
		class.Spec.Sharing = s
		switch {
		case strategy == v1alpha1.StrategyMemorySlots:
			changed.Pods = inSlots(changed.Pods, cmp.Or(names[was.Resource()], was.Resource()), s.MemorySlots())
		case was.Strategy == v1alpha1.StrategyMemorySlots:
			changed.Pods = inReplicas(changed.Pods, s.Resource())
		case was.UsesDRA() && !s.UsesDRA():
			changed.Pods = withoutClaims(changed.Pods, was.DRADriver(), corev1.ResourceName(s.Resource()), strategy == v1alpha1.StrategyNone)
		default:
			continue
		}
		changed.Index = nil // The index has the unchanged pods.
	}
	return &changed, current, nil
}

// withoutClaims returns the pods with requests for replicas of a resource in place of ResourceClaims for a driver. If replicas are whole GPUs, a pod
// requests as many as its claims do.
func withoutClaims(pods []corev1.Pod, driver string, gpu corev1.ResourceName, whole bool) []corev1.Pod {
	pods = slices.Clone(pods)
	for i := range pods {
		if ask := claims.Of(&pods[i]); ask != nil && ask.Refusal == "" && ask.DriverName() == driver {
			total := ask.Total()
			replicas := total.Replicas
			if whole {
				replicas = total.GPUs
			}
			pods[i] = *claims.Requesting(&pods[i], gpu, replicas)
		}
	}
	return pods
}
