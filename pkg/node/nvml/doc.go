// Package nvml reads NVIDIA GPUs through NVML, the driver's library. It is the only package that needs cgo.
//
// The library is loaded when Init is called, and its functions are bound when they are first called. So the program must not be linked with
// -z now, which is the default of some distributions' compilers: build it with -ldflags '-extldflags=-Wl,-z,lazy'. And a function that an
// old driver lacks must not be called, since that would end the process: optional ones are looked up at Init.
//
// Once a function is bound, the C library does not let go of the library any more. After an update of the driver only a new process can
// read the GPUs; that is gpu.ErrRestart.
package nvml

import "k8s.io/utils/clock"

// Options say where the driver is.
type Options struct {
	// Library is the path of libnvidia-ml.so.1. Without it, it is looked for below DriverRoot, and without that where the dynamic
	// loader looks, LD_LIBRARY_PATH included.
	Library string
	// DriverRoot is the folder at which the machine's root with the driver is seen, for instance "/driver-root".
	DriverRoot string
	// Sysfs is where the kernel's view of PCI devices is; "/sys" by default.
	Sysfs string
	// Dev is where the device files are; "/dev" by default.
	Dev string
	// Clock is the system's by default.
	Clock clock.PassiveClock
	// Skipped is told of GPUs that cannot be used and why; may be nil.
	Skipped func(error)
}
