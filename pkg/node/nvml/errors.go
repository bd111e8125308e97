package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"karve.sh/karve/pkg/node/gpu"
)

// Error is an error code that NVML returned.
type Error struct {
	// Doing is the operation that failed, for example "reading the memory of GPU-1".
	Doing string
	Code  nvml.Return
}

func (e *Error) Error() string {
	meaning, advice := adviceOn(e.Code)
	s := fmt.Sprintf("%s: %s (NVML code %d)", e.Doing, meaning, int32(e.Code))
	if advice != "" {
		s += ": " + advice
	}
	return s
}

// Is reports whether the code corresponds to an error of package gpu.
func (e *Error) Is(target error) bool {
	switch e.Code {
	case nvml.ERROR_GPU_IS_LOST:
		return target == gpu.ErrLost
	case nvml.ERROR_NOT_FOUND:
		return target == gpu.ErrUnknown
	case nvml.ERROR_UNINITIALIZED:
		return target == gpu.ErrClosed
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return target == gpu.ErrRestart
	case nvml.ERROR_IN_USE:
		return target == gpu.ErrInUse
	case nvml.ERROR_RESET_REQUIRED:
		return target == gpu.ErrResetRequired
	default:
		return false
	}
}

// callError returns an Error for a code, or nil for success.
func callError(code nvml.Return, format string, args ...any) error {
	if code == nvml.SUCCESS {
		return nil
	}
	return &Error{Doing: fmt.Sprintf(format, args...), Code: code}
}

// adviceOn returns what a code means and what to do about it.
func adviceOn(code nvml.Return) (meaning, advice string) {
	switch code {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return "the driver's library libnvidia-ml.so.1 cannot be loaded",
			"use a machine image with the NVIDIA driver, and give this container the library: by the nvidia runtime class, or by mounting the driver and naming its root"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the NVIDIA kernel driver is not loaded",
			"it may still be starting; else see what `dmesg | grep NVRM` and `lsmod | grep nvidia` say on the machine, and whether /dev/nvidiactl is in the container"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "the loaded library and the running kernel driver are of different versions, as after an update of the driver",
			"restart this process so that it loads the new library; when that does not help, reboot the machine"
	case nvml.ERROR_GPU_IS_LOST:
		return "the GPU does not answer any more; it has fallen off the bus or its driver has given up on it",
			"reboot the machine, and replace it when that does not help"
	case nvml.ERROR_RESET_REQUIRED:
		return "the GPU must be reset before it can be used again",
			"take the pods off it and run `nvidia-smi --gpu-reset`, or reboot the machine"
	case nvml.ERROR_NO_PERMISSION:
		return "the process may not do this",
			"run it as root, with the device files in its container"
	case nvml.ERROR_OPERATING_SYSTEM:
		return "the operating system keeps the device files from this process",
			"give the container access to /dev/nvidia*; systemd's daemon-reload can have taken it away, then restart the pod"
	case nvml.ERROR_IN_USE:
		return "a process has the GPU open", ""
	case nvml.ERROR_NOT_FOUND:
		return "there is no such GPU", ""
	case nvml.ERROR_UNINITIALIZED:
		return "the library is not open", ""
	case nvml.ERROR_NOT_SUPPORTED:
		return "the GPU does not support it", ""
	case nvml.ERROR_IRQ_ISSUE:
		return "the kernel has a problem with the GPU's interrupts", "replace the machine"
	case nvml.ERROR_CORRUPTED_INFOROM:
		return "the GPU's own configuration memory is corrupted", "replace the machine"
	default:
		return code.Error(), ""
	}
}
