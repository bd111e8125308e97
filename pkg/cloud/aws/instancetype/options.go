package instancetype

import (
	"errors"
	"fmt"
	"strconv"
)

// Options affect what pods can use of a machine, or which prices are known. They must be the same as those of the Karpenter that launches the machines.
type Options struct {
	// VMMemoryOverheadPercent is the fraction of the advertised memory that the operating system cannot use, such as 0.075 for 7.5 %.
	VMMemoryOverheadPercent float64
	// ReservedENIs is the number of network interfaces of a machine that pods cannot use.
	ReservedENIs int
	// IsolatedVPC means that the Pricing API cannot be reached.
	IsolatedVPC bool
}

// DefaultOptions are those of Karpenter's AWS provider.
var DefaultOptions = Options{VMMemoryOverheadPercent: 0.075}

// Set changes the option of a flag of Karpenter's AWS provider. Other flags change nothing.
func (o *Options) Set(flag, value string) (err error) {
	switch flag {
	case "vm-memory-overhead-percent":
		o.VMMemoryOverheadPercent, err = strconv.ParseFloat(value, 64)
		if err == nil && !(o.VMMemoryOverheadPercent >= 0 && o.VMMemoryOverheadPercent < 1) {
			err = errors.New("it must be a fraction of 1, such as 0.075")
		}
	case "reserved-enis":
		o.ReservedENIs, err = strconv.Atoi(value)
		if err == nil && o.ReservedENIs < 0 {
			err = errors.New("it must not be less than 0")
		}
	case "isolated-vpc":
		o.IsolatedVPC, err = strconv.ParseBool(value)
	}
	if err != nil {
		return fmt.Errorf("invalid value %q for --%s: %w", value, flag, err)
	}
	return nil
}

// Variables are the environment variables in which Karpenter's AWS provider looks for a flag that is not given.
var Variables = map[string]string{
	"VM_MEMORY_OVERHEAD_PERCENT": "vm-memory-overhead-percent",
	"RESERVED_ENIS":              "reserved-enis",
	"ISOLATED_VPC":               "isolated-vpc",
}
