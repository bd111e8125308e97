package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/nodecontract"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

const hardware = nodecontract.HardwareCondition

func TestGPUFaultOutlivesAgentButNotReboot(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		m.boot = "boot-1"
		api = m.withNode()
	})
	m.eventually("20 replicas", m.allocatable(20))
	m.untilCondition(api, hardware, "True GPUsHealthy")
	m.library.Report("GPU-a", 95)
	m.eventually("10 replicas", m.allocatable(10))
	m.untilCondition(api, hardware, "False GPUNeedsReset", "GPU-a", "XID 95")
	m.eventually("the event", func() bool { return api.count("GPUNeedsReset", "XID 95") > 0 })

	m.stop()
	m.run()
	m.eventually("registered again", func() bool { return len(m.kubelet.Requests()) == 2 && m.allocatable(10)() })
	m.untilCondition(api, hardware, "False GPUNeedsReset", "GPU-a", "XID 95")
	for _, list := range m.kubelet.History(resource)[1:] {
		if list.Healthy() > 10 {
			t.Error("the broken GPU was offered by the next agent")
		}
	}

	m.stop()
	m.boot = "boot-2"
	m.run()
	m.eventually("20 replicas after a reboot", m.allocatable(20))
	m.untilCondition(api, hardware, "True GPUsHealthy")
	m.eventually("the event that it is back", func() bool { return api.count("GPURecovered", "rebooted") == 1 })
	if n := api.count("GPUNeedsReset", ""); n != 1 {
		t.Errorf("%d events", n)
	}
}

func TestAnnotatedResetReturnsGPUToService(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
		m.tune = func(a *Agent) { a.resets.every = 100 * time.Millisecond }
	})
	m.eventually("20 replicas", m.allocatable(20))
	m.library.Lose("GPU-a")
	m.eventually("10 replicas", m.allocatable(10))
	m.untilCondition(api, hardware, "False GPULost", "GPU-a")

	// It is not enough that the GPU answers again and that the agent has reopened the driver.
	m.library.Return("GPU-a")
	inits := m.library.Inits()
	_ = m.library.Shutdown()
	m.eventually("the driver is open again", func() bool { return m.library.Inits() > inits })
	m.untilCondition(api, hardware, "False GPULost", "GPU-a")
	if !m.allocatable(10)() {
		t.Error("it is back without a reset")
	}

	// The annotation alone is not enough either.
	m.library.Lose("GPU-a")
	api.annotate(nodecontract.GPUResetAnnotation, "GPU-a, GPU-of-another-machine")
	m.eventually("what is not ours goes from the annotation", func() bool { return api.annotation(nodecontract.GPUResetAnnotation) == "GPU-a" })
	if !m.allocatable(10)() {
		t.Error("it is back and does not answer")
	}
	m.library.Return("GPU-a")
	m.eventually("20 replicas", m.allocatable(20))
	m.untilCondition(api, hardware, "True GPUsHealthy")
	m.eventually("the annotation is gone", func() bool { return api.annotation(nodecontract.GPUResetAnnotation) == "" })
	m.eventually("the event", func() bool { return api.count("GPURecovered", "GPU-a") == 1 })
	m.library.Report("GPU-a", 48)
	m.eventually("a new fault counts", m.allocatable(10))
}

func TestAgentFollowsDriver(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		m.library.SetRecovery("GPU-b", gpu.RecoveryDrainP2P)
		api = m.withNode()
	})
	m.untilCondition(api, hardware, "False GPUNeedsDrain", "GPU-b")
	m.eventually("10 replicas", m.allocatable(10))
	for _, list := range m.kubelet.History(resource) {
		if list.Healthy() > 10 {
			t.Error("a GPU was offered that the driver wants drained")
		}
	}
	m.library.SetRecovery("GPU-b", gpu.RecoveryNone)
	m.eventually("20 replicas once it is drained", m.allocatable(20))
	m.untilCondition(api, hardware, "True GPUsHealthy")

	m.library.Report("GPU-a", 4242)
	m.eventually("the event", func() bool { return api.count("GPUFaultIgnored", "XID 4242") == 1 })
	m.library.SetRecovery("GPU-a", gpu.RecoveryReset)
	m.library.Report("GPU-a", 154)
	m.within(waitForEvents-time.Second, "10 replicas at once", m.allocatable(10))
	m.untilCondition(api, hardware, "False GPUNeedsReset", "GPU-a", "must be reset according to the driver")
	if m.library.SetRecovery("GPU-a", gpu.RecoveryNone); !m.allocatable(10)() {
		t.Error("it is back before the agent could know")
	}
	m.eventually("20 replicas after the reset", m.allocatable(20))
	m.eventually("the event that it is back", func() bool { return api.count("GPURecovered", "was reset") == 1 })
}

func TestFaultAfterResetVoidsReset(t *testing.T) {
	t.Parallel()
	r := newResets()
	devices := gputest.T4s(1)
	uuid := devices[0].UUID
	tracker := health.New(health.Policy{}, "b", health.State{Faults: map[string]health.Fault{uuid: {XIDs: []int{95}}}})
	silent := func(string) bool { return false }
	tracker.Reopened(devices, silent, noon)
	named := []string{uuid}
	if done, void, reopen := r.decide(named, tracker, noon); len(done)+len(void) != 0 || !reopen {
		t.Errorf("%v %v %v", done, void, reopen)
	}
	tracker.Reopened(devices, silent, noon)
	if _, _, reopen := r.decide(named, tracker, noon.Add(lookForReset/2)); reopen {
		t.Error("the driver is opened all the time")
	}
	tracker.Observe(gpu.Event{UUID: uuid, XID: 62}, noon)
	for i := range 2 { // decide reports it once; it stays in the annotation until the annotation is written.
		done, void, reopen := r.decide(named, tracker, noon.Add(lookForReset))
		if len(done) != 1 || len(void) != 1-i || reopen || tracker.Healthy(uuid) {
			t.Errorf("%v %v %v", done, void, reopen)
		}
	}
	// If the annotation names it again after the next reset, it counts.
	r.decide(nil, tracker, noon)
	if _, _, reopen := r.decide(named, tracker, noon); !reopen || !tracker.Marked(uuid) {
		t.Error("the next reset does not count")
	}
}

func TestUnreadableHealthRecordKeepsGPUsOutOfService(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
		m.boot = "b"
		if err := os.MkdirAll(filepath.Join(m.dir, "state"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(m.dir, "state", "health-b.json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	m.untilCondition(api, hardware, "False GPUFault", "2 of 2 GPUs", "the record of this boot cannot be read")
	m.eventually("it is told", func() bool { return m.log.has("health-b.json") })
	api.annotate(nodecontract.GPUResetAnnotation, "GPU-a,GPU-b")
	m.eventually("20 replicas", m.allocatable(20))
}

func TestUnwritableStateDirIsLoggedAndGPUsAreServed(t *testing.T) {
	t.Parallel()
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
	}, "--state-dir", "/dev/null/x")
	m.eventually("20 replicas", m.allocatable(20))
	m.eventually("a sentence", func() bool { return m.log.has("The health of the GPUs is not saved") })
}
