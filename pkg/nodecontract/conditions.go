package nodecontract

// Types of the conditions that the agent writes on its Node.
const (
	// HardwareCondition is the condition that EKS' node monitoring agent has for accelerators, and that Karpenter's node repair watches: it replaces a node for which it
	// has been False for ten minutes. Where that agent runs, it writes the condition too, and one of the two has to leave it alone. The controller replaces machines
	// for which it is False.
	HardwareCondition = "AcceleratedHardwareReady"
	// SharingCondition says whether the configuration is in force. While it is False, the controller does not replace the machine for missing replicas: what a
	// configuration or another plugin keeps the agent from, another machine would not mend.
	SharingCondition = "KarveSharingReady"
)

// Reasons of HardwareCondition.
const (
	ReasonHealthy = "GPUsHealthy"
	// ReasonNone: NVML lists no GPU. It is a reason of SharingCondition, too: the only one with which missing replicas count against the machine.
	ReasonNone = "NoGPUs"
	// ReasonReset: a GPU is out of service, and a reset may bring it back. ReasonReplace: none does. ReasonLost: it does not answer any more.
	ReasonReset   = "GPUNeedsReset"
	ReasonReplace = "GPUNeedsReplacement"
	ReasonLost    = "GPULost"
	ReasonUnknown = "GPUFault"
	// ReasonUnusable: a GPU is in the machine and the driver does not offer it.
	ReasonUnusable = "GPUUnusable"
	// ReasonDriverLost and ReasonDriverHung: no GPU can be used, for the driver does not answer, or does not return.
	ReasonDriverLost = "DriverLost"
	ReasonDriverHung = "DriverHung"
	// ReasonPaused: the driver is about to be unloaded, and the agent has let go of it. It is a reason of SharingCondition, too.
	ReasonPaused = "DriverPaused"
)

// Reasons of SharingCondition, and of events.
const (
	ReasonApplied      = "ConfigurationApplied"
	ReasonRefused      = "ConfigurationRefused"
	ReasonStandingBack = "StandingBack"
)
