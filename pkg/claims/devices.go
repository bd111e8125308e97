package claims

// Devices are the GPUs of a machine, or their MIG instances, which are all alike.
type Devices struct {
	Kind
	// Count is their number. Replicas and MemoryMiB are those of each device; MemoryMiB is 0 if unknown.
	Count, Replicas, MemoryMiB int64
}

// Kind is what is known about a device before there is a node.
type Kind struct {
	// Driver is the DRA driver, or "" for that of Karve's agents.
	Driver string
	// Whole reports whether a device serves one claim at a time and has no replicas capacity, as NVIDIA's driver publishes GPUs that are not shared.
	Whole bool
	// Model is the cloud's name of the GPU. Profile is that of the MIG instance, or "" for a whole GPU.
	Model, Profile string
	// Resource is the extended resource that serves the device.
	Resource string
}

// noun describes a device for messages.
func (k Kind) noun() string {
	if k.Profile != "" {
		return "MIG instance"
	}
	return "GPU"
}

// model returns the model with the profile, for messages.
func (k Kind) model() string {
	if k.Profile != "" {
		return k.Model + " (" + k.Profile + ")"
	}
	return k.Model
}
