package health_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/nodecontract"
)

// opened returns a tracker whose driver was opened on these GPUs.
func opened(boot string, devices []gpu.Device, saved health.State) *health.Tracker {
	t := health.New(health.Policy{}, boot, saved)
	t.Reopened(devices, all, noon)
	return t
}

func all(string) bool { return true }

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func TestXIDsThatTakeGPUOutOfService(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		disable, enable string
		out, in         []int
	}{
		{"", "", []int{48, 62, 63, 64, 74, 79, 94, 95, 119, 4242}, []int{13, 31, 43, 45, 68, 109, 32, 69, 92, 154, 162, 163, 164, 165}},
		{"all", "", nil, []int{13, 48, 79, 4242}},
		{"xids", "", nil, []int{13, 48, 79}},
		{" ALL ", "", nil, []int{79}},
		{"48, 79", "", []int{62, 74}, []int{48, 79, 31}},
		{"", "13,31", []int{13, 31, 48}, []int{43}},
		{"", "all", []int{13, 31, 43, 32, 92, 48, 4242}, nil},
		{"all", "79", []int{79}, []int{48, 31}},
		{"79", "79", []int{79}, nil},
		{"48,all", "", nil, []int{79}},
		{"0", "", nil, []int{79}},
		{"nonsense,48,-3", "", []int{79}, []int{48}},
	} {
		p, _ := health.ParsePolicy(test.disable, test.enable)
		for _, xid := range test.out {
			if !p.Counts(xid) {
				t.Errorf("disable %q enable %q: XID %d is ignored", test.disable, test.enable, xid)
			}
		}
		for _, xid := range test.in {
			if p.Counts(xid) {
				t.Errorf("disable %q enable %q: XID %d takes the GPU out", test.disable, test.enable, xid)
			}
		}
	}
}

func TestParsePolicyReportsInvalidEntries(t *testing.T) {
	t.Parallel()
	_, problems := health.ParsePolicy("48,seven", "-1")
	if len(problems) != 2 || !strings.Contains(problems[0], "seven") || !strings.Contains(problems[1], health.EnableEnv) {
		t.Errorf("problems %q", problems)
	}
	off, _ := health.ParsePolicy("all", "")
	one, _ := health.ParsePolicy("all", "79")
	if !off.Off() || one.Off() || (health.Policy{}).Off() || off.CountsLost() || !one.CountsLost() || !(health.Policy{}).CountsLost() {
		t.Error("Off or CountsLost is wrong")
	}
}

func FuzzParsePolicy(f *testing.F) {
	f.Add("all", "79")
	f.Add("48, 79,,", "xids")
	f.Add("99999999999999999999", "0x4f")
	f.Fuzz(func(t *testing.T, disable, enable string) {
		p, _ := health.ParsePolicy(disable, enable)
		for _, xid := range []int{13, 48, 79, 5000} {
			if p.Off() && p.Counts(xid) {
				t.Errorf("all is off and XID %d counts", xid)
			}
		}
	})
}

