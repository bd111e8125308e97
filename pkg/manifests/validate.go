package manifests

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot"
)

// The functions below reject what the API server rejects, as far as plans depend on it.

// faults collects errors.
type faults []error

func (f *faults) add(wrong bool, format string, args ...any) {
	if wrong {
		*f = append(*f, fmt.Errorf(format, args...))
	}
}

// validGPUNodeClass checks the rules of the CRD and returns their messages.
func validGPUNodeClass(spec *v1alpha1.GPUNodeClassSpec) error {
	var f faults
	ref := spec.NodeClassRef
	f.add(ref.Group == "" || ref.Kind == "" || ref.Name == "", "spec.nodeClassRef needs group, kind and name of the cloud's node class")
	f.add(ref.Group == v1alpha1.Group, "spec.nodeClassRef must name the cloud provider's own node class, such as karpenter.k8s.aws EC2NodeClass, not a GPUNodeClass")
	f.add(strings.Contains(ref.Group, "/"), "spec.nodeClassRef.group is the part of apiVersion before the slash, for instance karpenter.k8s.aws")
	f.sharing(&spec.Sharing)
	f.overrides(spec.Sharing.Overrides)
	_, _, err := spec.Consolidation.IdleDuration()
	return errors.Join(append(f, err)...)
}

func (f *faults) sharing(s *v1alpha1.Sharing) {
	f.add(s.ResourceName != "" && s.ResourceName != v1alpha1.ResourceGPU && s.ResourceName != v1alpha1.ResourceGPUShared,
		"spec.sharing.resourceName is %s or %s, not %q", v1alpha1.ResourceGPU, v1alpha1.ResourceGPUShared, s.ResourceName)
	f.add(s.RequestsAboveOne != "" && s.RequestsAboveOne != v1alpha1.RequestsAboveOneAllow && s.RequestsAboveOne != v1alpha1.RequestsAboveOneRefuse,
		"spec.sharing.requestsAboveOne is Allow or Refuse, not %q", s.RequestsAboveOne)
	f.add(s.Replicas != nil && (*s.Replicas < 2 || *s.Replicas > 128), "spec.sharing.replicas is 2 to 128")
	f.add(s.MIG != nil && s.Strategy != v1alpha1.StrategyMIG, "mig is for strategy MIG: remove it, or use strategy MIG")
	f.add(s.MPS != nil && s.Strategy != v1alpha1.StrategyMPS, "mps is for strategy MPS: remove it, or use strategy MPS")
	f.add(s.Memory != nil && s.Strategy != v1alpha1.StrategyMemorySlots, "memory is for strategy MemorySlots: remove it, or use strategy MemorySlots")
	f.add(s.BusyPercent != nil && (*s.BusyPercent < 1 || *s.BusyPercent > 100), "spec.sharing.busyPercent is 1 to 100")
	f.dra(s)
	switch s.Strategy {
	case v1alpha1.StrategyTimeSlicing:
		f.add(s.Replicas == nil, "strategy TimeSlicing needs replicas, the number of pods that share one GPU (2 to 128)")
	case v1alpha1.StrategyMPS:
		f.mps(s)
	case v1alpha1.StrategyMIG:
		f.mig(s)
	case v1alpha1.StrategyMemorySlots:
		f.memory(s)
	case v1alpha1.StrategyNone:
		f.add(s.Replicas != nil, "strategy None gives whole GPUs: remove replicas, or use strategy TimeSlicing")
		f.add(len(s.Overrides) > 0, "strategy None gives whole GPUs: remove overrides, or use strategy TimeSlicing")
		f.add(s.ResourceName == v1alpha1.ResourceGPUShared, "strategy None gives whole GPUs, which are called nvidia.com/gpu: remove resourceName, or use strategy TimeSlicing")
		f.add(s.RequestsAboveOne != "", "strategy None gives whole GPUs, of which a pod may ask several: remove requestsAboveOne, or use strategy TimeSlicing")
		f.add(s.BusyPercent != nil, "the pods of strategy None have whole GPUs and do not slow each other down: remove busyPercent")
	default:
		f.add(true, "spec.sharing.strategy is TimeSlicing, MPS, MIG, MemorySlots or None, not %q", s.Strategy)
	}
}

