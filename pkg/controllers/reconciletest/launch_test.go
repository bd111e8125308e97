package reconciletest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/launch"
)

func (w *world) launch(edits ...func(*launch.Config)) *launch.Controller {
	config := launch.Config{Client: w.WithWatch, Ledger: w.ledger, Metrics: w.metrics, Recorder: w.recorder, Clock: w.clock, Timeout: time.Minute}
	for _, edit := range edits {
		edit(&config)
	}
	return &launch.Controller{Config: config}
}

// refusals are those in the class's status.
func (w *world) refusals(class string) []v1alpha1.RefusedOffering {
	w.t.Helper()
	c := &v1alpha1.GPUNodeClass{}
	if err := w.Get(w.t.Context(), client.ObjectKey{Name: class}, c); err != nil {
		w.t.Fatal(err)
	}
	return c.Status.RefusedOfferings
}

// wantRefusal is the only one, and it counts once.
func (w *world) wantRefusal(class, zone string) v1alpha1.RefusedOffering {
	w.t.Helper()
	all := w.refusals(class)
	if len(all) != 1 || all[0].InstanceType != "g4dn.xlarge" || all[0].Zone != zone || all[0].Failures != 1 {
		w.t.Fatalf("the status holds %+v, want g4dn.xlarge in zone %s with one failure", all, zone)
	}
	return all[0]
}

func TestAClaimThatHangsIsGivenUpAfterItsRefusalIsWrittenDown(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("hang-1", w.shared("hang"))
	first := true
	watching := interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			if first {
				w.wantRefusal("hang", "*")
			}
			first = false
			return c.Delete(ctx, o, options...)
		},
	})
	controller := w.launch(func(c *launch.Config) { c.Client = watching })
	w.clock.SetTime(claim.CreationTimestamp.Add(40 * time.Second))
	if again := w.reconciles(controller, "hang-1").RequeueAfter; again != 20*time.Second {
		t.Errorf("look again after %s, want the rest of a minute", again)
	}
	if w.read(claim); !claim.DeletionTimestamp.IsZero() || len(w.refusals("hang")) != 0 {
		t.Fatal("the claim was given up too soon")
	}
	w.clock.Step(20 * time.Second)
	w.reconciles(controller, "hang-1")
	if w.read(claim); claim.DeletionTimestamp.IsZero() || first {
		t.Fatal("the claim was not deleted")
	}
	if r := w.wantRefusal("hang", "*"); r.NotBefore.Time.Before(w.clock.Now().Add(3*time.Minute)) || !strings.Contains(r.Message, "see that Karpenter runs") {
		t.Errorf("refused until %s: %s", r.NotBefore, r.Message)
	}
	w.wantTold(1, "Warning LaunchRefused g4dn.xlarge in zone * (*) for NodePool hang")

	// Its way out is no second refusal.
	w.reconciles(controller, "hang-1")
	w.release(claim)
	w.reconciles(controller, "hang-1")
	w.wantRefusal("hang", "*")
	w.wantTold(0, "")
	if refused, deleted := w.counted("karve_nodeclaims_refused_total"), w.counted("karve_nodeclaims_deleted_total"); refused != 1 || deleted != 1 {
		t.Errorf("counted %v refusals and %v deletions, want one each", refused, deleted)
	}
}

func TestClaimsOfAPlanThatHangTogetherAreOneFailure(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("together")
	controller := w.launch()
	for _, name := range []string{"together-1", "together-2", "together-3"} {
		w.claim(name, pool)
		w.reconciles(controller, name)
	}
	w.clock.Step(2 * time.Minute)
	for _, name := range []string{"together-1", "together-2", "together-3"} {
		w.reconciles(controller, name)
	}
	w.wantRefusal("together", "*")
	w.wantTold(1, "LaunchRefused")
	for _, claim := range w.wantClaims(3) {
		if claim.DeletionTimestamp.IsZero() {
			t.Errorf("%s still holds stock Karpenter up", claim.Name)
		}
	}
}

