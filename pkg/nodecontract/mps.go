package nodecontract

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// MPSAnnotation is part of the promise of a machine: its GPUs are shared with NVIDIA's MPS, and its value is an [MPS]. Without it, shared GPUs are
// time-sliced. The controller writes it to NodeClaims and Karpenter syncs it to the Node. The controller and the agent read it.
const MPSAnnotation = domain + "/mps"

// MaxMPSReplicas is the largest number of replicas of a GPU that is shared with MPS: an MPS server has at most 48 clients on GPUs of compute capability 7.0
// and newer.
const MaxMPSReplicas = 48

// Values of MPS.Users.
const (
	MPSUsersAny    = "Any"
	MPSUsersSingle = "Single"
)

// DefaultMPS has the default settings for sharing GPUs with MPS.
var DefaultMPS = MPS{MemoryOvercommitPercent: 100, Users: MPSUsersAny}

// MPS defines how GPUs are shared with MPS. The zero value means that they are not.
type MPS struct {
	// MemoryOvercommitPercent is the sum of the memory limits of a GPU's replicas in percent of its memory, 100 to 400.
	MemoryOvercommitPercent int64 `json:"memoryOvercommitPercent"`
	// ActiveThreadPercent is the share of a GPU's threads that a replica may use at the same time, 1 to 100. With 0 it is 100 divided by the replicas.
	ActiveThreadPercent int64 `json:"activeThreadPercent,omitempty"`
	// Users is MPSUsersAny or MPSUsersSingle.
	Users string `json:"users"`
}

// String returns the value of the annotation, or "" if m is zero.
func (m MPS) String() string {
	if m == (MPS{}) {
		return ""
	}
	data, err := json.Marshal(m)
	if err != nil {
		return "" // It has only numbers and text.
	}
	return string(data)
}

// ParseMPS parses the value of the annotation. An empty value is a zero MPS.
func ParseMPS(annotation string) (MPS, error) {
	if annotation == "" {
		return MPS{}, nil
	}
	m := DefaultMPS
	d := json.NewDecoder(strings.NewReader(annotation))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return MPS{}, fmt.Errorf("reading %s: %w", MPSAnnotation, err)
	}
	switch {
	case m.MemoryOvercommitPercent < 100 || m.MemoryOvercommitPercent > 400:
		return MPS{}, fmt.Errorf("reading %s: memoryOvercommitPercent is %d, and can be 100 to 400", MPSAnnotation, m.MemoryOvercommitPercent)
	case m.ActiveThreadPercent < 0 || m.ActiveThreadPercent > 100:
		return MPS{}, fmt.Errorf("reading %s: activeThreadPercent is %d, and can be 1 to 100", MPSAnnotation, m.ActiveThreadPercent)
	case m.Users != MPSUsersAny && m.Users != MPSUsersSingle:
		return MPS{}, fmt.Errorf("reading %s: users is %.64q, and can be %s or %s", MPSAnnotation, m.Users, MPSUsersAny, MPSUsersSingle)
	}
	return m, nil
}

// MemoryMiB returns the device memory in MiB that a process in a replica may allocate, for a GPU with gpuMiB of memory. It is at least 1 if gpuMiB is known.
func (m MPS) MemoryMiB(gpuMiB, replicas int64) int64 {
	if gpuMiB <= 0 {
		return 0
	}
	return min(gpuMiB, max(1, gpuMiB*m.MemoryOvercommitPercent/100/max(1, replicas)))
}

// ParseThreads parses the value of GPUThreadsAnnotation. It is 0 if there is none.
func ParseThreads(annotation string) (int64, error) {
	if annotation == "" {
		return 0, nil
	}
	percent, err := strconv.ParseInt(annotation, 10, 64)
	if err != nil || percent < 1 || percent > 100 {
		return 0, fmt.Errorf("annotation %s is %.64q, and can be a percentage from 1 to 100", GPUThreadsAnnotation, annotation)
	}
	return percent, nil
}

// Threads returns the share of a GPU's threads that a replica may use, 1 to 100.
func (m MPS) Threads(replicas int64) int64 {
	if m.ActiveThreadPercent > 0 {
		return m.ActiveThreadPercent
	}
	return max(1, 100/max(1, replicas))
}