func TestFaultTakesGPUOutOfServiceAndSaysWhatToDo(t *testing.T) {
	t.Parallel()
	devices := gputest.T4s(4)
	tr := opened("boot-1", devices, health.State{})
	bad := devices[2].UUID

	changes, events := tr.Observe(gpu.Event{UUID: bad, XID: 48}, noon)
	if diff := cmp.Diff([]health.Change{{UUID: bad, Fault: health.Fault{Since: noon, XIDs: []int{48}}}}, changes); diff != "" {
		t.Error(diff)
	}
	want := []health.Event{{
		Warning: true, Reason: "GPUNeedsReset",
		Message: "GPU 2 (Tesla T4, " + bad + ") reported XID 48 (uncorrectable double bit memory error); all its replicas are out of service: " +
			"drain the node and replace it, or take the pods off the GPU and reset it with `nvidia-smi --gpu-reset` and annotate the Node with karve.sh/gpu-reset=<its UUID>",
	}}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Error(diff)
	}
	if tr.Healthy(bad) || !tr.Healthy(devices[0].UUID) {
		t.Error("the wrong GPU is out of service")
	}

	// A repeated fault changes nothing and is not reported again.
	changes, events = tr.Observe(gpu.Event{UUID: bad, XID: 48}, noon.Add(time.Minute))
	if len(changes) != 0 || len(events) != 0 {
		t.Errorf("again: %+v %+v", changes, events)
	}
	condition := health.Condition{
		Type: "AcceleratedHardwareReady", Status: "False", Reason: "GPUNeedsReset",
		Message: "1 of 4 GPUs out of service. GPU 2 (Tesla T4, " + bad + ") reported XID 48 (uncorrectable double bit memory error) at 2026-03-04T12:00:00Z: " +
			"drain the node and replace it, or take the pods off the GPU and reset it with `nvidia-smi --gpu-reset` and annotate the Node with karve.sh/gpu-reset=<its UUID>.",
	}
	if diff := cmp.Diff(condition, tr.Condition()); diff != "" {
		t.Error(diff)
	}

	// A worse fault changes the advice.
	changes, events = tr.Observe(gpu.Event{UUID: bad, XID: 79, Lost: true}, noon.Add(time.Minute))
	if len(changes) != 0 || len(events) != 1 || tr.Condition().Reason != "GPULost" {
		t.Errorf("lost: %+v %+v %+v", changes, events, tr.Condition())
	}
}

func TestApplicationErrorsAreReportedOnceAndChangeNothing(t *testing.T) {
	t.Parallel()
	devices := gputest.T4s(1)
	tr := opened("b", devices, health.State{})
	for i := range 3 {
		changes, events := tr.Observe(gpu.Event{UUID: devices[0].UUID, XID: 31}, noon)
		if len(changes) != 0 || (len(events) == 1) != (i == 0) {
			t.Errorf("%+v %+v", changes, events)
		}
	}
	want := health.Condition{Type: "AcceleratedHardwareReady", Status: "True", Reason: "GPUsHealthy", Message: "1 GPU in service"}
	if diff := cmp.Diff(want, tr.Condition()); diff != "" {
		t.Error(diff)
	}
}

func TestEventWithoutGPUAffectsAllGPUs(t *testing.T) {
	t.Parallel()
	devices := gputest.T4s(8)
	tr := opened("b", devices, health.State{})
	changes, _ := tr.Observe(gpu.Event{XID: 62}, noon)
	if len(changes) != 8 {
		t.Errorf("changes %+v", changes)
	}
	if m := tr.Condition().Message; !strings.HasPrefix(m, "8 of 8 GPUs") || !strings.HasSuffix(m, "And 4 more.") {
		t.Error(m)
	}
	if changes, events := tr.Observe(gpu.Event{UUID: "GPU-elsewhere", XID: 79}, noon); len(changes)+len(events) != 0 {
		t.Errorf("a GPU that is not here: %+v %+v", changes, events)
	}
}