func TestAClaimWhoseLaunchFailsIsGivenUpSooner(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("failing-1", w.shared("failing"))
	w.says(claim, status.Condition{Type: karpv1.ConditionTypeLaunched, Status: "Unknown", Reason: "LaunchFailed", Message: strings.Repeat("no rights ", 200)})
	controller := w.launch()
	w.clock.SetTime(claim.CreationTimestamp.Add(14 * time.Second))
	if again := w.reconciles(controller, "failing-1").RequeueAfter; again != time.Second {
		t.Errorf("look again after %s, want a second", again)
	}
	w.clock.Step(time.Second)
	w.reconciles(controller, "failing-1")
	if w.read(claim); claim.DeletionTimestamp.IsZero() {
		t.Error("the claim was not deleted")
	}
	if r := w.wantRefusal("failing", "*"); !strings.Contains(r.Message, "LaunchFailed: no rights") {
		t.Errorf("the message is %q", r.Message)
	}
	for _, e := range w.told() {
		// The fake recorder puts type and reason before the note.
		if note := strings.TrimPrefix(e, "Warning LaunchRefused "); len(note) > 1024 {
			t.Errorf("the API refuses an event with a note of %d bytes", len(note))
		}
	}
}

func TestAClaimThatIsDeletedBeforeItIsLaunchedIsAFailedOffering(t *testing.T) {
	for name, c := range map[string]struct {
		seenDeleting bool
	}{
		"seen while it goes":        {true},
		"seen once it has vanished": {false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			claim := w.claim("refused-1", w.shared("refused"))
			controller := w.launch()
			w.reconciles(controller, "refused-1")
			w.delete(claim)
			if c.seenDeleting {
				w.reconciles(controller, "refused-1")
				w.wantRefusal("refused", "us-east-1a")
			}
			w.release(claim)
			w.reconciles(controller, "refused-1")
			w.reconciles(controller, "refused-1")
			if r := w.wantRefusal("refused", "us-east-1a"); r.CapacityType != "on-demand" {
				t.Errorf("refused %v, want the offering alone", r)
			}
			if !w.ledger.QuietUntil().IsZero() {
				t.Error("a refusal that Karpenter gave at once quiets everything")
			}
			w.wantTold(1, "LaunchRefused")
			if n := w.counted("karve_nodeclaims_deleted_total"); n != 0 {
				t.Errorf("%v deletions were counted, though it was not ours", n)
			}
		})
	}
}

func TestAClaimThatVanishesBeforeTheWatchTellsOfItIsAFailedOffering(t *testing.T) {
	w := newWorld(t)
	w.shared("fast")
	w.pods("web", 1)
	w.reconciles(w.provisioning(), "")
	claim := w.wantClaims(1)[0]
	w.delete(&claim)
	w.reconciles(w.launch(), claim.Name)
	if all := w.refusals("fast"); len(all) != 1 {
		t.Fatalf("the status holds %v", all)
	}
	before := launch.ShapeOf(&claim)
	w.reconciles(w.provisioning(), "")
	if after := launch.ShapeOf(&w.wantClaims(1)[0]); after == before {
		t.Errorf("%v was tried again at once", after)
	}
}

func TestALaunchedClaimIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("fine")
	w.ledger.Refuse(launch.Shape{Class: "fine", InstanceType: "g4dn.xlarge", Zone: "us-east-1a", CapacityType: "on-demand"}, false, "no", w.clock.Now().Add(-time.Hour))
	claim := w.claim("fine-1", pool)
	foreign := w.claim("foreign-1", pool, func(c *karpv1.NodeClaim) { c.Annotations = nil })
	controller := w.launch()
	w.reconciles(controller, "fine-1")
	w.launched(claim)
	w.clock.Step(time.Hour)
	w.reconciles(controller, "fine-1")
	w.reconciles(controller, "foreign-1") // Long hung, and not ours.
	w.delete(claim)
	w.reconciles(controller, "fine-1")
	w.release(claim)
	w.reconciles(controller, "fine-1")
	w.wantTold(0, "")
	if all := w.refusals("fine"); len(all) != 0 {
		t.Errorf("the status holds %v", all)
	}
	if all := w.ledger.ForStatus("fine", w.clock.Now()); len(all) != 0 {
		t.Errorf("the offering is not trusted again: %v", all)
	}
	if w.read(foreign); !foreign.DeletionTimestamp.IsZero() {
		t.Error("a claim that is not ours was deleted")
	}
}

