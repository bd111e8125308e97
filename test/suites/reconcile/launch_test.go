package reconcile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/launch"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

func (w *world) launch(edits ...func(*launch.Config)) *launch.Controller {
	config := launch.Config{Client: w.WithWatch, NodeClass: w.gatherer.NodeClass, Ledger: w.ledger, Metrics: w.metrics, Recorder: w.recorder, Clock: w.clock, Timeout: time.Minute}
	for _, edit := range edits {
		edit(&config)
	}
	return &launch.Controller{Config: config}
}

// refuse records that the cloud refused an on-demand instance type in the zones for lack of capacity.
func (w *world) refuse(class, instanceType string, zones ...string) {
	w.ledger.Refuse(class, launching.Refusal{
		InstanceTypes: []string{instanceType}, Zones: zones, CapacityType: "on-demand", Reason: v1alpha1.RefusalInsufficientCapacity, Message: "no capacity",
	}, w.clock.Now())
}

// refusals returns the refusals in the class's status.
func (w *world) refusals(class string) []v1alpha1.RefusedOffering {
	w.t.Helper()
	c := &v1alpha1.GPUNodeClass{}
	if err := w.Get(w.t.Context(), client.ObjectKey{Name: class}, c); err != nil {
		w.t.Fatal(err)
	}
	return c.Status.RefusedOfferings
}

// wantPause fails unless the class has a single refusal, which pauses its launches and counts one failure.
func (w *world) wantPause(class string) v1alpha1.RefusedOffering {
	w.t.Helper()
	all := w.refusals(class)
	if len(all) != 1 || !all[0].PausesLaunches() || all[0].Failures != 1 {
		w.t.Fatalf("the status holds %+v, want a pause with one failure", all)
	}
	return all[0]
}

func TestHungClaimIsDeletedAfterRefusalIsPersisted(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("hang-1", w.shared("hang"))
	first := true
	watching := interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			if first {
				w.wantPause("hang")
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
	if r := w.wantPause("hang"); r.NotBefore.After(w.clock.Now().Add(time.Minute)) || !strings.Contains(r.Message, "see that Karpenter runs") {
		t.Errorf("refused until %s: %s", r.NotBefore, r.Message)
	}
	w.wantEvents(1, "Warning LaunchesPaused launches are paused until")

	// The deletion of the claim is not a second refusal.
	w.reconciles(controller, "hang-1")
	w.release(claim)
	w.reconciles(controller, "hang-1")
	w.wantPause("hang")
	w.wantEvents(0, "")
	if refused, deleted := w.counted("karve_launch_refused_total"), w.counted("karve_nodeclaims_deleted_total"); refused != 1 || deleted != 1 {
		t.Errorf("counted %v refusals and %v deletions, want one each", refused, deleted)
	}
}

func TestClaimsThatHangTogetherCountAsOneFailure(t *testing.T) {
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
	w.wantPause("together")
	w.wantEvents(1, "LaunchesPaused")
	for _, claim := range w.wantClaims(3) {
		if claim.DeletionTimestamp.IsZero() {
			t.Errorf("%s still blocks stock Karpenter", claim.Name)
		}
	}
}

func TestFailingClaimIsDeletedSooner(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("failing-1", w.shared("failing"))
	w.setClaimCondition(claim, status.Condition{Type: karpv1.ConditionTypeLaunched, Status: "Unknown", Reason: "LaunchFailed", Message: strings.Repeat("no rights ", 200)})
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
	if r := w.wantPause("failing"); !strings.Contains(r.Message, "LaunchFailed: no rights") {
		t.Errorf("the message is %q", r.Message)
	}
	for _, e := range w.events() {
		// The fake recorder puts type and reason before the note.
		if note := strings.TrimPrefix(e, "Warning LaunchesPaused "); len(note) > 1024 {
			t.Errorf("the API refuses an event with a note of %d bytes", len(note))
		}
	}
}

func TestClaimDeletedBeforeLaunchPausesLaunches(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		seenDeleting bool
	}{
		"seen while terminating": {true},
		"seen after it vanished": {false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			claim := w.claim("refused-1", w.shared("refused"))
			controller := w.launch()
			w.reconciles(controller, "refused-1")
			w.delete(claim)
			if c.seenDeleting {
				w.reconciles(controller, "refused-1")
				w.wantPause("refused")
			}
			w.release(claim)
			w.reconciles(controller, "refused-1")
			w.reconciles(controller, "refused-1")
			w.wantPause("refused")
			if !w.ledger.QuietUntil().IsZero() {
				t.Error("a refusal that Karpenter reported at once pauses all launches")
			}
			w.wantEvents(1, "LaunchesPaused")
			if n := w.counted("karve_nodeclaims_deleted_total"); n != 0 {
				t.Errorf("%v deletions were counted, though it was not ours", n)
			}
		})
	}
}

