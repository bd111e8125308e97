package nvml

import (
	"encoding/binary"
	"errors"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"karve.sh/karve/pkg/node/gpu"
)

// Recovery implements gpu.Library. Older drivers do not know the field.
func (l *Library) Recovery(uuid string) (gpu.Recovery, error) {
	l.open.RLock()
	defer l.open.RUnlock()
	k, err := l.lookup("reading the recovery action of", uuid)
	if err != nil {
		return gpu.RecoveryUnknown, err
	}
	if !l.has["nvmlDeviceGetFieldValues"] {
		return gpu.RecoveryUnknown, nil
	}
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	code := k.handle.GetFieldValues(values)
	if code == nvml.SUCCESS {
		code = nvml.Return(values[0].NvmlReturn)
	}
	switch code {
	case nvml.SUCCESS:
		return gpu.Recovery(binary.NativeEndian.Uint32(values[0].Value[:])), nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_FUNCTION_NOT_FOUND:
		return gpu.RecoveryUnknown, nil
	}
	err = callError(code, "reading the recovery action of %s", uuid)
	if errors.Is(err, gpu.ErrLost) {
		l.markLost(uuid)
	}
	return gpu.RecoveryUnknown, err
}
