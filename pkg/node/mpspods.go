package node

import (
	"context"
	"strconv"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/nodecontract"
)

// podPatience is how long an allocation waits for the API server to list the node's pods.
const podPatience = 2 * time.Second

// podStates returns the needs that the pod being admitted states. The kubelet does not say which pod it is admitting: see stated.
func (a *Agent) podStates(ctx context.Context, resource string, devices int) plugin.Stated {
	ctx, cancel := context.WithTimeout(ctx, podPatience)
	defer cancel()
	pods, err := a.node.Pods(ctx)
	var holders []plugin.Holder
	if err == nil {
		holders, err = a.use.holders.Holders(ctx)
	}
	if err != nil {
		logr.FromContextOrDiscard(ctx).Info("It is not known what the pod states that it needs; it gets the share of a replica", "error", err.Error())
		return plugin.Stated{}
	}
	return stated(pods, holders, resource, devices)
}

// stated returns the needs that the pod being admitted states. It is one of the pods with a container that requests this number of devices of the
// resource and does not hold them yet. If these pods state different amounts, stated returns the largest, so that no pod has less than it states. It
// returns 0 if one of them states none.
func stated(pods []nodeapi.Pod, holders []plugin.Holder, resource string, devices int) plugin.Stated {
	held := map[[2]string]bool{}
	for _, h := range holders {
		held[[2]string{h.Pod, h.Container}] = true
	}
	var memory, threads statedMax
	for _, p := range pods {
		if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
			continue
		}
		key := p.Metadata.Namespace + "/" + p.Metadata.Name
		waits := false
		for _, c := range append(append([]nodeapi.Container(nil), p.Spec.InitContainers...), p.Spec.Containers...) {
			waits = waits || c.Resources.Limits[resource] == strconv.Itoa(devices) && !held[[2]string{key, c.Name}]
		}
		if !waits {
			continue
		}
		memory.add(memoryMiB(p.Metadata.Annotations[nodecontract.GPUMemoryAnnotation]))
		percent, _ := nodecontract.ParseThreads(p.Metadata.Annotations[nodecontract.GPUThreadsAnnotation]) // The controller reports invalid values.
		threads.add(percent)
	}
	return plugin.Stated{MemoryMiB: memory.amount(), ThreadPercent: threads.amount()}
}

// statedMax is the largest of several amounts, or 0 if one of them is 0.
type statedMax struct {
	max  int64
	none bool
}

func (m *statedMax) add(n int64) {
	m.max, m.none = max(m.max, n), m.none || n <= 0
}

func (m *statedMax) amount() int64 {
	if m.none {
		return 0
	}
	return m.max
}

// memoryMiB returns the MiB of an amount of device memory, rounded up, or 0 if a user cannot mean it, as for the controller.
func memoryMiB(text string) int64 {
	bytes, err := amount.Memory(text)
	if err != nil {
		return 0
	}
	return (bytes + 1<<20 - 1) >> 20
}
