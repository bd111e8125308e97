//go:build cgo && gpu

package gpu_test

import (
	"fmt"
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
	if p := w.use(uuid, "fault"); !strings.HasPrefix(p.problem, "error cuCtxSynchronize 7") {
		t.Fatalf("the program that writes to a wild address ended with %d, %q", p.mib, p.problem)
	}
	const counter = "karve_gpu_xid_errors_total"
	w.eventually("the agent counts the XID", func() bool { return w.metric(counter, uuid) > 0 })
	time.Sleep(time.Second) // One fault can have several XIDs.
	known := 0.0
	for number := range 200 {
		n := w.metric(counter, uuid, fmt.Sprintf("xid=%q", strconv.Itoa(number)))
		if n == 0 {
			continue
		}
		known += n
		t.Logf("XID %d came %v times", number, n)
		if x := health.Look(number); x.Class != health.ClassApplication && x.Class != health.ClassInformation {
			t.Errorf("XID %d of a program that broke is %s (%s)", number, x.Class, x.Means)
		}
	}
	if all := w.metric(counter, uuid); all != known {
		t.Errorf("%v XIDs are counted, and %v have a known number", all, known)
	}
	const action = "karve_gpu_recovery_action"
	if w.metric(action, uuid) != w.metric(action, uuid, `action="None"`) {
		t.Error("the driver asks to recover the GPU from a program that broke")
	}
	if got := w.kubelet.Allocatable(resource); got != 4*len(w.devices) {
		t.Errorf("%d replicas take pods", got)
	}
	for _, p := range []*process{other, w.use(uuid, "64")} {
		if err := p.end(); p.problem != "" || err != nil {
			t.Errorf("another program on the GPU: %q, %v", p.problem, err)
		}
	}
}
