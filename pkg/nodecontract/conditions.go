package nodecontract

// Types of the conditions that the agent writes to its Node.
const (
	// HardwareCondition is the condition that the EKS node monitoring agent writes for accelerators. Karpenter's node repair replaces a node if it has been
	// False for ten minutes. If the monitoring agent runs on the node too, both write the condition, and one of them has to be configured not to. Karve's
	// controller replaces machines for which it is False.
	HardwareCondition = "AcceleratedHardwareReady"
	// SharingCondition reports whether the configuration is applied. While it is False, the controller does not replace the machine for missing replicas,
	// because another machine would not help against a bad configuration or another device plugin.
	SharingCondition = "KarveSharingReady"
	// CordonCondition is True while GPUs take no new pods because GPUCordonAnnotation names them. The agent writes it once somebody has used the annotation.
	// While it is True, the controller expects fewer replicas than promised.
	CordonCondition = "KarveGPUsCordoned"
)

// Reasons of HardwareCondition.
const (
	ReasonHealthy = "GPUsHealthy"
	// ReasonNone means that NVML lists no GPU. It is also a reason of SharingCondition, and the only one with which missing replicas count against the
	// machine.
	ReasonNone = "NoGPUs"
	// ReasonReset means that a GPU is out of service and that a reset may repair it, ReasonReplace that a reset does not repair it, and ReasonLost that a
	// GPU no longer answers.
	ReasonReset   = "GPUNeedsReset"
	ReasonReplace = "GPUNeedsReplacement"
	ReasonLost    = "GPULost"
	ReasonUnknown = "GPUFault"
	// ReasonUnusable means that the machine has a GPU that the driver does not offer.
	ReasonUnusable = "GPUUnusable"
	// ReasonDriverLost and ReasonDriverHung mean that no GPU can be used because the driver does not answer, or does not return from a call.
	ReasonDriverLost = "DriverLost"
	ReasonDriverHung = "DriverHung"
	// ReasonPaused means that the driver is about to be unloaded and that the agent has closed it. It is also a reason of SharingCondition.
	ReasonPaused = "DriverPaused"
)

// Reasons of SharingCondition, and of events.
const (
	ReasonApplied      = "ConfigurationApplied"
	ReasonRefused      = "ConfigurationRefused"
	ReasonStandingBack = "StandingBack"
	// ReasonMPSDaemonDown means that the MPS daemon of a GPU does not answer, or has not answered yet.
	ReasonMPSDaemonDown = "MPSDaemonDown"
	// ReasonSliceNotPublished means that the ResourceSlice of the DRA driver is not as it should be.
	ReasonSliceNotPublished = "ResourceSliceNotPublished"
	// ReasonServedByNVIDIA means that NVIDIA's DRA driver serves the GPUs, as was promised, and ReasonNVIDIADriverMissing that it was promised and has no ResourceSlice
	// for the Node.
	ReasonServedByNVIDIA      = "ServedByNVIDIADRADriver"
	ReasonNVIDIADriverMissing = "NVIDIADRADriverNotFound"
	// ReasonClaimsUnreadable is that of an event: the DRA driver could not read which ResourceClaims were prepared, and made the record anew.
	ReasonClaimsUnreadable = "ResourceClaimsUnreadable"
	// ReasonMemoryExceeded is that of an event: a pod uses more device memory than its slots have.
	ReasonMemoryExceeded = "GPUMemoryExceeded"
	// ReasonComputeModeWrong means that a GPU admits one process only, as with MPS, and is to be shared without MPS.
	ReasonComputeModeWrong = "ComputeModeWrong"
	// ReasonMIGModePending means that GPUs are not divided into MIG instances yet: something uses them, or they need a reset or a reboot.
	ReasonMIGModePending = "MIGModePending"
	// ReasonMIGManagedElsewhere means that GPUs are to be divided into MIG instances, and that NVIDIA's MIG manager divides them.
	ReasonMIGManagedElsewhere = "MIGManagedElsewhere"
)

// Reasons of CordonCondition, and of events.
const (
	ReasonCordoned   = "GPUsCordoned"
	ReasonUncordoned = "NoGPUsCordoned"
	// ReasonCordonInvalid means that the annotation names something that is no GPU of the Node. The GPUs that it names are cordoned all the same.
	ReasonCordonInvalid = "GPUCordonInvalid"
)
