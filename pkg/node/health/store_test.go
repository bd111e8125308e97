package health_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/nodecontract"
)

func TestStoreLoadsStateOfSameBootOnly(t *testing.T) {
	t.Parallel()
	store := health.Store{Dir: filepath.Join(t.TempDir(), "state"), Boot: "boot-1"}
	if state, err := store.Load(); err != nil || state.Faults != nil || state.Distrust {
		t.Errorf("at first %+v, %v", state, err)
	}
	devices := gputest.T4s(2)
	tr := opened("boot-1", devices, health.State{})
	tr.Observe(gpu.Event{UUID: devices[1].UUID, XID: 95}, noon)
	if err := store.Save(tr.State()); err != nil {
		t.Fatal(err)
	}
	state, err := store.Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tr.State(), state); diff != "" {
		t.Error(diff)
	}
	next := health.Store{Dir: store.Dir, Boot: "boot-2"}
	state, err = next.Load()
	if err != nil || state.Boot != "boot-1" {
		t.Errorf("after a reboot %+v, %v", state, err)
	}
	tr = health.New(health.Policy{}, "boot-2", state)
	for i := range 2 { // The recovery is reported once.
		changes, events := tr.Reopened(devices, all, noon)
		if len(changes) != 0 || len(events) != 1-i || !tr.Healthy(devices[1].UUID) {
			t.Errorf("after a reboot %+v %+v", changes, events)
		}
	}
	if err := next.Save(health.State{Boot: "boot-2"}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(store.Dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "health-boot-2.json" {
		t.Errorf("the folder has %v, %v", entries, err)
	}
}

func TestUnreadableRecordTakesEveryGPUOutOfService(t *testing.T) {
	t.Parallel()
	devices := gputest.T4s(2)
	for name, content := range map[string]string{"empty": "", "torn": `{"boot":"boot-1","fau`, "of another boot": `{"boot":"boot-0"}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := health.Store{Dir: t.TempDir(), Boot: "boot-1"}
			if err := os.WriteFile(store.Path(), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			state, err := store.Load()
			if !errors.Is(err, health.ErrUnreadable) || !strings.Contains(err.Error(), store.Path()) {
				t.Fatalf("got %v", err)
			}
			tr := health.New(health.Policy{}, "boot-1", state)
			changes, events := tr.Reopened(devices[:1], all, noon)
			if len(changes) != 1 || len(events) != 1 || tr.Healthy(devices[0].UUID) {
				t.Errorf("%+v %+v", changes, events)
			}
			// A reset counts, also for the next agent. A GPU that reappears late does not.
			tr.MarkReset(devices[0].UUID)
			tr.Reopened(devices[:1], all, noon)
			if err := store.Save(tr.State()); err != nil {
				t.Fatal(err)
			}
			state, err = store.Load()
			if err != nil {
				t.Fatal(err)
			}
			tr = opened("boot-1", devices, state)
			if !tr.Healthy(devices[0].UUID) || tr.Healthy(devices[1].UUID) {
				t.Errorf("out of service are %q", tr.OutOfService())
			}
		})
	}
}

func TestSaveFailsForUnwritableDir(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (health.Store{Dir: file, Boot: "b"}).Save(health.State{}); err == nil {
		t.Error("it was saved in a file")
	}
}

func TestGPUNoLongerListedInSameBootIsLost(t *testing.T) {
	t.Parallel()
	devices := gputest.T4s(2)
	tr := opened("b", devices, health.State{})
	again := health.New(health.Policy{}, "b", tr.State())
	changes, events := again.Reopened(devices[:1], all, noon)
	if len(changes) != 1 || changes[0].UUID != devices[1].UUID || len(events) != 1 || again.Condition().Reason != nodecontract.ReasonLost {
		t.Errorf("%+v %+v %+v", changes, events, again.Condition())
	}
	if changes, _ := again.Reopened(devices, all, noon); len(changes) != 0 || again.Healthy(devices[1].UUID) {
		t.Error("a GPU that is listed again counts as reset")
	}
}

func TestUnresponsiveGPUStaysOutOfServiceAfterReset(t *testing.T) {
	t.Parallel()
	devices := gputest.T4s(1)
	uuid := devices[0].UUID
	tr := opened("b", devices, health.State{})
	if tr.MarkReset(uuid) {
		t.Error("a GPU in service waits for its reset")
	}
	tr.Observe(gpu.Event{UUID: uuid, XID: 62}, noon)
	if !tr.MarkReset(uuid) || !tr.Marked(uuid) {
		t.Error("it is not marked")
	}
	if changes, _ := tr.Reopened(devices, func(string) bool { return false }, noon); len(changes) != 0 || tr.Healthy(uuid) {
		t.Error("it is back")
	}
	// An earlier agent has reported the XID. The next one does not report it again.
	again := health.New(health.Policy{}, "b", tr.State())
	again.Reopened(devices, func(string) bool { return false }, noon)
	if _, events := again.Observe(gpu.Event{UUID: uuid, XID: 62}, noon); len(events) != 0 || again.Marked(uuid) {
		t.Errorf("%+v", events)
	}
}
