package node

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/nodecontract"
)

// loseDriver makes the driver fail as if its module were unloaded. returnDriver makes it work again.
func (m *machine) loseDriver() {
	m.library.Break(gputest.DriverMissing)
	m.library.Fail("Devices", errors.New("the driver is gone"))
	m.library.Fail("Usage", errors.New("the driver is gone"))
	m.library.Fail("Wait", errors.New("the driver is gone"))
}

func (m *machine) returnDriver() {
	for _, method := range []string{"Devices", "Usage", "Wait"} {
		m.library.Fail(method, nil)
	}
	m.library.Break(gputest.Works)
}

// patience sets how long the agent tolerates an outage.
func patience(grace, patience time.Duration) func(*Agent) {
	return func(a *Agent) { a.outage.grace, a.outage.patience = grace, patience }
}

func (m *machine) get(path string) (int, string) {
	w := httptest.NewRecorder()
	m.agent.report.handler().ServeHTTP(w, httptest.NewRequestWithContext(m.t.Context(), http.MethodGet, path, http.NoBody))
	return w.Code, w.Body.String()
}

func TestLostDriverTakesGPUsOutOfServiceUntilItReturns(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
		m.tune = patience(50*time.Millisecond, time.Hour)
	})
	m.eventually("20 replicas", m.allocatable(20))
	m.library.Report("GPU-a", 95)
	m.untilCondition(api, hardware, "False GPUNeedsReset")
	m.loseDriver()
	m.eventually("no replicas", m.allocatable(0))
	m.untilCondition(api, hardware, "False DriverLost", "the driver is gone", "dmesg", "reboot the machine")
	m.untilCondition(api, nodecontract.SharingCondition, "False NoGPUs", "not loaded")
	m.eventually("the event", func() bool { return api.count("DriverLost", "") == 1 })

	// An agent that starts during the outage knows that there were GPUs.
	m.stop()
	m.run()
	m.eventually("the event of the next agent", func() bool { return api.count("DriverLost", "") == 2 })
	m.untilCondition(api, hardware, "False DriverLost")
	m.returnDriver()
	m.eventually("10 replicas: the other GPU has a fault of its own", m.allocatable(10))
	m.untilCondition(api, hardware, "False GPUNeedsReset", "1 of 2 GPUs")
	m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
	m.eventually("the event that it is back", func() bool { return api.count("DriverBack", "") == 1 })
}

// Not parallel: it counts goroutines.
func TestDriverReloadIsNoticed(t *testing.T) {
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
		m.tune = patience(time.Hour, 2*time.Hour)
	})
	m.eventually("20 replicas", m.allocatable(20))
	m.untilCondition(api, hardware, "True GPUsHealthy")
	before := 0
	for i := range 40 {
		inits := m.library.Inits()
		if i%2 == 0 {
			m.loseDriver()
			m.eventually("it is noticed", func() bool { _, err := m.library.Devices(); return errors.Is(err, gpu.ErrClosed) })
			m.returnDriver()
		} else {
			_ = m.library.Shutdown() // The driver was closed while the agent used it.
		}
		m.eventually("it is open again", func() bool { return m.library.Inits() > inits })
		if i == 4 {
			before = runtime.NumGoroutine()
		}
	}
	// A goroutine for each outage would be 35. Others come and go.
	m.eventually("no goroutine is left of 35 outages", func() bool { return runtime.NumGoroutine() < before+10 })
	for _, list := range m.kubelet.History(resource) {
		if list.Healthy() != 20 {
			t.Errorf("%d replicas were healthy", list.Healthy())
		}
	}
	if n := api.count("DriverLost", "") + api.count("DriverBack", ""); n != 0 {
		t.Errorf("%d events", n)
	}
	if _, err := m.kubelet.Admit(t.Context(), "pod", resource, 1); err != nil {
		t.Error(err)
	}
}

// Not parallel: it counts goroutines.
func TestKubeletRestartsLeakNoGoroutines(t *testing.T) {
	m := start(t, func(m *machine) { m.configure(replicas(10)) })
	m.eventually("20 replicas", m.allocatable(20))
	before := 0
	for i := range 40 {
		m.kubelet.Stop()
		if err := m.kubelet.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.eventually("20 replicas", m.allocatable(20))
		if _, err := m.kubelet.Admit(t.Context(), fmt.Sprint(i), resource, 1); err != nil {
			t.Error(err)
		}
		m.kubelet.Delete(fmt.Sprint(i))
		if i == 4 {
			before = runtime.NumGoroutine()
		}
	}
	m.eventually("no goroutine is left of 35 restarts", func() bool { return runtime.NumGoroutine() < before+10 })
}

