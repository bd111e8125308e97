package health_test

import (
	"strings"
	"testing"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/health"
)

func TestFaultOfInstanceConcernsItAlone(t *testing.T) {
	t.Parallel()
	devices := gputest.Divided(2, 7, "1g.5gb", 4864)
	tr := opened("boot", devices, health.State{})
	bad, gpu1 := devices[1].Instances[3].UUID, devices[1].UUID

	changes, events := tr.Observe(gpu.Event{UUID: gpu1, Instance: bad, XID: 94}, noon)
	if len(changes) != 1 || changes[0].UUID != bad || changes[0].Fault.GPU != gpu1 || len(events) != 1 || !events[0].Warning {
		t.Errorf("%+v %+v", changes, events)
	}
	if want := "MIG instance 1:3 (1g.5gb, " + bad + ", of " + gpu1 + ") reported XID 94"; !strings.HasPrefix(events[0].Message, want) {
		t.Errorf("the event is %q, want %q", events[0].Message, want)
	}
	if tr.Healthy(bad) || !tr.Healthy(gpu1) || !tr.Healthy(devices[1].Instances[2].UUID) || tr.Sound(gpu1) || !tr.Sound(devices[0].UUID) {
		t.Error("the wrong instance is out of service")
	}
	if out := tr.OutOfService(); len(out) != 1 || out[0] != bad {
		t.Errorf("out of service are %v", out)
	}
	if c := tr.Condition(); c.Status != "False" || !strings.HasPrefix(c.Message, "1 of 2 GPUs out of service, in part. MIG instance 1:3 (1g.5gb, ") {
		t.Errorf("%+v", c)
	}
	// Another instance of the same GPU fails: still one GPU.
	tr.Observe(gpu.Event{UUID: gpu1, Instance: devices[1].Instances[0].UUID, XID: 94}, noon)
	if c := tr.Condition(); !strings.HasPrefix(c.Message, "1 of 2 GPUs out of service, in part. MIG instance 1:0 ") {
		t.Errorf("%+v", c)
	}
}

func TestFaultWithoutInstanceConcernsGPU(t *testing.T) {
	t.Parallel()
	devices := gputest.Divided(2, 7, "1g.5gb", 4864)
	for name, e := range map[string]gpu.Event{
		"without":             {UUID: devices[1].UUID, XID: 79},
		"with an unknown one": {UUID: devices[1].UUID, Instance: "MIG-elsewhere", XID: 79},
		"of another GPU":      {UUID: devices[1].UUID, Instance: devices[0].Instances[0].UUID, XID: 79},
	} {
		tr := opened("boot", devices, health.State{})
		if changes, _ := tr.Observe(e, noon); len(changes) != 1 || changes[0].UUID != devices[1].UUID || changes[0].Fault.GPU != "" {
			t.Errorf("%s: %+v", name, changes)
		}
		if c := tr.Condition(); !strings.HasPrefix(c.Message, "1 of 2 GPUs out of service. GPU 1 ") {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestApplicationErrorOfInstanceChangesNothing(t *testing.T) {
	t.Parallel()
	devices := gputest.Divided(1, 2, "3g.20gb", 19968)
	tr := opened("boot", devices, health.State{})
	changes, events := tr.Observe(gpu.Event{UUID: devices[0].UUID, Instance: devices[0].Instances[0].UUID, XID: 31}, noon)
	if len(changes) != 0 || len(events) != 1 || tr.Condition().Status != "True" {
		t.Errorf("%+v %+v %+v", changes, events, tr.Condition())
	}
}

// TestResetOfGPUReturnsItsInstances checks that instances come back with their GPU, also in an agent that was restarted, and whose GPU has other instances now.
func TestResetOfGPUReturnsItsInstances(t *testing.T) {
	t.Parallel()
	devices := gputest.Divided(2, 2, "3g.20gb", 19968)
	bad, of := devices[0].Instances[1].UUID, devices[0].UUID
	before := opened("boot", devices, health.State{})
	before.Observe(gpu.Event{UUID: of, Instance: bad, XID: 95}, noon)

	tr := opened("boot", devices, before.State())
	if tr.Healthy(bad) || tr.Marked(of) {
		t.Fatal("a restarted agent forgot the fault")
	}
	if tr.MarkReset(devices[1].UUID) {
		t.Error("the sound GPU was marked")
	}
	if !tr.MarkReset(of) || !tr.Marked(of) {
		t.Error("the GPU was not marked")
	}
	again := gputest.Divided(2, 2, "3g.20gb", 19968)
	again[0].Instances[1].UUID = "MIG-another"
	changes, events := tr.Reopened(again, all, noon)
	if len(changes) != 1 || !changes[0].Healthy || changes[0].UUID != bad || len(events) != 1 || events[0].Warning || !tr.Sound(of) {
		t.Errorf("%+v %+v", changes, events)
	}

	// A fault after the mark makes it void, whichever part of the GPU it is in.
	tr = opened("boot", devices, before.State())
	tr.MarkReset(of)
	tr.Observe(gpu.Event{UUID: of, XID: 48}, noon)
	if tr.Marked(of) {
		t.Error("a GPU with a new fault is still marked")
	}
	if changes, _ := tr.Reopened(devices, func(string) bool { return false }, noon); len(changes) != 0 || tr.Sound(of) {
		t.Errorf("a GPU that does not answer is back: %+v", changes)
	}
}
