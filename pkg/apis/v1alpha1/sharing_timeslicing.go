package v1alpha1

// timeSlicing is StrategyTimeSlicing: the pods on a GPU take turns, and share its memory freely.
type timeSlicing struct{}

func (timeSlicing) shared() bool { return true }

func (timeSlicing) resource(s Sharing) string {
	switch {
	case s.ResourceName != "":
		return s.ResourceName
	case s.Backend == BackendNVIDIADRA: // Its DeviceClass has this extendedResourceName.
		return ResourceGPU
	}
	return ResourceGPUShared
}

// replicas returns the number in the override for the GPU's name, or the range from replicas to maxReplicas.
func (timeSlicing) replicas(s Sharing, gpuName string) (least, most int64) {
	for i := range s.Overrides {
		if s.Overrides[i].GPUName == gpuName {
			least = max(1, int64(s.Overrides[i].Replicas))
			return least, least
		}
	}
	least = 1
	if s.Replicas != nil {
		least = max(1, int64(*s.Replicas))
	}
	if s.MaxReplicas == nil {
		return least, least
	}
	return least, max(least, int64(*s.MaxReplicas))
}
