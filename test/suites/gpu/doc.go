// Package gpu tests the released node agent on a machine with NVIDIA GPUs: `make test-gpu`. The kubelet is a fake one, and the driver, the GPUs and the programs
// that use them are real. Each sharing strategy has a file, and TestCosts measures what each of them costs. Tests skip what the driver, the GPUs or the
// user cannot do, and say why.
//
// A GPU that somebody uses is left alone, and so are the settings of GPUs: KARVE_COMPUTE_MODE, KARVE_TIME_SLICE and KARVE_DIVIDE allow tests to change the
// compute mode, the interval of time slices and the MIG mode. The first two are restored.
package gpu
