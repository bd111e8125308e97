package reconcile

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// event creates an event of Karpenter about a claim.
func (w *world) event(claim *karpv1.NodeClaim, reason, message string, edits ...func(*corev1.Event)) {
	w.t.Helper()
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: claim.Name + "-", Namespace: "default"},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: claim.Name, UID: claim.UID,
		},
		Type: corev1.EventTypeWarning, Reason: reason, Message: message, LastTimestamp: metav1.NewTime(w.clock.Now()),
		Source: corev1.EventSource{Component: "karpenter"}, ReportingController: "karpenter",
	}
	for _, edit := range edits {
		edit(e)
	}
	if err := w.Create(w.t.Context(), e); err != nil {
		w.t.Fatal(err)
	}
}

// overLimit is the message of Karpenter's event for a launch that exceeds the account's vCPU limit.
const overLimit = "creating instance, insufficient capacity, with fleet error(s), VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit of 32 allows for " +
	"the instance bucket that the specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustme..."

func TestEventExplainsRefusedClaim(t *testing.T) {
	t.Parallel()
	for name, eventFirst := range map[string]bool{"before the claim vanishes": true, "after the claim has vanished": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			pool := w.shared("explained")
			earlier := w.claim("explained-1", pool)
			w.event(earlier, "InsufficientCapacityError", "NodeClaim explained-1 event: of another claim of that name, MaxFleetCountExceeded: x")
			w.release(earlier)
			w.delete(earlier)
			claim := w.claim("explained-1", pool)
			controller := w.launch()
			w.reconciles(controller, claim.Name)
			tell := func() { w.event(claim, "InsufficientCapacityError", "NodeClaim explained-1 event: "+overLimit) }
			if eventFirst {
				tell()
			}
			w.delete(claim)
			w.release(claim)
			again := w.reconciles(controller, claim.Name).RequeueAfter
			if !eventFirst {
				if r := w.wantPause("explained"); r.Reason != v1alpha1.RefusalVanished || again <= 0 {
					t.Errorf("until it is explained: %+v, look again after %s", r, again)
				}
				if n := w.counted("karve_launch_refused_total"); n != 0 {
					t.Errorf("%v refusals are counted before it is known why", n)
				}
				tell()
				w.reconciles(controller, claim.Name)
			}
			all := w.refusals("explained")
			i := slices.IndexFunc(all, func(r v1alpha1.RefusedOffering) bool { return r.Reason == v1alpha1.RefusalVCPULimit })
			if i < 0 || all[i].Zone != "*" || all[i].CapacityType != "on-demand" || all[i].InstanceType != "g4dn.xlarge" || !strings.HasPrefix(all[i].Message, "creating instance") {
				t.Fatalf("refused: %+v", all)
			}
			w.reconciles(controller, claim.Name)
			w.clock.Step(time.Minute)
			w.reconciles(controller, claim.Name)
			if n := w.counted("karve_launch_refused_total"); n != 1 {
				t.Errorf("%v refusals are counted, want one", n)
			}
			// No type under that quota is as small, so nothing is launched.
			w.pods("web", 1)
			w.reconciles(w.provisioning(), "")
			w.wantClaims(0)
			w.wantEvents(1, "OfferingsUnavailable")
		})
	}
}

// TestLateEventExplainsNextClaimOfThatName has an event that comes after the plan was made again. Of the next claim Karpenter says only that it has nothing
// available, because it remembers the refusal.
func TestLateEventExplainsNextClaimOfThatName(t *testing.T) {
	w := newWorld(t)
	pool, controller := w.shared("late"), w.launch()
	refused := func() *karpv1.NodeClaim {
		claim := w.claim("late-1", pool)
		w.reconciles(controller, claim.Name)
		w.delete(claim)
		w.release(claim)
		return claim
	}
	earlier := refused()
	w.reconciles(controller, earlier.Name)
	if r := w.wantPause("late"); r.Reason != v1alpha1.RefusalVanished {
		t.Errorf("until it is explained: %+v", r)
	}
	next := refused()
	w.event(earlier, "InsufficientCapacityError", "NodeClaim late-1 event: "+overLimit)
	w.event(next, "InsufficientCapacityError", "NodeClaim late-1 event: all requested instance types were unavailable during launch")
	w.reconciles(controller, next.Name)
	all := w.refusals("late")
	if !slices.ContainsFunc(all, func(r v1alpha1.RefusedOffering) bool {
		return r.Reason == v1alpha1.RefusalVCPULimit && r.InstanceType == "g4dn.xlarge" && r.Zone == "*"
	}) {
		t.Errorf("refused: %+v", all)
	}
}

// forgeries are events that Karpenter did not write, although each says that there is no capacity and names the claim.
var forgeries = map[string]func(*corev1.Event){
	"in another namespace":   func(e *corev1.Event) { e.Namespace, e.InvolvedObject.Namespace = "tenant", "tenant" },
	"from another component": func(e *corev1.Event) { e.Source.Component, e.ReportingController = "tenant", "tenant" },
	"from no component":      func(e *corev1.Event) { e.Source.Component, e.ReportingController = "", "" },
	"about another kind":     func(e *corev1.Event) { e.InvolvedObject.Kind = "Node" },
	"about another group":    func(e *corev1.Event) { e.InvolvedObject.APIVersion = "tenant.example/v1" },
	"about another claim":    func(e *corev1.Event) { e.InvolvedObject.UID = "another" },
	"about no claim":         func(e *corev1.Event) { e.InvolvedObject.UID = "" },
}

