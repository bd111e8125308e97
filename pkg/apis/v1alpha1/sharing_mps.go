package v1alpha1

import (
	"fmt"
	"slices"

	"karve.sh/karve/pkg/nodecontract"
)

// mps is StrategyMPS: the pods on a GPU run at the same time, and a daemon limits the memory and the threads of each process.
type mps struct{ timeSlicing }

// withoutMPS lists the GPUs in clouds with a compute capability below 7.0, by their names in gpuName, on which MPS does not limit memory and threads.
var withoutMPS = []string{"k520", "k80", "m60"}

// MPSSettings returns the MPS settings as the node agent reads them. It returns zero settings for other strategies.
func (s Sharing) MPSSettings() nodecontract.MPS {
	if s.Strategy != StrategyMPS {
		return nodecontract.MPS{}
	}
	settings := nodecontract.DefaultMPS
	if s.MPS == nil {
		return settings
	}
	if p := s.MPS.MemoryOvercommitPercent; p != nil {
		settings.MemoryOvercommitPercent = int64(*p)
	}
	if p := s.MPS.ActiveThreadPercent; p != nil {
		settings.ActiveThreadPercent = int64(*p)
	}
	if s.MPS.Users != "" {
		settings.Users = string(s.MPS.Users)
	}
	return settings
}

// CanShare reports whether the strategy can share GPUs with the name. An override of one replica leaves them whole.
func (s Sharing) CanShare(gpuName string) bool {
	if s.MemorySlots().Enforcement == nodecontract.EnforceMPS {
		return !slices.Contains(withoutMPS, gpuName)
	}
	return s.Strategy != StrategyMPS || !slices.Contains(withoutMPS, gpuName) || s.ReplicasFor(gpuName) == 1
}

// OverridesError returns an error if an override shares GPUs that the strategy cannot share.
func (s Sharing) OverridesError() error {
	for i := range s.Overrides {
		if name := s.Overrides[i].GPUName; !s.CanShare(name) {
			return fmt.Errorf("spec.sharing.overrides: %s has a compute capability below 7.0, and MPS limits memory and threads from 7.0 on: set its replicas to 1, or use strategy TimeSlicing", name)
		}
	}
	return nil
}