func TestClaimThatVanishesUnseenIsRetriedAfterPause(t *testing.T) {
	w := newWorld(t)
	w.shared("fast")
	w.pods("web", 1)
	w.reconciles(w.provisioning(), "")
	claim := w.wantClaims(1)[0]
	w.delete(&claim)
	w.reconciles(w.launch(), claim.Name)
	paused := w.wantPause("fast")
	w.reconciles(w.provisioning(), "")
	w.wantClaims(0)
	w.clock.SetTime(paused.NotBefore.Time)
	w.reconciles(w.provisioning(), "")
	before, _, _ := records.ShapeOf(&claim)
	if after, _, _ := records.ShapeOf(&w.wantClaims(1)[0]); after != before {
		t.Errorf("%s is launched, want %s again: it was not refused", after, before)
	}
}

func TestLaunchedClaimIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("fine")
	w.refuse("fine", "g4dn.xlarge", "us-east-1a")
	claim := w.claim("fine-1", pool)
	foreign := w.claim("foreign-1", pool, func(c *karpv1.NodeClaim) { c.Annotations = nil })
	controller := w.launch()
	w.reconciles(controller, "fine-1")
	w.launched(claim)
	w.clock.Step(time.Hour)
	w.reconciles(controller, "fine-1")
	w.reconciles(controller, "foreign-1") // It has hung for long, but is not ours.
	w.delete(claim)
	w.reconciles(controller, "fine-1")
	w.release(claim)
	w.reconciles(controller, "fine-1")
	w.wantEvents(0, "")
	if all := w.refusals("fine"); len(all) != 0 {
		t.Errorf("the status holds %v", all)
	}
	if all := w.ledger.ForStatus("fine", w.clock.Now()); len(all) != 0 {
		t.Errorf("the offering is still refused: %v", all)
	}
	if w.read(foreign); !foreign.DeletionTimestamp.IsZero() {
		t.Error("a claim that is not ours was deleted")
	}
}

func TestCrashBetweenRefusalAndDeletionCountsOnce(t *testing.T) {
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
	before := w.wantPause("crash")

	w.restart()
	w.clock.Step(5 * time.Second)
	controller := w.launch()
	w.reconciles(controller, "crash-1")
	if w.read(claim); claim.DeletionTimestamp.IsZero() {
		t.Error("the claim was not deleted")
	}
	if after := w.wantPause("crash"); !after.NotBefore.Equal(&before.NotBefore) {
		t.Errorf("refused until %s, before the crash until %s", after.NotBefore, before.NotBefore)
	}
	w.release(claim)
	w.reconciles(controller, "crash-1")
	w.wantPause("crash")
}

func TestRefusalIsRetriedWhenAPIServerIsUnreachable(t *testing.T) {
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
	w.wantPause("lost")
}

func TestClaimLaunchedMeanwhileIsNotDeleted(t *testing.T) {
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
		t.Errorf("its type is still refused: %v", all)
	}
}

func TestRestartedControllerAvoidsRefusedOfferings(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("memory")
	claim := w.claim("memory-1", pool)
	controller := w.launch()
	w.reconciles(controller, claim.Name)
	w.event(claim, "InsufficientCapacityError", "NodeClaim memory-1 event: creating instance, insufficient capacity, all requested instance types were unavailable during launch")
	w.delete(claim)
	w.release(claim)
	w.reconciles(controller, claim.Name)
	w.restart()
	w.pods("web", 1)
	w.reconciles(w.provisioning(), "")
	if instanceType, zone, _ := records.ShapeOf(&w.wantClaims(1)[0]); instanceType == "g4dn.xlarge" && zone == "us-east-1a" {
		t.Errorf("%s in %s was tried again at once", instanceType, zone)
	}
}

