package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// stockPod creates a pool of Karpenter and a pod that needs a machine of it. It returns how long the pod was pending.
func (s *scene) stockPod(within time.Duration) time.Duration {
	s.t.Helper()
	s.pool(poolOptions{stock: true, taintKey: "none", consolidateAfter: "0s", requirements: map[string]string{"karpenter.k8s.aws/instance-family": "m5"}})
	s.pod("cpu", func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}}
	})
	return s.until(within, "Karpenter's own pod runs", func() (bool, string) { return s.running() == 1, strings.Join(s.events("Pod", "cpu"), "\n") })
}

// TestHungLaunchDelaysNoOtherLaunch has its own cluster, because its fault would block all other tests: a launch that fails for another reason than capacity.
// Karpenter retries it, and launches nothing else until it succeeds.
func TestHungLaunchDelaysNoOtherLaunch(t *testing.T) {
	cluster.Require(t)
	t.Parallel()
	w := ownWorld(t, cluster.Config{}, karve.Options{})
	w.AWS().Refuse(aws.Refusal{Type: cheapest, Code: "InvalidParameterValue"})
	cpu, bad, good := w.scene(t, "cpu"), w.scene(t, "bad"), w.scene(t, "good")
	bad.class(v1alpha1.IdleNever)
	bad.pool(poolOptions{requirements: map[string]string{corev1.LabelInstanceTypeStable: cheapest}})
	bad.deploy("inference", 25)
	bad.until(enough, "Karve has asked for machines", func() (bool, string) { return len(bad.claims()) > 0, "" })

	// From here on, Karpenter's launches are blocked.
	t.Logf("Karpenter's own pod ran after %s", cpu.stockPod(90*time.Second))

	bad.untilGone(bad.name)
	asked := bad.claims()
	for _, c := range asked {
		t.Logf("%s was there for %s", c.name, c.gone.Sub(c.first))
	}
	// The error does not say what is wrong, so launches pause and no type is refused.
	bad.untilCondition(bad.name, v1alpha1.ConditionLaunchHealthy, "False", "LaunchFailed", "all launches until")
	bad.untilEvent("GPUNodeClass", bad.name, "LaunchesPaused", "LaunchFailed")
	pod := bad.pods()[0]
	bad.untilEvent("Pod", pod.Name, "OfferingsUnavailable", "paused")
	bad.stays(10*time.Second, "no claim during the pause", func() (bool, string) { return len(bad.claims()) == len(asked), lines(bad.claims()) })
	if refused := bad.refused(cheapest); len(refused) > 0 {
		t.Errorf("the type is recorded as refused: %+v", refused)
	}

	bad.delete(&karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: bad.name}})
	good.class(v1alpha1.IdleNever)
	good.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-size": "2xlarge"}})
	good.deploy("inference", 10)
	waited := good.until(2*time.Minute, "pods of another pool run", func() (bool, string) { return good.running() == 10, fmt.Sprint(good.running()) })
	t.Logf("Pods of another pool ran after %s", waited)
	if n := len(bad.claims()); n != len(asked) {
		t.Errorf("%d claims of a pool that is gone, want no more than %d:\n%s", n, len(asked), lines(bad.claims()))
	}
}

// refused returns the refusals of a type that the class records.
func (s *scene) refused(instanceType string) []v1alpha1.RefusedOffering {
	s.t.Helper()
	class := &v1alpha1.GPUNodeClass{}
	if err := s.seen.Get(s.t.Context(), client.ObjectKey{Name: s.name}, class); err != nil {
		s.t.Fatal(err)
	}
	return slices.DeleteFunc(class.Status.RefusedOfferings, func(r v1alpha1.RefusedOffering) bool { return r.InstanceType != instanceType })
}

// wantRefused waits until the class records refusals of the type that have not expired.
func (s *scene) wantRefused(instanceType string) {
	s.t.Helper()
	s.until(enough, "GPUNodeClass "+s.name+" remembers the refusal of "+instanceType, func() (bool, string) {
		refused := s.refused(instanceType)
		open := slices.ContainsFunc(refused, func(r v1alpha1.RefusedOffering) bool { return time.Until(r.NotBefore.Time) <= 0 || r.Message == "" })
		return len(refused) > 0 && !open, fmt.Sprintf("%+v", refused)
	})
}