func TestOnlyResetReturnsGPUToService(t *testing.T) {
	t.Parallel()
	devices := gputest.T4s(2)
	bad := devices[1].UUID
	broken := func() *health.Tracker {
		tr := opened("boot-1", devices, health.State{})
		tr.Observe(gpu.Event{UUID: bad, Lost: true}, noon)
		return tr
	}

	tr := broken()
	if changes, _ := tr.Reopened(devices, all, noon); len(changes) != 0 || tr.Healthy(bad) {
		t.Error("opening NVML again brought it back")
	}
	tr.MarkReset(bad)
	if tr.Healthy(bad) {
		t.Error("MarkReset alone brought it back")
	}
	if changes, _ := tr.Reopened(devices[:1], all, noon); len(changes) != 0 || tr.Healthy(bad) {
		t.Error("it is back although NVML does not list it")
	}
	if c := tr.Condition(); c.Status != "False" || !strings.Contains(c.Message, "1 of 2 GPUs") {
		t.Errorf("condition %+v", c)
	}
	changes, events := tr.Reopened(devices, all, noon)
	if len(changes) != 1 || !changes[0].Healthy || changes[0].UUID != bad || !tr.Healthy(bad) || len(events) != 1 || events[0].Warning {
		t.Errorf("after the reset: %+v %+v", changes, events)
	}
	if changes, events := tr.Observe(gpu.Event{UUID: bad, Lost: true}, noon); len(changes) != 1 || len(events) != 1 {
		t.Errorf("lost again: %+v %+v", changes, events)
	}

	tr = broken()
	tr.MarkReset(bad)
	tr.Observe(gpu.Event{UUID: bad, XID: 48}, noon)
	if changes, _ := tr.Reopened(devices, all, noon); len(changes) != 0 || tr.Healthy(bad) {
		t.Error("a fault after the reset was forgotten")
	}
}

func TestFaultsOutliveAgentButNotBoot(t *testing.T) {
	t.Parallel()
	devices := gputest.T4s(2)
	tr := opened("boot-1", devices, health.State{})
	tr.Observe(gpu.Event{UUID: devices[0].UUID, XID: 95}, noon)
	data, err := json.Marshal(tr.State())
	if err != nil {
		t.Fatal(err)
	}
	var saved health.State
	if err := json.Unmarshal(data, &saved); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tr.State(), saved); diff != "" {
		t.Error(diff)
	}
	for boot, healthy := range map[string]bool{"boot-1": false, "boot-2": true, "": false} {
		if again := opened(boot, devices, saved); again.Healthy(devices[0].UUID) != healthy {
			t.Errorf("after a start in %q healthy is %v", boot, !healthy)
		}
	}
}

func TestConditionIsUnknownWithoutGPUs(t *testing.T) {
	t.Parallel()
	if c := opened("b", nil, health.State{}).Condition(); c.Status != "Unknown" || c.Reason != "NoGPUs" {
		t.Errorf("%+v", c)
	}
}

// TestTrackerInvariants checks that a GPU that is out of service returns only by MarkReset followed by Reopened without a fault in between or by an answer
// of the driver, that changes agree with Healthy, and that the condition is False exactly when a GPU is out of service.
func TestTrackerInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		devices := gputest.T4s(rapid.IntRange(1, 4).Draw(t, "gpus"))
		tr := opened("b", devices, health.State{})
		out, reset := map[string]bool{}, map[string]bool{}
		asked := map[string]gpu.Recovery{}
		for _, d := range devices {
			asked[d.UUID] = gpu.RecoveryUnknown
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			uuid := rapid.SampledFrom(devices).Draw(t, "gpu").UUID
			var changes []health.Change
			switch rapid.SampledFrom([]string{"xid", "lost", "mark", "reopen", "ask"}).Draw(t, "step") {
			case "xid":
				xid := rapid.SampledFrom([]int{13, 31, 48, 63, 74, 79, 94, 999}).Draw(t, "xid")
				changes, _ = tr.Observe(gpu.Event{UUID: uuid, XID: xid}, noon)
				if (health.Policy{}).Counts(xid) && (xid != 999 || asked[uuid] != gpu.RecoveryNone) {
					out[uuid], reset[uuid] = true, false
				}
			case "ask":
				r := gpu.Recovery(rapid.IntRange(-1, 8).Draw(t, "recovery"))
				changes, _ = tr.Ask(uuid, r, noon)
				if (health.Policy{}).CountsRecovery(r) {
					out[uuid], reset[uuid] = true, false
				} else if tr.Healthy(uuid) {
					if r != gpu.RecoveryNone && out[uuid] {
						t.Fatalf("the answer %v brought it back", r)
					}
					out[uuid], reset[uuid] = false, false
				}
				asked[uuid] = r
			case "lost":
				changes, _ = tr.Observe(gpu.Event{UUID: uuid, Lost: true}, noon)
				out[uuid], reset[uuid] = true, false
			case "mark":
				tr.MarkReset(uuid)
				reset[uuid] = out[uuid]
			case "reopen":
				changes, _ = tr.Reopened(devices, all, noon)
				for uuid := range reset {
					if reset[uuid] {
						out[uuid], reset[uuid] = false, false
					}
				}
			}
			for _, c := range changes {
				if c.Healthy != tr.Healthy(c.UUID) {
					t.Fatalf("%+v, and Healthy is %v", c, tr.Healthy(c.UUID))
				}
			}
			for _, d := range devices {
				if tr.Healthy(d.UUID) == out[d.UUID] {
					t.Fatalf("GPU %d: healthy is %v", d.Index, tr.Healthy(d.UUID))
				}
			}
			anyOut := slices.ContainsFunc(devices, func(d gpu.Device) bool { return out[d.UUID] })
			if c := tr.Condition(); (c.Status == "False") != anyOut || c.Message == "" || len(c.Message) > 4000 {
				t.Fatalf("condition %+v", c)
			}
		}
	})
}

