package nodecontract

// BackendAnnotation is a part of the promise of a machine: BackendDRA if its agent hands out replicas as a DRA driver. Without it, the agent is a device plugin.
// The controller writes it to NodeClaims, and Karpenter syncs it to the Node. The controller and the agent read it.
const BackendAnnotation = domain + "/backend"

// BackendDRA is the value of BackendAnnotation for Dynamic Resource Allocation.
const BackendDRA = "DRA"

// DRADriver is the name of the agent's DRA driver, which is in ResourceSlices, ResourceClaims and DeviceClasses.
const DRADriver = "gpu." + domain

// Capacities of a device in the agent's ResourceSlices, of which claims consume parts.
const (
	// DRAReplicas is the number of replicas of a GPU. A request consumes one unless it says otherwise.
	DRAReplicas = "replicas"
	// DRAMemory is the device memory of a GPU. A request consumes none unless it says otherwise.
	DRAMemory = "memory"
)

// Keys of taints of devices in the agent's ResourceSlices. A device with one of them takes no new pods.
const (
	// DRAUnhealthyTaint is on a GPU that is out of service.
	DRAUnhealthyTaint = DRADriver + "/out-of-service"
	// DRACordonedTaint is on a GPU that GPUCordonAnnotation names.
	DRACordonedTaint = DRADriver + "/cordoned"
)