func (f *faults) dra(s *v1alpha1.Sharing) {
	switch s.Backend {
	case "", v1alpha1.BackendDevicePlugin:
		return
	case v1alpha1.BackendDRA:
	case v1alpha1.BackendNVIDIADRA:
		f.nvidiaDRA(s)
		return
	default:
		f.add(true, "spec.sharing.backend is DevicePlugin, DRA or NVIDIADRA, not %q", s.Backend)
		return
	}
	f.add(s.Strategy != v1alpha1.StrategyTimeSlicing && s.Strategy != v1alpha1.StrategyMIG, "backend DRA shares GPUs by time-slicing or as MIG instances: use strategy TimeSlicing or MIG, or backend DevicePlugin")
	f.add(s.ResourceName == v1alpha1.ResourceGPU && s.Strategy != v1alpha1.StrategyMIG, "backend DRA serves nvidia.com/gpu.shared, the resource of its DeviceClass: remove resourceName, or use backend DevicePlugin")
	f.add(s.MaxReplicas != nil, "with backend DRA all GPUs of a name have equally many replicas: remove maxReplicas, or use backend DevicePlugin")
	f.add(s.RequestsAboveOne == v1alpha1.RequestsAboveOneAllow && (s.Strategy != v1alpha1.StrategyMIG || s.Replicas != nil), "with backend DRA each replica of a container is on a GPU of its own: remove requestsAboveOne, or set it to Refuse")
	f.add(slices.ContainsFunc(s.Overrides, func(o v1alpha1.ReplicasOverride) bool { return o.Replicas < 2 }),
		"backend DRA serves shared GPUs: raise the replicas of overrides to 2, or use backend DevicePlugin")
}

func (f *faults) nvidiaDRA(s *v1alpha1.Sharing) {
	f.add(s.Strategy != v1alpha1.StrategyNone && s.Strategy != v1alpha1.StrategyTimeSlicing,
		"with backend NVIDIADRA, NVIDIA's driver gives pods whole GPUs or shares of them: use strategy None, or strategy TimeSlicing with the number of its consumableShares as replicas")
	f.add(s.ResourceName == v1alpha1.ResourceGPUShared, "backend NVIDIADRA serves nvidia.com/gpu, the resource of NVIDIA's DeviceClass: remove resourceName")
	f.add(s.MaxReplicas != nil, "NVIDIA's driver has one number of shares for all GPUs: remove maxReplicas, or use backend DevicePlugin")
	f.add(len(s.Overrides) > 0, "NVIDIA's driver has one number of shares for all GPUs: remove overrides, or use another GPUNodeClass for the other GPUs")
	f.add(s.RequestsAboveOne == v1alpha1.RequestsAboveOneAllow, "with backend NVIDIADRA each share of a container is on a GPU of its own: remove requestsAboveOne, or set it to Refuse")
}

func (f *faults) mps(s *v1alpha1.Sharing) {
	const most = nodecontract.MaxMPSReplicas
	f.add(s.Replicas == nil, "strategy MPS needs replicas, the number of pods that share one GPU (2 to 48)")
	f.add(s.Replicas != nil && *s.Replicas > most, "an MPS server has at most 48 clients: lower replicas to 48, or use strategy TimeSlicing")
	f.add(s.MaxReplicas != nil && *s.MaxReplicas > most, "an MPS server has at most 48 clients: lower maxReplicas to 48, or use strategy TimeSlicing")
	f.add(slices.ContainsFunc(s.Overrides, func(o v1alpha1.ReplicasOverride) bool { return o.Replicas > most }),
		"an MPS server has at most 48 clients: lower the replicas of overrides to 48, or use strategy TimeSlicing")
	f.add(s.RequestsAboveOne == v1alpha1.RequestsAboveOneAllow,
		"strategy MPS limits each replica, and more replicas would not raise the limits of a pod: remove requestsAboveOne, or set it to Refuse")
	if m := s.MPS; m != nil {
		f.add(m.MemoryOvercommitPercent != nil && (*m.MemoryOvercommitPercent < 100 || *m.MemoryOvercommitPercent > 400), "spec.sharing.mps.memoryOvercommitPercent is 100 to 400")
		f.add(m.ActiveThreadPercent != nil && (*m.ActiveThreadPercent < 1 || *m.ActiveThreadPercent > 100), "spec.sharing.mps.activeThreadPercent is 1 to 100")
		f.add(m.Users != "" && m.Users != v1alpha1.MPSUsersAny && m.Users != v1alpha1.MPSUsersSingle, "spec.sharing.mps.users is Any or Single, not %q", m.Users)
	}
}

