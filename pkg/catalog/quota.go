package catalog

// Quota is a limit of an account on the vCPUs of machines that run at the same time.
type Quota struct {
	// Group is the group of instance types that share the quota, and CapacityType is "on-demand" or "spot".
	Group        string `json:"group"`
	CapacityType string `json:"capacityType"`
	// Code is the cloud's name of the quota.
	Code  string `json:"code"`
	VCPUs int64  `json:"vcpus"`
}
