package health_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/health"
)

// unlisted is an XID that NVIDIA's catalog does not have.
const unlisted = 4242

func TestDriverAsksForRecovery(t *testing.T) {
	t.Parallel()
	for r, want := range map[gpu.Recovery]struct{ reason, says, advice string }{
		gpu.RecoveryReset:         {"GPUNeedsReset", "must be reset according to the driver", "nvidia-smi --gpu-reset"},
		gpu.RecoveryRebootNode:    {"GPUNeedsReplacement", "needs a reboot of the machine according", "replace the machine, or reboot it"},
		gpu.RecoveryDrainP2P:      {"GPUNeedsDrain", "must be drained of work that spans GPUs according", "end the pods whose work spans GPUs"},
		gpu.RecoveryDrainAndReset: {"GPUNeedsReset", "must be drained and reset according", "nvidia-smi --gpu-reset"},
		gpu.RecoveryResetBus:      {"GPUNeedsReplacement", "needs a reset of its PCIe bus according", "replace the machine, or reboot it"},
		gpu.RecoveryRebootSystem:  {"GPUNeedsReplacement", "needs a reboot of the system according", "replace the machine, or reboot it"},
		99:                        {"GPUFault", "needs recovery action 99 according to the driver, which this agent does not know", "drain the node and replace it"},
	} {
		devices := gputest.T4s(2)
		bad := devices[1].UUID
		tr := opened("b", devices, health.State{})
		changes, events := tr.Ask(bad, r, noon)
		if diff := cmp.Diff([]health.Change{{UUID: bad, Fault: health.Fault{Since: noon, Asked: r}}}, changes); diff != "" {
			t.Errorf("%v: %s", r, diff)
		}
		if len(events) != 1 || !events[0].Warning || events[0].Reason != want.reason || !strings.Contains(events[0].Message, want.says) || !strings.Contains(events[0].Message, want.advice) {
			t.Errorf("%v: events %+v", r, events)
		}
		if changes, events := tr.Ask(bad, r, noon); len(changes)+len(events) != 0 {
			t.Errorf("%v, asked again: %+v %+v", r, changes, events)
		}
		c := tr.Condition()
		if c.Status != "False" || c.Reason != want.reason || !strings.HasPrefix(c.Message, "1 of 2 GPUs out of service. GPU 1 ") || !strings.Contains(c.Message, want.says) {
			t.Errorf("%v: %+v", r, c)
		}
		data, err := json.Marshal(tr.State())
		var saved health.State
		if err == nil {
			err = json.Unmarshal(data, &saved)
		}
		if err != nil {
			t.Fatal(err)
		}
		again := opened("b", devices, saved)
		if again.Condition() != c {
			t.Errorf("%v, after a restart: %+v", r, again.Condition())
		}
		if changes, events := again.Ask(bad, r, noon); len(changes)+len(events) != 0 {
			t.Errorf("%v, asked again after a restart: %+v %+v", r, changes, events)
		}
	}
}

func TestDriverThatAsksForNothingChangesNothing(t *testing.T) {
	t.Parallel()
	devices := gputest.T4s(1)
	tr := opened("b", devices, health.State{})
	for _, r := range []gpu.Recovery{gpu.RecoveryUnknown, gpu.RecoveryNone} {
		if changes, events := tr.Ask(devices[0].UUID, r, noon); len(changes)+len(events) != 0 || tr.Condition().Status != "True" {
			t.Errorf("%v: %+v %+v", r, changes, events)
		}
	}
	if changes, events := tr.Ask("GPU-elsewhere", gpu.RecoveryReset, noon); len(changes)+len(events) != 0 {
		t.Errorf("a GPU that is not here: %+v %+v", changes, events)
	}
	for i := range 2 { // Memory that machines share concerns no shared GPU.
		changes, events := tr.Ask(devices[0].UUID, gpu.RecoveryIMEXDomain, noon)
		if len(changes) != 0 || len(events) != 1-i || tr.Condition().Status != "True" {
			t.Errorf("IMEX: %+v %+v", changes, events)
		}
	}
}