func TestAgentEndsWhenDriverStaysAway(t *testing.T) {
	t.Parallel()
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		m.tune = patience(50*time.Millisecond, 500*time.Millisecond)
	})
	m.eventually("20 replicas", m.allocatable(20))
	m.loseDriver()
	select {
	case err := <-m.ended:
		if err == nil || !strings.Contains(err.Error(), "a new container may be given its GPUs: the NVIDIA driver does not answer") {
			t.Errorf("got %v", err)
		}
		m.ended <- nil
	case <-time.After(10 * time.Second):
		t.Error("it goes on")
	}
}

func TestGPUsThatDriverNoLongerListsAreLost(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
		m.tune = patience(200*time.Millisecond, 600*time.Millisecond)
	})
	m.eventually("20 replicas", m.allocatable(20))
	m.library.SetDevices()
	_ = m.library.Shutdown()
	m.untilCondition(api, hardware, "False GPULost", "2 of 2 GPUs")
	m.eventually("no replicas", m.allocatable(0))
	select {
	case err := <-m.ended: // A new container would not have the devices either.
		t.Errorf("it ended: %v", err)
		m.ended <- nil
	case <-time.After(time.Second):
	}
}

func TestHungDriverIsNoticed(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.configure(replicas(10))
		api = m.withNode()
		m.tune = func(a *Agent) { a.calls.Bound = 300 * time.Millisecond }
	})
	m.eventually("20 replicas", m.allocatable(20))
	m.untilCondition(api, hardware, "True GPUsHealthy")
	m.library.Hang(true)
	m.eventually("/healthz is bad", func() bool { code, _ := m.get("/healthz"); return code == http.StatusServiceUnavailable })
	m.eventually("no replicas", m.allocatable(0))
	m.untilCondition(api, hardware, "False DriverHung", "does not return from a call")
	began := time.Now()
	if _, body := m.get("/metrics"); !strings.Contains(body, "karve_gpu_library_up 0") || !strings.Contains(body, `karve_node_devices{resource="nvidia.com/gpu",health="unhealthy"} 20`) {
		t.Errorf("metrics:\n%s", body)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("a scrape took %s", took)
	}
	m.library.Hang(false)
	m.eventually("20 replicas", m.allocatable(20))
	m.untilCondition(api, hardware, "True GPUsHealthy")
	if code, body := m.get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
}

func TestPausedLabelClosesDriver(t *testing.T) {
	t.Parallel()
	for _, label := range pausedLabels {
		t.Run(strings.ReplaceAll(label, "/", "_"), func(t *testing.T) {
			t.Parallel()
			var api *apiServer
			m := start(t, func(m *machine) {
				m.configure(replicas(10))
				api = m.withNode()
				api.labels[label] = "true"
			})
			m.eventually("20 replicas", m.allocatable(20))
			closed := func() bool { _, err := m.library.Devices(); return errors.Is(err, gpu.ErrClosed) }
			if closed() {
				t.Fatal("it is closed")
			}
			began := time.Now()
			api.change(func() { api.labels[label] = "paused-for-driver-upgrade" })
			m.eventually("the driver is closed", closed)
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("that took %s", took)
			}
			m.eventually("no replicas", m.allocatable(0))
			m.untilCondition(api, hardware, "Unknown DriverPaused", label+"=paused-for-driver-upgrade")
			m.untilCondition(api, nodecontract.SharingCondition, "False DriverPaused")
			inits := m.library.Inits()
			m.get("/metrics")
			time.Sleep(200 * time.Millisecond)
			if !closed() || m.library.Inits() != inits {
				t.Error("it was opened")
			}
			api.change(func() { api.labels[label] = "true" })
			m.eventually("20 replicas", m.allocatable(20))
			m.untilCondition(api, hardware, "True GPUsHealthy")
			m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
			if n := api.count("DriverPaused", ""); n != 1 {
				t.Errorf("%d events", n)
			}
		})
	}
}

func TestGPUThatFailsAtBootSetsConditionFalse(t *testing.T) {
	t.Parallel()
	unusable := gpu.Unusable{Where: "at PCI 0000:00:1b.0", Why: "the driver does not list it"}
	t.Run("one of three", func(t *testing.T) {
		t.Parallel()
		var api *apiServer
		m := start(t, func(m *machine) {
			m.configure(replicas(10))
			api = m.withNode()
			m.library.SetUnusable(unusable)
		})
		m.eventually("the replicas of the other two", m.allocatable(20))
		m.untilCondition(api, hardware, "False GPUUnusable", "1 of 3 GPUs", "0000:00:1b.0")
		m.eventually("the event", func() bool { return api.count("GPUUnusable", "0000:00:1b.0") == 1 })
	})
	t.Run("the only one", func(t *testing.T) {
		t.Parallel()
		var api *apiServer
		m := start(t, func(m *machine) {
			m.configure(replicas(10))
			api = m.withNode()
			m.library.SetDevices()
			m.library.SetUnusable(unusable)
		})
		m.untilCondition(api, hardware, "False GPUUnusable", "1 of 1 GPU ", "0000:00:1b.0")
	})
}
