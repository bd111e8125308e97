// Package nvml reads NVIDIA GPUs through NVML, the driver's library. It is the only package that needs cgo.
//
// Init loads the library, and its functions are bound when they are first called. The program must therefore not be linked with -z now, which is the
// default of the compilers of some distributions. Build it with -ldflags '-extldflags=-Wl,-z,lazy'. Calling a function that an old driver lacks would end
// the process, so Init looks up the optional ones.
//
// Once a function is bound, the C library does not unload the library. After an update of the driver, only a new process can read the GPUs, and the error
// is gpu.ErrRestart.
package nvml