// TestPlanAvoidsRefusedType has forty pods whose cheapest type is refused in every zone for a while. No other test uses that type.
func TestPlanAvoidsRefusedType(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	const scarce, next = "g5.xlarge", "g5.2xlarge"
	refusal := aws.Refusal{Type: scarce}
	w.AWS().Refuse(refusal)
	t.Cleanup(func() { w.AWS().Allow(refusal) })
	s, cpu := w.scene(t, "refused"), w.scene(t, "stock")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-family": "g5"}})
	s.untilCondition(s.name, "Ready", "True")
	s.deploy("inference", 40)
	s.until(enough, "the launch is refused", func() (bool, string) {
		return slices.ContainsFunc(s.claims(), func(c claim) bool { return !c.deleting.IsZero() }), lines(s.claims())
	})
	waited := cpu.stockPod(enough)
	t.Logf("Karpenter's own pod ran after %s", waited)
	if waited > time.Minute {
		t.Errorf("our launch delayed Karpenter's own pod by %s, want a minute at most", waited)
	}
	s.untilRunning(40)
	refused := s.claims()[0].deleting
	launched := alive(s.claims())
	took := launched[len(launched)-1].first.Sub(refused)
	t.Logf("The next best plan was launched %s after the refusal:\n%s", took, lines(s.claims()))
	if took > time.Minute { // Seconds if the other tests do not keep the computer busy.
		t.Errorf("the next best plan was launched %s after the refusal", took)
	}
	other := func(c claim) bool { return c.instanceType != next }
	if len(launched) != 4 || slices.ContainsFunc(launched, other) {
		t.Errorf("want four %s:\n%s", next, lines(launched))
	}
	s.wantRefused(scarce)
	s.untilCondition(s.name, v1alpha1.ConditionLaunchHealthy, "False", scarce)

	// The type is available again, and is requested again once the backoff is over.
	w.AWS().Allow(refusal)
	s.deploy("more", 10)
	s.untilRunning(50)
	// The latest NotBefore counts: a refusal that no event has explained yet expires sooner.
	var until time.Time
	for _, r := range s.refused(scarce) {
		if r.NotBefore.After(until) {
			until = r.NotBefore.Time
		}
	}
	if early := s.claims()[len(s.claims())-1]; time.Now().Before(until) && early.instanceType != next {
		t.Errorf("%s was requested before %s", &early, until.Format(clock))
	}
	select {
	case <-time.After(time.Until(until)):
	case <-t.Context().Done():
	}
	s.deploy("later", 10)
	s.untilRunning(60)
	last := s.claims()[len(s.claims())-1]
	t.Logf("After the backoff, which ended %s, it was launched: %s", until.Format(clock), &last)
	if last.instanceType != scarce || !last.deleting.IsZero() || last.first.Before(until) {
		t.Errorf("the last claim is %s, want a %s after %s", &last, scarce, until.Format(clock))
	}

	anotherZone(t, w)
	overTheLimit(t, w)
	spotTakenBack(t, w)
}

// anotherZone refuses a type in the chosen zone. The claim allows the other zones, so no new plan is needed.
func anotherZone(t *testing.T, w *world) {
	t.Helper()
	s := w.scene(t, "zones")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{requirements: map[string]string{corev1.LabelInstanceTypeStable: "g5.xlarge", "karpenter.k8s.aws/instance-family": ""}})
	s.untilCondition(s.name, "Ready", "True")
	w.AWS().Refuse(aws.Refusal{Type: "g5.xlarge", Zone: "us-east-1a"})
	s.deploy("inference", 5)
	s.untilRunning(5)
	if zone := s.nodes(s.name)[0].Labels[corev1.LabelTopologyZone]; len(s.claims()) != 1 || zone == "us-east-1a" {
		t.Errorf("the node is in %s, after the claims\n%s\nwant one, that got its machine in another zone", zone, lines(s.claims()))
	}
	if refused := s.refused("g5.xlarge"); len(refused) != 0 {
		t.Errorf("it is recorded as refused: %+v", refused)
	}
}

// overTheLimit reaches the account's vCPU limit. Karve then tries no type under the same limit that is as large.
func overTheLimit(t *testing.T, w *world) {
	t.Helper()
	s := w.scene(t, "limit")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-family": "g6"}})
	s.untilCondition(s.name, "Ready", "True")
	w.AWS().Refuse(aws.Refusal{Type: "g6.xlarge", Code: "VcpuLimitExceeded"})
	s.deploy("inference", 5)
	s.untilCondition(s.name, v1alpha1.ConditionLaunchHealthy, "False", v1alpha1.RefusalVCPULimit, "g6.48xlarge")
	s.untilEvent("Pod", s.pods()[0].Name, "OfferingsUnavailable", "vCPU")
	s.stays(5*time.Second, "no claim of another type", func() (bool, string) {
		return !slices.ContainsFunc(s.claims(), func(c claim) bool { return c.instanceType != "g6.xlarge" }), lines(s.claims())
	})
}

// spotTakenBack launches a spot machine from a claim with some choice, and interrupts it.
func spotTakenBack(t *testing.T, w *world) {
	t.Helper()
	s := w.scene(t, "spot")
	s.class(v1alpha1.IdleNever, func(spec *v1alpha1.GPUNodeClassSpec) { spec.Launch.MaxPremiumPercent = new(int32(100)) })
	s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-family": "g4dn", karpv1.CapacityTypeLabelKey: "spot"}})
	s.untilCondition(s.name, "Ready", "True")
	s.deploy("inference", 5)
	s.untilRunning(5)
	var list karpv1.NodeClaimList
	s.list(&list, client.MatchingLabels{karpv1.NodePoolLabelKey: s.name})
	made := list.Items[0]
	types, zones, _ := records.RequestedOfferings(&made)
	t.Logf("The claim leaves %v in %v, and got %s in %s", types, zones, made.Labels[corev1.LabelInstanceTypeStable], made.Labels[corev1.LabelTopologyZone])
	if len(types)*len(zones) < 2 {
		t.Errorf("the claim leaves %v in %v, want a choice", types, zones)
	}
	id := made.Status.ProviderID[strings.LastIndex(made.Status.ProviderID, "/")+1:]
	if err := w.AWS().Interrupt(id, aws.SpotInterruption); err != nil {
		t.Fatal(err)
	}
	s.until(enough, "the interrupted offering is left alone", func() (bool, string) {
		refused := s.refused(made.Labels[corev1.LabelInstanceTypeStable])
		return slices.ContainsFunc(refused, func(r v1alpha1.RefusedOffering) bool {
			return r.Reason == v1alpha1.RefusalSpotInterrupted && r.Zone == made.Labels[corev1.LabelTopologyZone] && r.CapacityType == "spot"
		}), fmt.Sprintf("%+v", refused)
	})
}
