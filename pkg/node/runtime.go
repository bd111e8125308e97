package node

import (
	"errors"
	"io/fs"

	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/toolkit"
	"karve.sh/karve/pkg/nodecontract"
)

// runtime returns the configuration of NVIDIA's container runtime, and false if there is none or it cannot be read.
func (o Options) runtime() (c toolkit.Config, ok bool, err error) {
	if o.runtimeConfig == none || o.runtimeConfig == "" {
		return toolkit.Config{}, false, nil
	}
	c, err = toolkit.Read(o.runtimeConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return toolkit.Config{}, false, nil
	}
	return c, err == nil, err
}

// reportAccess reports whether containers can get GPUs that they were not allocated.
func (a *Agent) reportAccess() {
	if c, ok := accessCondition(a.options.runtime()); ok {
		a.report.condition(c)
	}
}

func accessCondition(c toolkit.Config, ok bool, err error) (health.Condition, bool) {
	condition := health.Condition{Type: nodecontract.AccessCondition}
	switch {
	case err != nil:
		condition.Status, condition.Reason, condition.Message = "Unknown", nodecontract.ReasonRuntimeUnreadable, err.Error()
	case !ok:
		return health.Condition{}, false
	case c.Environment:
		condition.Status, condition.Reason = "False", nodecontract.ReasonEnvironmentAccepted
		condition.Message = "A container with NVIDIA_VISIBLE_DEVICES=all in its pod or image gets all GPUs of the node, also without requesting any: " +
			"set accept-nvidia-visible-devices-envvar-when-unprivileged = false and accept-nvidia-visible-devices-as-volume-mounts = true in the configuration of NVIDIA's container runtime"
	default:
		condition.Status, condition.Reason = "True", nodecontract.ReasonEnvironmentIgnored
		condition.Message = "NVIDIA's container runtime ignores NVIDIA_VISIBLE_DEVICES of unprivileged containers"
	}
	return condition, true
}
