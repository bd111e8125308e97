package nodecontract

// Types of the conditions that the agent writes to its Node.
const (
	// HardwareCondition is the condition that the EKS node monitoring agent writes for accelerators. Karpenter's node repair replaces a node for which it
	// has been False for ten minutes. If the monitoring agent also runs on the node, both write the condition, and one of them must be configured not to.
	// Karve's controller replaces machines for which it is False.
	HardwareCondition = "AcceleratedHardwareReady"
	// SharingCondition reports whether the configuration is applied. While it is False, the controller does not replace the machine for missing replicas,
	// because another machine would not help against a bad configuration or another device plugin.
	SharingCondition = "KarveSharingReady"
	// CordonCondition is True while GPUs accept no new pods because GPUCordonAnnotation names them. The agent writes it once somebody has used the
	// annotation. While it is True, the controller expects fewer replicas than promised.
	CordonCondition = "KarveGPUsCordoned"
	// AccessCondition is True if NVIDIA's container runtime gives unprivileged containers only the GPUs that they were allocated. It is missing if the
	// agent does not find the configuration of the runtime.
	AccessCondition = "KarveGPUAccessRestricted"
)

// Reasons of AccessCondition.
const (
	// ReasonEnvironmentIgnored and ReasonEnvironmentAccepted mean that the runtime ignores or accepts NVIDIA_VISIBLE_DEVICES of unprivileged containers.
	ReasonEnvironmentIgnored  = "RuntimeIgnoresEnvironment"
	ReasonEnvironmentAccepted = "RuntimeAcceptsEnvironment"
	// ReasonRuntimeUnreadable means that the configuration of the runtime cannot be read.
	ReasonRuntimeUnreadable = "RuntimeConfigurationUnreadable"
)

// Reasons of HardwareCondition.
const (
	ReasonHealthy = "GPUsHealthy"
	// ReasonNone means that NVML lists no GPU. It is also a reason of SharingCondition, and the only one with which missing replicas count against the
	// machine.
	ReasonNone = "NoGPUs"
	// ReasonReset means that a GPU is out of service and a reset may repair it. ReasonReplace means that a reset does not repair it, and ReasonLost that a
	// GPU no longer answers.
	ReasonReset   = "GPUNeedsReset"
	ReasonReplace = "GPUNeedsReplacement"
	ReasonLost    = "GPULost"
	ReasonUnknown = "GPUFault"
	// ReasonDrain means that the driver wants work that spans GPUs to end. After that, the GPU works again or needs a reset.
	ReasonDrain = "GPUNeedsDrain"
	// ReasonUnusable means that the machine has a GPU that the driver does not offer.
	ReasonUnusable = "GPUUnusable"
	// ReasonDriverLost and ReasonDriverHung mean that no GPU can be used because the driver does not answer, or does not return from a call.
	ReasonDriverLost = "DriverLost"
	ReasonDriverHung = "DriverHung"
	// ReasonPaused means that the driver is about to be unloaded and the agent has closed it. It is also a reason of SharingCondition.
	ReasonPaused = "DriverPaused"
)

// Reasons of SharingCondition, and of events.
const (
	ReasonApplied      = "ConfigurationApplied"
	ReasonRefused      = "ConfigurationRefused"
	ReasonStandingBack = "StandingBack"
	// ReasonMPSDaemonDown means that the MPS daemon of a GPU does not answer, or has not answered yet.
	ReasonMPSDaemonDown = "MPSDaemonDown"
	// ReasonSliceNotPublished means that the ResourceSlice of the DRA driver is not up to date.
	ReasonSliceNotPublished = "ResourceSliceNotPublished"
	// ReasonServedByNVIDIA means that NVIDIA's DRA driver serves the GPUs, as promised. ReasonNVIDIADriverMissing means that it was promised but has no
	// ResourceSlice for the Node.
	ReasonServedByNVIDIA      = "ServedByNVIDIADRADriver"
	ReasonNVIDIADriverMissing = "NVIDIADRADriverNotFound"
	// ReasonClaimsUnreadable is the reason of an event: the DRA driver could not read the CDI spec of a prepared ResourceClaim.
	ReasonClaimsUnreadable = "ResourceClaimsUnreadable"
	// ReasonMemoryExceeded is the reason of an event: a pod uses more device memory than its slots have.
	ReasonMemoryExceeded = "GPUMemoryExceeded"
	// ReasonComputeModeWrong means that a GPU allows only one process, as with MPS, but should be shared without MPS.
	ReasonComputeModeWrong = "ComputeModeWrong"
	// ReasonMIGModePending means that GPUs are not divided into MIG instances yet: something uses them, or they need a reset or a reboot.
	ReasonMIGModePending = "MIGModePending"
	// ReasonMIGManagedElsewhere means that GPUs should be divided into MIG instances, but NVIDIA's MIG manager divides them.
	ReasonMIGManagedElsewhere = "MIGManagedElsewhere"
)

// Reasons of CordonCondition, and of events.
const (
	ReasonCordoned   = "GPUsCordoned"
	ReasonUncordoned = "NoGPUsCordoned"
	// ReasonCordonInvalid means that the annotation names something that is not a GPU of the Node. The GPUs that it names are still cordoned.
	ReasonCordonInvalid = "GPUCordonInvalid"
)
