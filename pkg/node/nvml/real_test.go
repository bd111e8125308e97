//go:build cgo && gpu

package nvml_test

import (
	"testing"

	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/nvml"
)

// TestRealGPUs needs a machine with an NVIDIA driver: go test -tags gpu -run TestRealGPUs ./pkg/node/nvml. It does not run in parallel, because a process has
// only one NVML.
func TestRealGPUs(t *testing.T) {
	gputest.TestReadOnly(t, nvml.New(nvml.Options{}))
}
