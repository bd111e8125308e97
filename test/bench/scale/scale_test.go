package scale

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	ctrl "sigs.k8s.io/controller-runtime"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // The watches log lost connections, which are expected here.
	os.Exit(m.Run())
}

var small = sized(30)

// brief holds short times in which everything happens once.
var brief = Times{Settle: 3 * time.Second, Idle: 5 * time.Second, Churn: 5 * time.Second, Ended: 5 * time.Second, Place: 2 * time.Minute}

func TestEveryPhaseFillsItsColumns(t *testing.T) {
	cluster.Long(t)
	cluster.Require(t)
	row := Row{Size: small}
	for _, p := range []Program{Karve(karve.Options{}), Karpenter()} {
		f, err := Measure(t.Context(), small, p, brief, t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range Columns {
			v, measured := f.Values[c]
			switch {
			case measured == (f.Reasons[c] != ""):
				t.Errorf("%s of %s: got the value %v and the reason %q, want exactly one of them", c, p.Name, v, f.Reasons[c])
			case !measured && (p.Name == "karve" || c != Look && !slices.Contains(verbColumns(), c)):
				t.Errorf("%s of %s is missing: %s", c, p.Name, f.Reasons[c])
			case v < 0 || v == 0 && c != IdleRequests && c != IdleCores && measured:
				t.Errorf("%s of %s is %v", c, p.Name, v)
			}
		}
		row.All = append(row.All, f)
	}
	if n := row.All[0].Values[IdleRequests]; n > 0 {
		t.Errorf("Karve makes %.2f requests per second in the idle phase, want none", n)
	}
	text, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]any{}
	if err := json.Unmarshal(text, &written); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"nodes", "pods", "rssMiB", "idleCores", "churnCores", "idleRequestsPerSecond", "firstPlanSeconds", "burstToLastClaimSeconds", "lookSecondsP99", "decisionSecondsP99", "verbSecondsMax", "verbInspectSeconds",
		"karpenterRssMiB", "karpenterIdleCores", "karpenterBurstToLastClaimSeconds",
	} {
		if written[name] == nil {
			t.Errorf("the row has no %s", name)
		}
	}
}

// TestBurstLaunchesEachMachineOnceDespiteFailures disturbs the controller, the API server or the watches in the middle of a burst. Every pod must get a node,
// and no node may stay empty.
func TestBurstLaunchesEachMachineOnceDespiteFailures(t *testing.T) {
	cluster.Long(t)
	cluster.Require(t)
	const pods = 80
	ctx := t.Context()
	w, err := NewWorld(ctx, small, Karve(karve.Options{}).Class, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
	})
	p := newProxy(t, w.RESTConfig().Host)
	k, err := Karve(karve.Options{APIServer: p.url}).launch(ctx, w)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		disturb func(context.Context) error
	}{
		{"the controller is killed", func(ctx context.Context) error {
			if err := w.KillComponent(k.component); err != nil {
				return err
			}
			return w.StartComponent(ctx, k.component)
		}},
		{"the API server is killed", func(ctx context.Context) error {
			if err := w.KillComponent(cluster.APIServer); err != nil {
				return err
			}
			return w.StartComponent(ctx, cluster.APIServer)
		}},
		{"watches break", func(ctx context.Context) error {
			for range 20 {
				p.cut()
				if err := smithytime.SleepWithContext(ctx, 200*time.Millisecond); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(w.Claims())
			group, ctx := errgroup.WithContext(t.Context())
			group.Go(func() error { return w.Burst(ctx, pods, burstShapes()...) })
			group.Go(func() error {
				for len(w.Claims()) < before+2 {
					if err := smithytime.SleepWithContext(ctx, 10*time.Millisecond); err != nil {
						return err
					}
				}
				return c.disturb(ctx)
			})
			if err := group.Wait(); err != nil {
				t.Fatal(err)
			}
			if late := w.UntilPlaced(t.Context(), brief.Place); late > 0 {
				t.Fatalf("%d of %d pods have no node", late, pods)
			}
			if err := smithytime.SleepWithContext(t.Context(), slowest+2*boots); err != nil { // By then a surplus machine would exist.
				t.Fatal(err)
			}
			if empty := w.Empty(); len(empty) > 0 {
				t.Errorf("no pod needs the nodes %q", empty)
			}
			most := pods/replicasPerNode*3/2 + 1
			if n := len(w.Claims()) - before; n < pods/replicasPerNode || n > most {
				t.Errorf("%d machines were launched for %d pods, want %d to %d", n, pods, pods/replicasPerNode, most)
			}
		})
	}
}

func TestQuantileInterpolatesWithinBucket(t *testing.T) {
	t.Parallel()
	h := histogram{1: 90, 2: 100}
	h[inf] = 100
	if q, ok := h.quantile(0.95); !ok || q != 1.5 {
		t.Errorf("got %v, want 1.5, the middle of the second bucket", q)
	}
	if _, ok := (histogram{}).quantile(0.99); ok {
		t.Error("a histogram without observations has a quantile")
	}
}
