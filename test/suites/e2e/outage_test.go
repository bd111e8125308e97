package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// failing reports whether Karpenter reports that the launch of a claim fails.
func (s *scene) failing() bool {
	var list karpv1.NodeClaimList
	s.list(&list, client.MatchingLabels{karpv1.NodePoolLabelKey: s.name})
	return slices.ContainsFunc(list.Items, func(claim karpv1.NodeClaim) bool {
		c := facts.Condition(claim.Status.Conditions, karpv1.ConditionTypeLaunched)
		return c != nil && c.Reason == v1alpha1.RefusalLaunchFailed
	})
}

// TestOutageDoesNotChangeWhatIsLaunched has its own cluster, because nothing can be launched while EC2 is unreachable. Pods come while EC2 closes
// connections; later, Karpenter's calls hang. After that, the machines launched must be the same as without the outage.
func TestOutageDoesNotChangeWhatIsLaunched(t *testing.T) {
	cluster.Long(t)
	cluster.Require(t)
	t.Parallel()
	w := ownWorld(t, cluster.Config{}, karve.Options{})
	s := w.scene(t, "outage")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{})
	s.untilCondition(s.name, "Ready", "True")

	w.AWS().Cut("EC2")
	began := time.Now()
	s.deploy("inference", 25)
	s.until(enough, "a launch fails", func() (bool, string) { return s.failing(), lines(s.claims()) })
	w.AWS().Heal()
	w.AWS().Hang("EC2")
	t.Logf("EC2 hangs after %s", time.Since(began))
	s.untilCondition(s.name, v1alpha1.ConditionLaunchHealthy, "False", v1alpha1.RefusalLaunchFailed, "all launches until")
	t.Logf("The condition told of the pause after %s", time.Since(began))
	s.untilEvent("GPUNodeClass", s.name, "LaunchesPaused", v1alpha1.RefusalLaunchFailed)
	s.untilEvent("Pod", s.pods()[0].Name, "OfferingsUnavailable", "paused")
	s.stays(20*time.Second-time.Since(began), "no more claims during the outage", func() (bool, string) { return len(s.claims()) == 3, lines(s.claims()) })
	w.AWS().Heal()
	t.Logf("EC2 answered again after %s, having failed\n%s", time.Since(began), lines(s.claims()))

	s.untilRunning(25)
	t.Logf("All pods ran after %s\n%s", time.Since(began), lines(s.claims()))
	s.wantClaims(alive(s.claims()), 3, "on-demand", 3*526_000)
	if other := func(c claim) bool { return c.instanceType != cheapest }; slices.ContainsFunc(s.claims(), other) {
		t.Errorf("another type was asked for:\n%s", lines(s.claims()))
	}
	var bought []string
	for _, i := range w.AWS().Instances() {
		if i.State == aws.Pending || i.State == aws.Running {
			bought = append(bought, i.Type)
		}
	}
	if !slices.Equal(bought, []string{cheapest, cheapest, cheapest}) {
		t.Errorf("the cloud runs %v, want three %s", bought, cheapest)
	}
	s.untilCondition(s.name, v1alpha1.ConditionLaunchHealthy, "True")
	s.until(enough, "the class remembers nothing", func() (bool, string) {
		all := append(s.refused(v1alpha1.Any), s.refused(cheapest)...)
		return len(all) == 0, fmt.Sprintf("%+v", all)
	})
}
