package webhook

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Options are the chart's values of memoryAliases, as the value of one flag: gpuNodeClass=gpu-memory,gpushareUnit=GiB,hamiGPUMemoryMiB=0,taintKey=nvidia.com/gpu,port=9443.
type Options struct {
	GPUNodeClass     string
	MiB              bool
	HAMiGPUMemoryMiB int64
	TaintKey         string
	// Port is the port of the webhook.
	Port int
}

// Enabled reports whether the webhook is served.
func (o *Options) Enabled() bool { return o.GPUNodeClass != "" }

// String returns the value of the flag. It is "" if the webhook is not served.
func (o *Options) String() string {
	if !o.Enabled() {
		return ""
	}
	unit := "GiB"
	if o.MiB {
		unit = "MiB"
	}
	return fmt.Sprintf("gpuNodeClass=%s,gpushareUnit=%s,hamiGPUMemoryMiB=%d,taintKey=%s,port=%d", o.GPUNodeClass, unit, o.HAMiGPUMemoryMiB, o.TaintKey, o.Port)
}

// Set parses the value of the flag.
func (o *Options) Set(text string) error {
	*o = Options{}
	if text == "" {
		return nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		if err := o.set(name, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if o.GPUNodeClass == "" {
		return errors.New("gpuNodeClass must be set")
	}
	if o.Port < 1 || o.Port > 65535 {
		return errors.New("port must be from 1 to 65535")
	}
	return nil
}

func (o *Options) set(name, value string) (err error) {
	switch name {
	case "gpuNodeClass":
		o.GPUNodeClass = value
	case "gpushareUnit":
		if value != "GiB" && value != "MiB" {
			return fmt.Errorf("must be GiB or MiB, not %q", value)
		}
		o.MiB = value == "MiB"
	case "hamiGPUMemoryMiB":
		o.HAMiGPUMemoryMiB, err = strconv.ParseInt(value, 10, 64)
	case "taintKey":
		o.TaintKey = value
	case "port":
		o.Port, err = strconv.Atoi(value)
	default:
		return errors.New("unknown name")
	}
	return err
}
