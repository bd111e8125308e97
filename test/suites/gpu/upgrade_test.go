//go:build cgo && gpu

package gpu_test

import (
	"fmt"
	"testing"
	"time"
)

// TestReloadAndUpgrade changes the configuration of the agent, restarts it, and kills it, while programs use the GPU.
func TestReloadAndUpgrade(t *testing.T) {
	w := newWorld(t)
	w.whole(3)
	w.share("timeSlicing", 4)
	agent := w.run()
	w.allocatable(4 * len(w.devices))
	var programs []*process
	for i := range 4 {
		grant, err := w.kubelet.Admit(t.Context(), fmt.Sprint("pod-", i), resource, 1)
		w.must(err)
		programs = append(programs, w.use(grant.Response.GetEnvs()["NVIDIA_VISIBLE_DEVICES"], "64"))
	}
	use := func(when string) {
		t.Helper()
		for i, p := range programs {
			if p.problem != "" {
				t.Fatalf("program %d: %s", i, p.problem)
			}
			if err := p.again(); err != nil {
				t.Errorf("%s, program %d: %v", when, i, err)
			}
		}
	}
	use("at first")
	w.share("timeSlicing", 8)
	w.allocatable(8 * len(w.devices))
	use("with more replicas")
	w.share("timeSlicing", 2)
	w.eventually("the replicas are fewer", func() bool { return w.kubelet.Allocatable(resource) < 8*len(w.devices) })
	use("with fewer replicas")
	w.share("timeSlicing", 8)
	w.allocatable(8 * len(w.devices))
	for _, how := range []string{"stopped", "killed"} {
		if how == "killed" {
			w.must(agent.Process.Kill())
			_ = agent.Wait() // It was killed.
		} else {
			w.stop(agent)
		}
		w.allocatable(0) // Until then, the kubelet has the devices of the agent before.
		use("with the agent " + how)
		began := time.Now()
		agent = w.run()
		w.allocatable(8 * len(w.devices))
		attr(t, "secondsAfterAgentWas"+how, time.Since(began).Seconds())
		use("with another agent, after one was " + how)
	}
	for _, p := range programs {
		if err := p.end(); err != nil {
			t.Error(err)
		}
	}
}