func (f *faults) mig(s *v1alpha1.Sharing) {
	f.add(s.MaxReplicas != nil, "the instances of strategy MIG have equally many replicas: remove maxReplicas, or use strategy TimeSlicing")
	f.add(len(s.Overrides) > 0, "strategy MIG has a layout for each GPU: remove overrides, or use strategy TimeSlicing")
	f.add(s.ResourceName != "" && s.MIGNaming() != v1alpha1.MIGNamingSingle,
		"resources of strategy MIG are named after the profiles of instances: remove resourceName, or set mig.naming to Single")
	f.add(s.ResourceName == v1alpha1.ResourceGPUShared && s.Replicas == nil, "an instance that one pod has for itself is called nvidia.com/gpu: remove resourceName, or set replicas")
	f.add(s.BusyPercent != nil && s.Replicas == nil, "pods that have an instance for themselves do not slow each other down: remove busyPercent, or set replicas")
	f.add(s.MIG == nil, "strategy MIG needs mig.layouts, the instances that GPUs are divided into")
	if s.MIG == nil {
		return
	}
	f.add(s.MIGNaming() != v1alpha1.MIGNamingMixed && s.MIGNaming() != v1alpha1.MIGNamingSingle, "spec.sharing.mig.naming is Mixed or Single, not %q", s.MIG.Naming)
	f.add(len(s.MIG.Layouts) == 0 || len(s.MIG.Layouts) > 32, "spec.sharing.mig.layouts has 1 to 32 items")
	f.add(s.Backend == v1alpha1.BackendDRA && s.Replicas != nil && slices.ContainsFunc(s.MIG.Layouts, func(l v1alpha1.MIGLayout) bool { return l.Profile == "" }),
		"with backend DRA the instances of several profiles are not shared: remove replicas, set the profile of each layout, or use backend DevicePlugin")
	// Divisions of GPUs are checked like in the controller.
	if err := s.LayoutsError(); err != nil {
		f.add(true, "%s", err)
	}
}

func (f *faults) memory(s *v1alpha1.Sharing) {
	f.add(s.Memory == nil || len(s.Memory.Sizes) == 0, "strategy MemorySlots needs memory.sizes, the sizes of the slots that pods can request, for instance 2Gi, 4Gi and 8Gi")
	f.add(s.Replicas != nil || s.MaxReplicas != nil || len(s.Overrides) > 0,
		"strategy MemorySlots shares GPUs by device memory: remove replicas, maxReplicas and overrides, or use strategy TimeSlicing")
	f.add(s.ResourceName != "", "strategy MemorySlots names resources after the sizes of slots, for instance nvidia.com/gpu-2gb: remove resourceName")
	f.add(s.RequestsAboveOne == v1alpha1.RequestsAboveOneAllow,
		"with strategy MemorySlots a container has one slot, since two might be on two GPUs: remove requestsAboveOne, or set it to Refuse")
	if err := s.SizesError(); err != nil {
		f.add(true, "%w", err)
		return
	}
	if m := s.Memory; m != nil {
		slots := s.MemorySlots()
		f.add(len(m.Sizes) > 8, "spec.sharing.memory.sizes has at most 8 items")
		f.add(len(slots.SizesMiB) > 0 && (slots.SizesMiB[0] < 256 || slots.SizesMiB[len(slots.SizesMiB)-1] > 1<<20), "spec.sharing.memory.sizes are 256Mi to 1024Gi")
		f.add(slots.ReserveMiB > 64<<10, "spec.sharing.memory.reserve is at most 64Gi")
		f.add(m.Enforcement != "" && m.Enforcement != v1alpha1.MemoryEnforcementNone && m.Enforcement != v1alpha1.MemoryEnforcementWatch && m.Enforcement != v1alpha1.MemoryEnforcementMPS,
			"spec.sharing.memory.enforcement is None, Watch or MPS, not %q", m.Enforcement)
	}
}