func TestRestartedControllerWaitsForEndOfPause(t *testing.T) {
	w := newWorld(t)
	w.claim("pause-1", w.shared("pause"))
	w.clock.Step(2 * time.Minute)
	w.reconciles(w.launch(), "pause-1")
	for _, claim := range w.claims() {
		w.release(&claim)
	}
	w.restart()
	w.pods("web", 1)
	w.reconciles(w.provisioning(), "")
	w.wantClaims(0)
	w.clock.SetTime(w.wantPause("pause").NotBefore.Time)
	w.reconciles(w.provisioning(), "")
	if instanceType, _, _ := records.ShapeOf(&w.wantClaims(1)[0]); instanceType != "g4dn.xlarge" {
		t.Errorf("%s is launched after a hang, want the cheapest again", instanceType)
	}
}

func TestRefusedFlexibleClaimRefusesAllItsOfferings(t *testing.T) {
	w := newWorld(t)
	w.shared("choice")
	w.pods("web", 40)
	w.reconciles(w.provisioning(), "")
	claims := w.wantClaims(4)
	controller := w.launch()
	for _, claim := range claims {
		w.event(&claim, "InsufficientCapacityError", "NodeClaim x event: creating instance, insufficient capacity, with fleet error(s), InsufficientInstanceCapacity: "+
			"We currently do not have sufficient g4dn.xlarge capacity in the Availability Zone you requested (us-east-1a).")
		w.delete(&claim)
		w.reconciles(controller, claim.Name)
	}
	if all := w.refusals("choice"); len(all) != 2 || all[0].Failures != 1 || all[1].Failures != 1 || all[0].Zone == all[1].Zone || all[0].Reason != v1alpha1.RefusalInsufficientCapacity {
		t.Fatalf("refused: %+v, want both zones, once", all)
	}
	// The next plan avoids it, and a later one retries it.
	w.reconciles(w.provisioning(), "")
	for _, claim := range w.wantClaims(4) {
		if instanceType, _, _ := records.ShapeOf(&claim); instanceType == "g4dn.xlarge" {
			t.Errorf("%s was tried again at once", instanceType)
		}
		w.delete(&claim)
	}
	w.restart()
	w.clock.Step(4 * time.Minute)
	w.reconciles(w.provisioning(), "")
	for _, claim := range w.wantClaims(4) {
		if instanceType, _, _ := records.ShapeOf(&claim); instanceType != "g4dn.xlarge" {
			t.Errorf("%s is launched after the backoff", instanceType)
		}
	}
}

func TestProvisioningWaitsForRefusalOfVanishedClaim(t *testing.T) {
	w := newWorld(t)
	w.shared("noted")
	w.pods("web", 1)
	controller := w.provisioning()
	w.reconciles(controller, "")
	claim := w.wantClaims(1)[0]
	w.delete(&claim)
	if again := w.reconciles(controller, "").RequeueAfter; again <= 0 || again > time.Second {
		t.Errorf("look again after %s, want soon", again)
	}
	w.wantClaims(0)
	w.event(&claim, "InsufficientCapacityError", "NodeClaim event: creating instance, insufficient capacity, all requested instance types were unavailable during launch")
	w.reconciles(w.launch(), claim.Name)
	w.reconciles(controller, "")
	if instanceType, _, _ := records.ShapeOf(&w.wantClaims(1)[0]); instanceType == "g4dn.xlarge" {
		t.Error("the refused type was launched again")
	}
}

