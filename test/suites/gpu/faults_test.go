//go:build cgo && gpu

package gpu_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/health"
)

// TestFaultOfProgram checks that a program that breaks its own GPU context takes the GPU from nobody else.
func TestFaultOfProgram(t *testing.T) {
	w := newWorld(t)
	w.whole(7)
	w.share("timeSlicing", 4)
	w.run()
	w.allocatable(4 * len(w.devices))
	uuid := w.devices[0].UUID
	other := w.use(uuid, "64")
	if other.problem != "" {
		t.Fatal(other.problem)
	}
	const counter = "karve_gpu_xid_errors_total"
	for _, fault := range []struct {
		argument string
		// xid is what NVIDIA's driver reports for the fault: 31 is a fault of the memory management, and 13 an exception of the graphics engine.
		xid int
	}{{"fault", 31}, {"misaligned", 13}} {
		t.Run(fault.argument, func(t *testing.T) {
			before := w.metric(counter, uuid)
			if p := w.use(uuid, fault.argument); !strings.HasPrefix(p.problem, "error cuCtxSynchronize 7") {
				t.Fatalf("the program ended with %d, %q", p.mib, p.problem)
			}
			w.eventually("the agent counts the XID", func() bool { return w.metric(counter, uuid) > before })
			time.Sleep(time.Second) // One fault can have several XIDs.
			var xids []int
			for number := range 200 {
				if w.metric(counter, uuid, fmt.Sprintf("xid=%q", strconv.Itoa(number))) > 0 {
					xids = append(xids, number)
					if x := health.Look(number); x.Class != health.ClassApplication && x.Class != health.ClassInformation {
						t.Errorf("XID %d of a program that broke is %s (%s)", number, x.Class, x.Means)
					}
				}
			}
			attr(t, "xids", xids)
			const action = "karve_gpu_recovery_action"
			if w.metric(action, uuid) != w.metric(action, uuid, `action="None"`) {
				t.Error("the driver asks to recover the GPU from a program that broke")
			}
			if !slices.Contains(xids, fault.xid) {
				t.Errorf("the XIDs are %d, want %d among them", xids, fault.xid)
			}
			if got := w.kubelet.Allocatable(resource); got != 4*len(w.devices) {
				t.Errorf("%d replicas take pods", got)
			}
			if err := other.again(); err != nil {
				t.Errorf("another program on the GPU: %v", err)
			}
			if p := w.use(uuid, "64"); p.problem != "" || p.end() != nil {
				t.Errorf("a new program on the GPU: %q", p.problem)
			}
		})
	}
	if err := other.end(); err != nil {
		t.Error(err)
	}
}