func TestForgedEventsAreIgnored(t *testing.T) {
	t.Parallel()
	for name, forge := range forgeries {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if err := w.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}}); client.IgnoreAlreadyExists(err) != nil {
				t.Fatal(err)
			}
			claim := w.claim("forged-1", w.shared("forged"))
			controller := w.launch()
			w.reconciles(controller, claim.Name)
			w.event(claim, "InsufficientCapacityError", "NodeClaim forged-1 event: "+overLimit, forge)
			w.delete(claim)
			w.release(claim)
			w.reconciles(controller, claim.Name)
			if r := w.wantPause("forged"); r.Reason != v1alpha1.RefusalVanished {
				t.Errorf("the event is believed: %+v", r)
			}
		})
	}
}

// A user who may create events in the namespace default can write exactly what Karpenter writes.
func TestPlausibleForgedEventHasLimitedEffect(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("little", snapshottest.Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "spot"))
	claim := w.claim("little-1", pool, func(c *karpv1.NodeClaim) { c.Spec.Requirements[2].Values = []string{"spot"} })
	controller := w.launch()
	w.reconciles(controller, claim.Name)
	w.event(claim, "InsufficientCapacityError", "NodeClaim little-1 event: "+overLimit)
	w.event(claim, "SpotInterrupted", "", func(e *corev1.Event) { e.LastTimestamp = metav1.NewTime(w.clock.Now().AddDate(1, 0, 0)) })
	w.reconciles(controller, claim.Name)
	if all := w.refusals("little"); len(all) != 0 {
		t.Errorf("an event about a claim that waits refuses %+v", all)
	}
	w.launched(claim)
	w.reconciles(controller, claim.Name)
	if all := w.refusals("little"); len(all) != 0 {
		t.Errorf("an event about a claim that is launched refuses %+v", all)
	}
	w.delete(claim)
	for range 3 {
		w.clock.Step(time.Minute)
		w.reconciles(controller, claim.Name)
	}
	for _, r := range w.refusals("little") {
		if r.Reason != v1alpha1.RefusalSpotInterrupted || r.Failures != 1 || r.NotBefore.Sub(claim.CreationTimestamp.Time) > 5*time.Minute {
			t.Errorf("an event from the future refuses %+v", r)
		}
	}

	w.clock.SetTime(claim.CreationTimestamp.Time)
	long := w.claim("little-2", pool, func(c *karpv1.NodeClaim) { c.Spec.Requirements[2].Values = []string{"spot"} })
	w.reconciles(controller, long.Name)
	w.event(long, "InsufficientCapacityError", "event: "+strings.Repeat("InsufficientInstanceCapacity: p5.48xlarge (us-west-2a); ", 10_000))
	w.delete(long)
	w.release(long)
	for range 3 {
		w.clock.Step(time.Second)
		w.reconciles(controller, long.Name)
	}
	for _, r := range w.refusals("little") {
		if r.InstanceType != "g4dn.xlarge" || r.Zone != "us-east-1a" || r.CapacityType != "spot" || len(r.Message) > 1024 || r.Failures > 2 {
			t.Errorf("refused: %+v, want only what the claim asked for, once for each claim", r)
		}
	}
}

func TestUnexplainedClaimIsRetriedSoon(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("unexplained-1", w.shared("unexplained"))
	controller := w.launch()
	w.reconciles(controller, claim.Name)
	w.delete(claim)
	w.release(claim)
	w.clock.Step(w.reconciles(controller, claim.Name).RequeueAfter)
	w.reconciles(controller, claim.Name)
	if n := w.counted("karve_launch_refused_total"); n != 1 {
		t.Errorf("%v refusals are counted, want one", n)
	}
	if r := w.wantPause("unexplained"); r.Reason != v1alpha1.RefusalVanished || r.NotBefore.After(w.clock.Now()) {
		t.Errorf("after half a minute: %+v", r)
	}
	w.pods("web", 1)
	w.reconciles(w.provisioning(), "")
	if instanceType, _, _ := records.ShapeOf(&w.wantClaims(1)[0]); instanceType != "g4dn.xlarge" {
		t.Errorf("launched %s", instanceType)
	}
}

// TestLateEventOfInterruptedSpotMachineCounts has Karpenter's event come when the NodeClaim is gone, and another one has its name.
func TestLateEventOfInterruptedSpotMachineCounts(t *testing.T) {
	w := newWorld(t)
	pool, controller := w.shared("gone", snapshottest.Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "spot")), w.launch()
	spot := func() *karpv1.NodeClaim {
		claim := w.claim("gone-1", pool, func(c *karpv1.NodeClaim) { c.Spec.Requirements[2].Values = []string{"spot"} })
		claim.Labels[corev1.LabelInstanceTypeStable], claim.Labels[corev1.LabelTopologyZone] = "g4dn.2xlarge", "us-east-1b"
		claim.Labels[karpv1.CapacityTypeLabelKey] = "spot"
		w.update(claim)
		w.launched(claim)
		return claim
	}
	interrupted := spot()
	w.delete(interrupted)
	w.reconciles(controller, interrupted.Name)
	w.release(interrupted)
	next := spot()
	w.reconciles(controller, next.Name)
	if all := w.refusals("gone"); len(all) != 0 {
		t.Fatalf("a machine that is given back is refused: %+v", all)
	}
	w.event(interrupted, "SpotInterrupted", "Spot interruption warning was triggered")
	w.reconciles(controller, next.Name)
	all := w.refusals("gone")
	if len(all) != 1 || all[0].InstanceType != "g4dn.2xlarge" || all[0].Reason != v1alpha1.RefusalSpotInterrupted || all[0].Failures != 1 {
		t.Errorf("refused: %+v, want what was interrupted", all)
	}
}