func TestNodeClassFaultStopsLaunchesUntilClassChanges(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("fault")
	claim := w.claim("fault-1", pool)
	w.setClaimCondition(claim, status.Condition{Type: karpv1.ConditionTypeLaunched, Status: "Unknown", Reason: "AMINotFound", Message: "AMI used for instance launch either does not exist or you don't have permissions to use it"})
	w.clock.SetTime(claim.CreationTimestamp.Time)
	controller := w.launch()
	w.reconciles(controller, claim.Name)
	if w.read(claim); claim.DeletionTimestamp.IsZero() {
		t.Error("a launch that cannot succeed still blocks stock Karpenter")
	}
	if !w.ledger.QuietUntil().IsZero() {
		t.Error("all launches are paused although no launch was blocked")
	}
	all := w.refusals("fault")
	if len(all) != 1 || all[0].InstanceType != "*" || all[0].Zone != "*" || all[0].CapacityType != "*" || all[0].Reason != "AMINotFound" || all[0].NodeClassGeneration != 1 {
		t.Fatalf("refused: %+v", all)
	}
	w.release(claim)
	w.pods("web", 1)
	provisioning := w.provisioning()
	w.reconciles(provisioning, "")
	w.wantClaims(0)
	w.reconciles(w.poolController(), "")
	if c := w.wantCondition(pool, v1alpha1.ConditionLaunchHealthy, "False", "AMINotFound"); !strings.Contains(c.Message, "all launches until") || !strings.Contains(c.Message, "AMI used for instance launch") {
		t.Errorf("the message is %q", c.Message)
	}
	if n := w.counted("karve_launch_refused_offerings"); n == 0 {
		t.Error("no offering is counted as refused")
	}

	inner := w.inner("gpu", nil)
	w.read(inner)
	if err := unstructured.SetNestedField(inner.Object, "#!/bin/sh", "spec", "userData"); err != nil {
		t.Fatal(err)
	}
	w.update(inner)
	inner.Object["status"] = map[string]any{"conditions": []any{condition("True", inner.GetGeneration())}}
	w.updateStatus(inner)
	w.reconciles(provisioning, "")
	w.wantClaims(1)
}

func TestClaimOfUnreadyNodeClassBlamesNodeClass(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("unready-1", w.shared("unready"))
	controller := w.launch()
	w.reconciles(controller, claim.Name)
	inner := w.inner("gpu", nil)
	w.read(inner)
	inner.Object["status"] = map[string]any{"conditions": []any{condition("False", 1)}}
	w.updateStatus(inner)
	w.delete(claim)
	w.release(claim)
	w.reconciles(controller, claim.Name)
	if all := w.refusals("unready"); len(all) != 1 || all[0].Reason != v1alpha1.RefusalNodeClassNotReady || all[0].InstanceType != "*" || !strings.Contains(all[0].Message, "is not Ready") {
		t.Errorf("refused: %+v", all)
	}
}

func TestInterruptedSpotOfferingIsRefused(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("spot", snapshottest.Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "spot"))
	claim := w.claim("spot-1", pool, func(c *karpv1.NodeClaim) { c.Spec.Requirements[2].Values = []string{"spot"} })
	controller := w.launch()
	w.reconciles(controller, claim.Name)
	claim.Labels[corev1.LabelInstanceTypeStable], claim.Labels[corev1.LabelTopologyZone] = "g4dn.2xlarge", "us-east-1b"
	claim.Labels[karpv1.CapacityTypeLabelKey] = "spot"
	w.update(claim)
	w.launched(claim)
	w.reconciles(controller, claim.Name)
	w.delete(claim)
	w.reconciles(controller, claim.Name)
	if all := w.refusals("spot"); len(all) != 0 {
		t.Fatalf("a machine that is given back is refused: %+v", all)
	}
	w.event(claim, "SpotInterrupted", "Spot interruption warning was triggered")
	w.reconciles(controller, claim.Name)
	w.reconciles(controller, claim.Name)
	w.restart()
	w.clock.Step(time.Minute)
	w.reconciles(w.launch(), claim.Name)
	all := w.refusals("spot")
	if len(all) != 1 || all[0].InstanceType != "g4dn.2xlarge" || all[0].Zone != "us-east-1b" || all[0].CapacityType != "spot" || all[0].Failures != 1 || all[0].Reason != v1alpha1.RefusalSpotInterrupted {
		t.Errorf("refused: %+v, want what was interrupted, once", all)
	}
	w.wantEvents(1, "SpotInterrupted")
	if n := w.counted("karve_launch_refused_total"); n != 0 {
		t.Errorf("%v launches are counted as refused", n)
	}
}
