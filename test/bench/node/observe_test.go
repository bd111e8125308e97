package main

import (
	"strings"
	"testing"
	"time"
)

// These are lines of kubelet 1.36.3. If another version logs differently, a measurement times out.
const kubeletLog = `I1121 01:59:49.846694      17 manager.go:241] "Device plugin connected" resourceName="nvidia.com/gpu"
I1121 01:59:49.848293      17 manager.go:319] "Processed device updates for resource" resourceName="nvidia.com/gpu" totalCount=40 healthyCount=40
I1121 01:59:50.000000      17 manager.go:319] "Processed device updates for resource" resourceName="nvidia.com/gpu.shared" totalCount=40 healthyCount=3
I1121 01:59:55.500000      17 manager.go:420] "Mark all resources Unhealthy for resource" resourceName="nvidia.com/gpu"
I1121 01:59:55.512500      17 manager.go:319] "Processed device updates for resource" resourceName="nvidia.com/gpu" totalCount=32 healthyCount=32
`

func TestKubeletLogShowsTimeWithoutAllocatableReplicas(t *testing.T) {
	var o observer
	o.read(strings.NewReader(kubeletLog))
	if got := o.kubelet.last(); got != 32 {
		t.Errorf("%d are allocatable, want 32", got)
	}
	if len(o.kubelet.changes) != 3 {
		t.Fatalf("changes: %v", o.kubelet.changes)
	}
	begin, end := o.kubelet.changes[0].at, o.kubelet.changes[2].at
	if got, want := o.kubelet.atZero(begin, end.Add(time.Hour)), 12500*time.Microsecond; got != want {
		t.Errorf("at zero for %s, want %s", got, want)
	}
	if got := o.kubelet.atZero(begin, begin.Add(time.Second)); got != 0 {
		t.Errorf("at zero for %s in a second without that", got)
	}
	if at, err := o.kubelet.reached(t.Context(), 32, begin); err != nil || !at.Equal(end) {
		t.Errorf("32 were reached at %s, %v, want %s", at, err, end)
	}
}
