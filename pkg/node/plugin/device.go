package plugin

import (
	"fmt"
	"strconv"

	"karve.sh/karve/pkg/node/mig"
	"karve.sh/karve/pkg/node/sharing"
)

// device is a GPU or a MIG instance that one or more pods can hold.
type device struct {
	sharing.GPU
	// files are the device files of the instance, if they are passed.
	files []string
}

// deviceOf returns the device for a GPU or a MIG instance.
func deviceOf(g sharing.GPU, passFiles bool, capabilities mig.Capabilities) (device, error) {
	d := device{GPU: g}
	if g.Instance == nil || !passFiles {
		return d, nil
	}
	var err error
	if d.files, err = capabilities.Paths(g.Minor, g.Instance.GPUInstance, g.Instance.ComputeInstance); err != nil {
		return device{}, fmt.Errorf("flags.plugin.passDeviceSpecs: the device files of MIG instance %d:%d are not known: %w", g.Index, g.Instance.Index, err)
	}
	return d, nil
}

// index returns the index in the format of nvidia-smi and the container runtime, for example "0" and "0:3".
func (d device) index() string {
	if d.Instance != nil {
		return fmt.Sprintf("%d:%d", d.Index, d.Instance.Index)
	}
	return strconv.Itoa(d.Index)
}

func (d device) compare(other device) int { return d.Compare(other.GPU) }