func TestACrashBetweenTheRefusalAndTheDeletionCountsOnce(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("crash-1", w.shared("crash"))
	crash := errors.New("the process ends here")
	dying := interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return crash },
	})
	w.clock.Step(2 * time.Minute)
	_, err := w.launch(func(c *launch.Config) { c.Client = dying }).Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "crash-1"}})
	if !errors.Is(err, crash) {
		t.Fatal(err)
	}
	before := w.wantRefusal("crash", "*")

	w.restart()
	w.clock.Step(5 * time.Second)
	controller := w.launch()
	w.reconciles(controller, "crash-1")
	if w.read(claim); claim.DeletionTimestamp.IsZero() {
		t.Error("the claim was not deleted")
	}
	if after := w.wantRefusal("crash", "*"); !after.NotBefore.Equal(&before.NotBefore) {
		t.Errorf("refused until %s, before the crash until %s", after.NotBefore, before.NotBefore)
	}
	w.release(claim)
	w.reconciles(controller, "crash-1")
	w.wantRefusal("crash", "*")
}

func TestARefusalIsNotLostWhenTheAPICannotBeReached(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("lost-1", w.shared("lost"))
	down := true
	flaky := interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, ok := o.(*v1alpha1.GPUNodeClass); ok && down {
				return errors.New("unreachable")
			}
			return c.Get(ctx, key, o, options...)
		},
	})
	controller := w.launch(func(c *launch.Config) { c.Client = flaky })
	w.reconciles(controller, "lost-1")
	w.release(claim)
	w.delete(claim)
	if _, err := controller.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "lost-1"}}); err == nil {
		t.Error("an error was swallowed")
	}
	down = false
	w.reconciles(controller, "lost-1")
	w.wantRefusal("lost", "us-east-1a")
}

func TestAClaimThatWasLaunchedAMomentAgoIsNotDeleted(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("late-1", w.shared("late"))
	stale := claim.DeepCopy()
	w.launched(claim)
	cached := true
	lagging := interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if got, ok := o.(*karpv1.NodeClaim); ok && cached {
				stale.DeepCopyInto(got)
				return nil
			}
			return c.Get(ctx, key, o, options...)
		},
	})
	controller := w.launch(func(c *launch.Config) { c.Client = lagging })
	w.clock.Step(2 * time.Minute)
	if again := w.reconciles(controller, "late-1").RequeueAfter; again <= 0 || again > time.Second {
		t.Errorf("look again after %s, want soon", again)
	}
	cached = false
	w.reconciles(controller, "late-1")
	if w.read(claim); !claim.DeletionTimestamp.IsZero() {
		t.Error("a machine that was just made was given back")
	}
	if all := w.ledger.ForStatus("late", w.clock.Now()); len(all) != 0 {
		t.Errorf("its type is not trusted again: %v", all)
	}
}

func TestARestartedControllerPlansAroundWhatWasRefused(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("memory")
	w.claim("memory-1", pool)
	w.clock.Step(2 * time.Minute)
	w.reconciles(w.launch(), "memory-1")
	for _, claim := range w.claims() {
		w.release(&claim)
	}
	w.restart()
	w.pods("web", 1)
	w.reconciles(w.provisioning(), "")
	if shape := launch.ShapeOf(&w.wantClaims(1)[0]); shape.InstanceType == "g4dn.xlarge" {
		t.Errorf("%v was tried again at once", shape)
	}
}
