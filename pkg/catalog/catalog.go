// Package catalog knows the instance types that a cloud offers: what they are, what they leave to pods, where and at what price.
package catalog

// What the GPUs of one machine can be at most, several times what any has today. Larger numbers, in files, labels and annotations, are not believed.
const (
	MaxGPUs      = 256
	MaxMemoryMiB = 16 << 20
)

// Resources are amounts of one machine.
type Resources struct {
	MilliCPU       int64
	MemoryBytes    int64
	EphemeralBytes int64
	Pods           int64
}

// GPU describes the GPUs of a machine, all of one kind.
type GPU struct {
	// Name is the cloud's name for the model, as in the label karpenter.k8s.aws/instance-gpu-name, for instance "t4".
	Name string
	// Count is the number of physical GPUs; 0 for machines without one.
	Count int64
	// MemoryMiB is the device memory of each GPU.
	MemoryMiB int64
}

// InstanceType is a kind of machine.
type InstanceType struct {
	Name string
	// Labels are the labels that every machine of the type carries, whatever its zone or capacity type.
	Labels map[string]string
	// Capacity is what the hardware has, Allocatable what is left of it for pods.
	Capacity, Allocatable Resources
	GPU                   GPU
	// Extended are the other countable resources that the machines have for pods, for instance "vpc.amazonaws.com/efa"; nil when there are none.
	Extended  map[string]int64
	Offerings []Offering
}

// Listing is what is known of the machines of one node class.
type Listing struct {
	// InstanceTypes are not to be changed.
	InstanceTypes []InstanceType
	// Reason and Message say, in the words of a condition, why there are none or what of them is out of date; empty when all is as it should be.
	Reason, Message string
}

// Offering is a zone and a capacity type in which an instance type can be had.
type Offering struct {
	Zone string
	// CapacityType is "on-demand", "spot" or "reserved".
	CapacityType string
	// MicroUSDPerHour is the price.
	MicroUSDPerHour int64
	// Labels are the labels that machines of this offering carry besides those of their type, zone and capacity type included.
	Labels map[string]string
}

// Named returns the instance type of a name among others; nil when it is not there.
func Named(types []InstanceType, name string) *InstanceType {
	for i := range types {
		if types[i].Name == name {
			return &types[i]
		}
	}
	return nil
}