func TestUnusableGPUSetsConditionFalse(t *testing.T) {
	t.Parallel()
	unusable := []gpu.Unusable{{Where: "at PCI 0000:00:1b.0", Why: "the driver does not list it"}}
	devices := gputest.T4s(3)
	tracker := opened("b", devices, health.State{})
	events := tracker.SetUnusable(unusable)
	if len(events) != 1 || !events[0].Warning || events[0].Reason != nodecontract.ReasonUnusable || !strings.Contains(events[0].Message, "0000:00:1b.0") {
		t.Errorf("events %+v", events)
	}
	if again := tracker.SetUnusable(unusable); len(again) != 0 {
		t.Errorf("told again: %+v", again)
	}
	c := tracker.Condition()
	if c.Status != "False" || c.Reason != nodecontract.ReasonUnusable || !strings.HasPrefix(c.Message, "1 of 4 GPUs out of service. The GPU at PCI 0000:00:1b.0 cannot be used") {
		t.Errorf("%+v", c)
	}
	tracker.Observe(gpu.Event{UUID: devices[0].UUID, XID: 95}, noon)
	if c := tracker.Condition(); c.Reason != nodecontract.ReasonReset || !strings.HasPrefix(c.Message, "2 of 4 GPUs") || !strings.Contains(c.Message, "1b.0") {
		t.Errorf("with a fault: %+v", c)
	}
	tracker.SetUnusable(nil)
	if c := tracker.Condition(); strings.Contains(c.Message, "1b.0") {
		t.Errorf("when it is offered: %+v", c)
	}

	// This is the only GPU of the machine.
	tracker = opened("b", nil, health.State{})
	tracker.SetUnusable(unusable)
	if c := tracker.Condition(); c.Status != "False" || !strings.HasPrefix(c.Message, "1 of 1 GPU ") {
		t.Errorf("%+v", c)
	}
	// A GPU that was offered earlier in this boot counts as one lost GPU, not two.
	tracker = opened("b", devices[:2], health.State{Boot: "b", GPUs: []string{devices[0].UUID, devices[1].UUID, devices[2].UUID}})
	tracker.SetUnusable(unusable)
	if c := tracker.Condition(); c.Reason != nodecontract.ReasonLost || !strings.HasPrefix(c.Message, "1 of 3 GPUs") {
		t.Errorf("%+v", c)
	}
	// The policy disables all health checks.
	off, _ := health.ParsePolicy("all", "")
	tracker = health.New(off, "b", health.State{})
	tracker.Reopened(devices, all, noon)
	if events := tracker.SetUnusable(unusable); len(events) != 0 || tracker.Condition().Status != "True" {
		t.Errorf("%+v %+v", events, tracker.Condition())
	}
}