func (f *faults) overrides(overrides []v1alpha1.ReplicasOverride) {
	f.add(len(overrides) > 32, "spec.sharing.overrides has at most 32 items")
	names := map[string]bool{}
	for _, o := range overrides {
		f.add(o.GPUName == "" || len(o.GPUName) > 63, "spec.sharing.overrides: each needs a gpuName of at most 63 characters")
		f.add(names[o.GPUName], "spec.sharing.overrides names GPU %q twice", o.GPUName)
		f.add(o.Replicas < 1 || o.Replicas > 128, "spec.sharing.overrides: the replicas of GPU %q are 1 to 128", o.GPUName)
		names[o.GPUName] = true
	}
}

// validPod checks the containers, resources and overhead of a pod.
func validPod(spec *corev1.PodSpec) error {
	if len(spec.Containers) == 0 {
		return errors.New("it has no containers")
	}
	errs := []error{validAmounts("overhead", spec.Overhead)}
	for i, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		name := c.Name
		if name == "" {
			name = fmt.Sprintf("%d", i+1)
		}
		errs = append(errs, validRequests("container "+name, c.Resources))
	}
	if spec.Resources != nil {
		errs = append(errs, validRequests("the pod's resources", *spec.Resources))
	}
	return errors.Join(errs...)
}

func validRequests(of string, r corev1.ResourceRequirements) error {
	if err := errors.Join(validAmounts(of+": requests", r.Requests), validAmounts(of+": limits", r.Limits)); err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		request, limit := r.Requests[name], r.Limits[name]
		_, limited := r.Limits[name]
		switch {
		case snapshot.IsExtended(name) && !limited:
			errs = append(errs, fmt.Errorf("%s: %s has a request but no limit: write it as a limit", of, name))
		case snapshot.IsExtended(name) && !amount.Equal(request, limit):
			errs = append(errs, fmt.Errorf("%s: the request for %s is %s and its limit %s: they must be the same", of, name, amount.Text(request), amount.Text(limit)))
		case limited && amount.Cmp(request, limit) > 0:
			errs = append(errs, fmt.Errorf("%s: the request for %s, %s, is above its limit, %s", of, name, amount.Text(request), amount.Text(limit)))
		}
	}
	return errors.Join(errs...)
}

func validAmounts(of string, list corev1.ResourceList) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		switch {
		case q.Sign() < 0:
			errs = append(errs, fmt.Errorf("%s: %s of %s is negative", of, amount.Text(q), name))
		case amount.Value(q) > amount.Most:
			errs = append(errs, fmt.Errorf("%s: %s of %s is implausibly large", of, amount.Text(q), name))
		case snapshot.IsExtended(name) && !amount.Whole(q):
			errs = append(errs, fmt.Errorf("%s: %s of %s is not a whole number", of, amount.Text(q), name))
		}
	}
	return errors.Join(errs...)
}

// validSelector returns an error if the selector of a workload does not match the labels of its pods.
func validSelector(selector *metav1.LabelSelector, podLabels map[string]string) error {
	if selector == nil {
		return errors.New("spec.selector is missing")
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return fmt.Errorf("spec.selector: %w", err)
	}
	if s.Empty() || !s.Matches(labels.Set(podLabels)) {
		return errors.New("spec.selector does not match the labels of spec.template")
	}
	return nil
}