// TestAnswerOfDriverAfterFault has what the driver asks for after an XID, and whether the GPU is in service after each answer.
func TestAnswerOfDriverAfterFault(t *testing.T) {
	t.Parallel()
	const unknown, none, reset, reboot, p2p, drain = gpu.RecoveryUnknown, gpu.RecoveryNone, gpu.RecoveryReset, gpu.RecoveryRebootNode, gpu.RecoveryDrainP2P, gpu.RecoveryDrainAndReset
	for name, c := range map[string]struct {
		before  gpu.Recovery // the XID
		xid     int
		asked   []gpu.Recovery
		healthy []bool
		reasons []string
	}{
		"unknown to the catalog, and the driver asks for nothing":      {none, unlisted, []gpu.Recovery{none}, []bool{true}, []string{"GPUsHealthy"}},
		"unknown to the catalog, and the driver does not say":          {unknown, unlisted, []gpu.Recovery{unknown}, []bool{false}, []string{"GPUFault"}},
		"unknown to the catalog, and the driver answers late":          {unknown, unlisted, []gpu.Recovery{unknown, none}, []bool{false, true}, []string{"GPUFault", "GPUsHealthy"}},
		"unknown to the catalog, and the driver asks for a reset late": {none, unlisted, []gpu.Recovery{none, reset, none}, []bool{true, false, true}, []string{"GPUsHealthy", "GPUNeedsReset", "GPUsHealthy"}},
		"in the catalog, and the driver asks for nothing":              {none, 48, []gpu.Recovery{none}, []bool{false}, []string{"GPUNeedsReset"}},
		"in the catalog, and the driver asks for more":                 {none, 48, []gpu.Recovery{reboot, none}, []bool{false, false}, []string{"GPUNeedsReplacement", "GPUNeedsReplacement"}},
		"in the catalog, and the driver asks for less":                 {none, 74, []gpu.Recovery{p2p, none}, []bool{false, false}, []string{"GPUNeedsReplacement", "GPUNeedsReplacement"}},
		"in the catalog, and the GPU was reset":                        {none, 95, []gpu.Recovery{drain, reset, none}, []bool{false, false, true}, []string{"GPUNeedsReset", "GPUNeedsReset", "GPUsHealthy"}},
		"of an application, and the driver asks to drain":              {none, 31, []gpu.Recovery{p2p, none}, []bool{false, true}, []string{"GPUNeedsDrain", "GPUsHealthy"}},
		"a loss": {none, 79, []gpu.Recovery{reset, none}, []bool{false, false}, []string{"GPULost", "GPULost"}},
	} {
		devices := gputest.T4s(1)
		uuid := devices[0].UUID
		tr := opened("b", devices, health.State{})
		tr.Ask(uuid, c.before, noon)
		tr.Observe(gpu.Event{UUID: uuid, XID: c.xid, Lost: c.xid == 79}, noon)
		for i, r := range c.asked {
			was := tr.Healthy(uuid)
			changes, events := tr.Ask(uuid, r, noon)
			if tr.Healthy(uuid) != c.healthy[i] || tr.Condition().Reason != c.reasons[i] {
				t.Errorf("%s, the driver asks for %v: healthy %v, %+v", name, r, tr.Healthy(uuid), tr.Condition())
			}
			if changed := was != tr.Healthy(uuid); changed != (len(changes) == 1) || changed && len(events) != 1 {
				t.Errorf("%s, the driver asks for %v: %+v %+v", name, r, changes, events)
			}
		}
	}
}

func TestUserDecidesWhetherAnswerOfDriverCounts(t *testing.T) {
	t.Parallel()
	devices := gputest.T4s(1)
	uuid := devices[0].UUID
	for _, c := range []struct {
		disable, enable string
		reset, unlisted bool // in service after that
	}{
		{"", "", false, true}, {"154", "", true, false}, {"all", "", true, true}, {"all", "154", false, true}, {"", "4242", false, false}, {"", "all", false, false}, {"48", "", false, true},
	} {
		p, _ := health.ParsePolicy(c.disable, c.enable)
		tr := health.New(p, "b", health.State{})
		tr.Reopened(devices, all, noon)
		tr.Ask(uuid, gpu.RecoveryReset, noon)
		if tr.Healthy(uuid) != c.reset {
			t.Errorf("disable %q enable %q: in service %v although the driver asks for a reset", c.disable, c.enable, !c.reset)
		}
		tr = health.New(p, "b", health.State{})
		tr.Reopened(devices, all, noon)
		tr.Ask(uuid, gpu.RecoveryNone, noon)
		_, events := tr.Observe(gpu.Event{UUID: uuid, XID: unlisted}, noon)
		if tr.Healthy(uuid) != c.unlisted || len(events) != 1 {
			t.Errorf("disable %q enable %q: in service %v after an XID that nobody knows, %+v", c.disable, c.enable, !c.unlisted, events)
		}
	}
}

func TestReportedResetWaitsForAnswerOfDriver(t *testing.T) {
	t.Parallel()
	devices := gputest.T4s(1)
	uuid := devices[0].UUID
	tr := opened("b", devices, health.State{})
	tr.Ask(uuid, gpu.RecoveryRebootNode, noon)
	tr.MarkReset(uuid)
	tr.Ask(uuid, gpu.RecoveryRebootNode, noon)
	if tr.Marked(uuid) {
		t.Error("the driver still asks for a reboot, and the reset counts")
	}
	tr.MarkReset(uuid)
	tr.Ask(uuid, gpu.RecoveryNone, noon)
	if changes, _ := tr.Reopened(devices, all, noon); len(changes) != 1 || !tr.Healthy(uuid) {
		t.Errorf("it is not back: %+v", changes)
	}
}

// TestAnswerOfDriverConcernsInstances checks that a reset of a GPU brings its MIG instances back, and that only faults that the catalog does not know end
// without one.
func TestAnswerOfDriverConcernsInstances(t *testing.T) {
	t.Parallel()
	devices := gputest.Divided(2, 3, "2g.10gb", 9856)
	of, instances := devices[0].UUID, devices[0].Instances
	tr := opened("b", devices, health.State{})
	tr.Observe(gpu.Event{UUID: of, Instance: instances[0].UUID, XID: unlisted}, noon)
	tr.Observe(gpu.Event{UUID: of, Instance: instances[1].UUID, XID: 94}, noon)
	tr.Ask(of, gpu.RecoveryNone, noon)
	if out := tr.OutOfService(); !slices.Equal(out, []string{instances[1].UUID}) {
		t.Errorf("out of service are %v", out)
	}
	tr.Observe(gpu.Event{UUID: of, Instance: instances[0].UUID, XID: unlisted}, noon)
	if !tr.Healthy(instances[0].UUID) {
		t.Error("the driver asks for nothing, and the instance is out of service")
	}
	tr.Ask(of, gpu.RecoveryDrainAndReset, noon)
	if tr.Healthy(of) || !tr.Healthy(devices[1].UUID) {
		t.Error("the wrong GPU is out of service")
	}
	if changes, _ := tr.Ask(of, gpu.RecoveryNone, noon); len(changes) != 2 || !tr.Sound(of) {
		t.Errorf("%+v", changes)
	}
}
