package launching

import (
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

const (
	// firstWindow is how many NodeClaims may be unlaunched at the same time before the cloud has shown that it answers. TCP begins with as many segments
	// (RFC 6928).
	firstWindow = 10
	// perLaunch is how much each launch enlarges the window. With a cloud that answers within two seconds, a third round of 90 launches then follows
	// rounds of 10 and 30, instead of one of 40.
	perLaunch = 2
	// shownFor is how long a launch counts for the window. Launches from before an idle period say little about the cloud (RFC 7661 says the same of TCP).
	// It is longer than a normal launch, so that a burst counts its own launches.
	shownFor = time.Minute
)

// Window returns how many NodeClaims may be unlaunched at the same time: ten, plus two for each that was launched in the last minute, up to most. So
// while the cloud works, the window triples with each round of answers, like TCP's slow start, which doubles it. At most twice as many launches are at
// risk as have just succeeded.
//
// A launch that reports an error resets the window to ten. If launches take longer than [cloud.FailingGrace], only those within that time count: the
// window adapts to a slow cloud or Karpenter, and returns to ten as soon as nothing has been launched for that time.
//
// It depends only on the NodeClaims, so a restarted controller has the same window. All pools share one window, because a NodeClaim that does not
// launch stops Karpenter for all of them.
func Window(machines []records.Machine, now time.Time, most int) int {
	since := now.Add(-shownFor)
	for i := range machines {
		claim := machines[i].Claim
		end := launchedAt(claim)
		switch {
		case Reported(claim) != nil:
			since = now
			continue
		case end.IsZero():
			end = now
		}
		late := end.Sub(claim.CreationTimestamp.Time) >= cloud.FailingGrace
		if recent := now.Add(-cloud.FailingGrace); late && now.Sub(end) < shownFor && recent.After(since) {
			since = recent
		}
	}
	window := firstWindow
	for i := range machines {
		if at := launchedAt(machines[i].Claim); at.After(since) {
			window += perLaunch
		}
	}
	return min(window, most)
}

// launchedAt returns when the cloud launched the machine of a NodeClaim, or the zero time if it has not.
func launchedAt(claim *karpv1.NodeClaim) time.Time {
	c := facts.Condition(claim.Status.Conditions, karpv1.ConditionTypeLaunched)
	if !c.IsTrue() {
		return time.Time{}
	}
	return c.LastTransitionTime.Time
}
