// Package gpu tests the released node agent on a machine with NVIDIA GPUs: `make test-gpu`. The kubelet is a fake one, and the driver, the GPUs and the programs
// that use them are real. Each sharing strategy has a file, and TestCosts measures what each of them costs. Tests skip what the driver, the GPUs or the
// user cannot do, and say why.
//
// A GPU that somebody uses is left alone. The tests change the compute mode of GPUs and restore it, unless KARVE_KEEP_COMPUTE_MODE is set.
package gpu
