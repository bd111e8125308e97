package launch

import (
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/snapshot"
)

const (
	// firstWindow is how many NodeClaims may be unlaunched at the same time before the cloud has shown that it answers. TCP begins with as many segments
	// (RFC 6928).
	firstWindow = 10
	// perLaunch is how many more may be unlaunched for each launch. On a cloud that answers within two seconds, a third round of 90 launches then follows the 10 and 30
	// before, instead of one of 40.
	perLaunch = 2
	// shownFor is how long a launch counts for the window. Launches from before an idle time say little about the cloud (RFC 7661 says the same of TCP). It
	// is longer than a launch that is not a sign of trouble takes, so that a burst finds its own launches.
	shownFor = time.Minute
)

// Window returns how many NodeClaims may be unlaunched at the same time: ten, and two more for each that was launched in the last minute, but at most the given
// number. So the window triples with each answer of a cloud that works, like TCP's slow start, which doubles it. No more launches are at stake than twice those that have
// just succeeded.
//
// A launch that reports an error makes it ten again. If launches take longer than [cloud.FailingGrace], only those of that time count: the window follows a cloud,
// or a Karpenter, that is slow, and is ten again as soon as neither has launched anything for that time.
//
// It depends only on the NodeClaims, so a restarted controller has the same window. It is one window for all pools, because a NodeClaim that does not launch
// stops Karpenter for all of them.
func Window(machines []snapshot.Machine, now time.Time, most int) int {
	since := now.Add(-shownFor)
	for i := range machines {
		claim := machines[i].Claim
		end := launchedAt(claim)
		switch {
		case reported(claim) != nil:
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

// launchedAt returns when the cloud launched the machine of a NodeClaim, and the zero time if it has not.
func launchedAt(claim *karpv1.NodeClaim) time.Time {
	c := snapshot.Condition(claim.Status.Conditions, karpv1.ConditionTypeLaunched)
	if !c.IsTrue() {
		return time.Time{}
	}
	return c.LastTransitionTime.Time
}
