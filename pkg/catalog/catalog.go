// Package catalog describes the instance types that a cloud offers: their hardware, the capacity that they leave to pods, their zones and their prices.
package catalog

import (
	"cmp"
	"time"
)

// Limits for the GPUs of one machine, several times those of any current machine. Larger numbers in files, labels and annotations are invalid.
const (
	MaxGPUs      = 256
	MaxMemoryMiB = 16 << 20
)

// Resources are amounts of resources of one machine.
type Resources struct {
	MilliCPU       int64 `json:"milliCPU"`
	MemoryBytes    int64 `json:"memoryBytes"`
	EphemeralBytes int64 `json:"ephemeralBytes"`
	Pods           int64 `json:"pods"`
}

// GPU describes the GPUs of a machine, which are all of one model.
type GPU struct {
	// Name is the cloud's name of the model, as in the label karpenter.k8s.aws/instance-gpu-name, for example "t4".
	Name string `json:"name"`
	// Count is the number of physical GPUs. It is 0 for machines without GPUs.
	Count int64 `json:"count"`
	// MemoryMiB is the device memory of each GPU, in MiB.
	MemoryMiB int64 `json:"memoryMiB"`
}

// InstanceType describes an instance type of a cloud. Its JSON is part of what package published defines.
type InstanceType struct {
	Name string `json:"name"`
	// Labels are the labels that every machine of the type has, in every zone and capacity type.
	Labels map[string]string `json:"labels,omitempty"`
	// Capacity is the capacity of the hardware. Allocatable is the part that pods can use.
	Capacity    Resources `json:"capacity"`
	Allocatable Resources `json:"allocatable"`
	GPU         GPU       `json:"gpu,omitzero"`
	// Extended are the other countable resources that pods can use, for example "vpc.amazonaws.com/efa". It is nil if there are none.
	Extended  map[string]int64 `json:"extended,omitempty"`
	Offerings []Offering       `json:"offerings,omitempty"`
}

// Listing holds the instance types of one node class.
type Listing struct {
	// InstanceTypes must not be modified.
	InstanceTypes []InstanceType
	// Reason and Message are those of a condition. They explain why there are no instance types, or what is out of date. They are empty if there is no
	// problem.
	Reason, Message string
	// Reservations are the reservations of the node class. Each of them has an offering of its instance type.
	Reservations []Reservation
	// Read is when the instance types were read from the cloud. It is zero if unknown.
	Read time.Time
}

// Offering is a zone and a capacity type in which an instance type is offered.
type Offering struct {
	Zone string `json:"zone"`
	// CapacityType is "on-demand", "spot" or "reserved".
	CapacityType string `json:"capacityType"`
	// MicroUSDPerHour is the price, in micro-dollars per hour. ListMicroUSDPerHour is the price in the cloud's list, or 0 if that is the same.
	MicroUSDPerHour     int64 `json:"microUSDPerHour"`
	ListMicroUSDPerHour int64 `json:"-"`
	// Limited are lower prices, at which only so many machines run.
	Limited []LimitedPrice `json:"-"`
	// Reservation is the ID of the reservation whose slots the machines take, or "" for machines that take none.
	Reservation string `json:"reservation,omitempty"`
	// Labels are the labels that machines of this offering have in addition to those of their type. They include the zone and the capacity type.
	Labels map[string]string `json:"labels,omitempty"`
}

// LimitedPrice is a price that machines have only up to a limit, as with a savings plan.
type LimitedPrice struct {
	MicroUSDPerHour int64
	// Limit is the name of the limit, and Draws how much of it one machine uses up, at least 1.
	Limit string
	Draws int64
}

// PriceLimit is the limit of a price: a number of machines, or micro-dollars per hour.
type PriceLimit struct {
	Name   string
	Amount int64
}

// ListPrice returns the price in the cloud's list, in micro-dollars per hour.
func (o *Offering) ListPrice() int64 { return cmp.Or(o.ListMicroUSDPerHour, o.MicroUSDPerHour) }

// Named returns the instance type with the name, or nil if there is none.
func Named(types []InstanceType, name string) *InstanceType {
	for i := range types {
		if types[i].Name == name {
			return &types[i]
		}
	}
	return nil
}
