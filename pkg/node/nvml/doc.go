// Package nvml reads NVIDIA GPUs through NVML, the driver's library. It is the only package that needs cgo.
//
// Init loads the library, and its functions are bound when they are first called. The program must therefore not be linked with -z now, which is the
// default of the compilers of some distributions. Build it with -ldflags '-extldflags=-Wl,-z,lazy'. Calling a function that an old driver lacks would end
// the process, so Init looks up the optional ones.
//
// Once a function is bound, the C library does not unload the library. After an update of the driver, only a new process can read the GPUs, and the error
// is gpu.ErrRestart.
package nvml

import "k8s.io/utils/clock"

// Options configure a Library.
type Options struct {
	// Library is the path of libnvidia-ml.so.1. If it is empty, the library is searched for below DriverRoot, and if that is empty, where the dynamic
	// loader searches, including LD_LIBRARY_PATH.
	Library string
	// DriverRoot is the directory with the root file system of the host that has the driver, for example "/driver-root".
	DriverRoot string
	// Sysfs is the path of sysfs. It defaults to "/sys".
	Sysfs string
	// Dev is the directory of the device files. It defaults to "/dev".
	Dev string
	// Clock defaults to the system clock.
	Clock clock.PassiveClock
	// Skipped is called with the errors of GPUs that cannot be used. It may be nil.
	Skipped func(error)
}
