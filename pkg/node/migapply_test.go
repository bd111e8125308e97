package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/mig"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/nodecontract"
)

// dividing is a mig-apply that runs against a fake API server.
type dividing struct {
	*machine
	api *apiServer
	// answers are the errors of attempts, in order. The last one is repeated.
	answers []error
	tried   []nodecontract.MIG
	rebooted,
	ended chan bool
	apply *MIGApply
}

func startDividing(t *testing.T, promise string, answers ...error) *dividing {
	t.Helper()
	d := &dividing{machine: &machine{t: t, log: &lines{}}, answers: answers, rebooted: make(chan bool, 100), ended: make(chan bool, 1)}
	d.api = d.withNode()
	d.api.annotations[nodecontract.MIGAnnotation] = promise
	d.apply = &MIGApply{node: d.node, again: time.Millisecond, divide: func(_ context.Context, wanted nodecontract.MIG, mayReboot bool) error {
		d.api.mu.Lock()
		defer d.api.mu.Unlock()
		d.tried = append(d.tried, wanted)
		d.rebooted <- mayReboot
		return d.answers[min(len(d.tried), len(d.answers))-1]
	}}
	return d
}

func (d *dividing) run() {
	ctx := logr.NewContext(d.t.Context(), logr.FromSlogHandler(slog.NewTextHandler(d.log, nil)))
	go func() { d.ended <- d.apply.Run(ctx) == nil }()
}

func (d *dividing) ends() {
	d.t.Helper()
	select {
	case ok := <-d.ended:
		if !ok {
			d.t.Error("it ends with an error")
		}
	case <-time.After(10 * time.Second):
		d.t.Fatalf("it does not end: %s", d.log.text.String())
	}
}

const sevenSmall = `{"profile":"1g.5gb","count":7,"naming":"Mixed"}`

func TestGPUsAreDividedOnceKarpenterHasSaidHow(t *testing.T) {
	t.Parallel()
	d := startDividing(t, "", nil)
	d.api.taints = []string{"karpenter.sh/unregistered", nodecontract.ReplicasNotReadyTaint}
	d.run()
	d.eventually("it waits", func() bool { return d.log.has("Karpenter has not registered the Node") })
	d.api.change(func() {
		d.api.annotations[nodecontract.MIGAnnotation] = sevenSmall
		d.api.taints = []string{nodecontract.ReplicasNotReadyTaint}
	})
	d.ends()
	if len(d.tried) != 1 || d.tried[0].Profile != "1g.5gb" || d.tried[0].Count != 7 || !<-d.rebooted {
		t.Errorf("it tried %+v", d.tried)
	}
	if len(d.api.conditions) > 0 || len(d.api.events) > 0 {
		t.Errorf("it wrote %v and %v", d.api.conditions, d.api.events)
	}
}

func TestGPUsStayAsTheyAre(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		promise, label string
		answer         error
		tries          int
		says           string
	}{
		"without a promise":       {"", "", nil, 0, "No MIG instances were promised"},
		"with an invalid promise": {`{"profile":""}`, "", nil, 0, "profile is empty"},
		"under the MIG manager":   {sevenSmall, "all-disabled", nil, 0, "NVIDIA's MIG manager divides the GPUs"},
		"while pods hold them":    {sevenSmall, "", mig.ErrHeld, 1, "pods hold GPUs"},
	} {
		d := startDividing(t, c.promise, c.answer)
		if c.label != "" {
			d.api.labels[nodecontract.MIGConfigLabel] = c.label
		}
		d.run()
		d.ends()
		if len(d.tried) != c.tries || !d.log.has(c.says) {
			t.Errorf("%s: %d attempts, and it says %s", name, len(d.tried), d.log.text.String())
		}
		if c.tries > 0 && <-d.rebooted {
			t.Errorf("%s: it may reboot a node without the startup taint", name)
		}
	}
}

func TestNodeSaysWhyItsGPUsAreNotDivided(t *testing.T) {
	t.Parallel()
	used := &mig.Failure{Reason: nodecontract.ReasonMIGModePending, Message: "process 4711 uses GPU 0"}
	d := startDividing(t, sevenSmall, used, used, used, errors.New("something else"), nil)
	d.run()
	d.ends()
	if got := d.api.condition(nodecontract.SharingCondition); got != "False ConfigurationRefused: something else" {
		t.Errorf("the condition is %s", got)
	}
	if n := d.api.count(nodecontract.ReasonMIGModePending, "process 4711 uses GPU 0"); n != 1 || len(d.api.events) != 2 {
		t.Errorf("the events are %v", d.api.events)
	}
}

func TestReportIsWrittenAgainIfTheAPIServerRefusesIt(t *testing.T) {
	t.Parallel()
	d := startDividing(t, sevenSmall, &mig.Failure{Reason: nodecontract.ReasonNone, Message: "no driver"})
	d.api.refuse = true
	d.run()
	d.eventually("it fails to write", func() bool { return d.log.has("The Node cannot be written") })
	d.api.change(func() { d.api.refuse = false })
	d.eventually("it writes", func() bool { return d.api.count(nodecontract.ReasonNone, "no driver") == 1 })
}

func TestOptionsOfDividing(t *testing.T) {
	t.Parallel()
	env := func(name string) (string, bool) {
		value, ok := map[string]string{"NODE_NAME": "n", "HOST_PROC": "/host/proc", "STATE_DIR": ""}[name]
		return value, ok
	}
	o, err := ParseMIG([]string{"--log-level=debug"}, env, io.Discard)
	if err != nil || o.NodeName != "n" || o.proc != "/host/proc" || o.stateDir != "/var/lib/karve" || o.systemd != mig.Systemd || o.Level != slog.LevelDebug {
		t.Errorf("%+v, %v", o, err)
	}
	for want, args := range map[string][]string{"unexpected argument": {"now"}, "--log-level": {"--log-level=loud"}, "flag provided": {"--divide"}} {
		if _, err := ParseMIG(args, env, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
	if _, err := ParseMIG(nil, func(string) (string, bool) { return "", false }, io.Discard); err == nil || !strings.Contains(err.Error(), "--node-name") {
		t.Errorf("%v", err)
	}
}

func TestPodsAreFoundByTheirDevices(t *testing.T) {
	t.Parallel()
	m := start(t, func(m *machine) { m.configure(replicas(2)) })
	m.eventually("4 replicas", m.allocatable(4))
	if _, err := m.kubelet.Allocate(t.Context(), "notebook", resource, "GPU-b::1"); err != nil {
		t.Fatal(err)
	}
	pods, err := podsByDevice(t.Context(), plugin.PodResources{Socket: m.kubelet.PodResourcesSocket()})
	if err != nil || len(pods) != 1 || !strings.HasSuffix(pods["GPU-b"], "/notebook") {
		t.Errorf("%v, %v", pods, err)
	}
	if slices.Contains([]string{pods["GPU-a"]}, pods["GPU-b"]) {
		t.Error("a GPU that nobody holds has a pod")
	}
}
