package rollout

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/plain"
)

const (
	// launchLimit is how long a canary's NodeClaim may wait for its machine. It is as short as for other NodeClaims, because Karpenter waits for it.
	launchLimit = time.Minute
	// launchErrorLimit is how long a NodeClaim that reports a launch error may wait.
	launchErrorLimit = 15 * time.Second
	// classLimit is how long the canary's node class may take to become ready.
	classLimit = 2 * time.Minute
	// unwellLimit is how long a canary node may be unhealthy during the soak. An agent restarts in less time.
	unwellLimit = 2 * time.Minute

	firstBackoff = time.Minute
	maxBackoff   = time.Hour
)

// watch follows the canary node: its node class, its NodeClaim, its replicas, its check and its soak.
func (d *decision) watch() {
	canary, seen := d.status.Canary, &d.seen.Canary
	switch {
	case canary.Requested == nil:
		d.request()
	case !seen.Claimed:
		d.gone()
	case seen.Launched == nil:
		d.awaitLaunch()
	case seen.Image != "" && seen.Image != canary.Image:
		d.inconclusive(fmt.Sprintf("the canary node runs %s and not %s", seen.Image, canary.Image))
	default:
		canary.Launched, canary.Node = &metav1.Time{Time: *seen.Launched}, seen.Node
		if canary.Passed == nil {
			d.test()
		}
		if d.status.Canary != nil && canary.Passed != nil {
			d.soakOn()
		}
	}
}

// request requests the NodeClaim once the canary's node class is ready.
func (d *decision) request() {
	canary := d.status.Canary
	limit := canary.Started.Add(classLimit)
	switch {
	case d.seen.Canary.ClassReady:
		canary.Requested = &metav1.Time{Time: d.seen.Now}
		d.result.Launch = true
		d.note = "launching the canary node"
	case d.seen.Now.Before(limit):
		d.note = fmt.Sprintf("waiting until %s for %s %s of the canary node to be ready", timestamp(limit), d.classKind(), canary.Name)
		d.by(limit)
	default:
		d.inconclusive(fmt.Sprintf("%s %s of the canary node was not ready within %s: %s", d.classKind(), canary.Name, classLimit, d.seen.Canary.ClassMessage))
	}
}

// gone handles a canary whose NodeClaim was deleted, by Karpenter or by a person.
func (d *decision) gone() {
	if d.status.Canary.Launched == nil {
		d.inconclusive("the canary node could not be launched; the events of NodeClaim " + d.status.Canary.Name + " say why")
		return
	}
	d.inconclusive("the canary node was taken away before it was through; the events of NodeClaim " + d.status.Canary.Name + " say why")
}

func (d *decision) awaitLaunch() {
	canary, seen := d.status.Canary, &d.seen.Canary
	limit := canary.Requested.Add(launchLimit)
	if seen.LaunchError != "" {
		limit = canary.Requested.Add(launchErrorLimit)
	}
	if d.seen.Now.Before(limit) {
		d.note = fmt.Sprintf("waiting until %s for the canary node to be launched", timestamp(limit))
		d.by(limit)
		return
	}
	why := "see that Karpenter runs"
	if seen.LaunchError != "" {
		why = seen.LaunchError
	}
	d.inconclusive(fmt.Sprintf("the canary node was not launched within %s: %s", limit.Sub(canary.Requested.Time), why))
}

// test waits for the replicas and the check. If they do not arrive in time, the image has failed.
func (d *decision) test() {
	canary, seen, now := d.status.Canary, &d.seen.Canary, d.seen.Now
	exposes := seen.Node != "" && seen.Promised > 0 && seen.Exposed >= seen.Promised
	limit := canary.Launched.Add(d.canary)
	switch {
	case exposes && seen.Check == CheckPassed:
		canary.Passed = &metav1.Time{Time: now}
		d.step(v1alpha1.StepSoaking)
		d.record(false, "CanaryPassed", fmt.Sprintf("node %s with %s exposes %d %s and its GPU check has passed", seen.Node, canary.Image, seen.Exposed, seen.Resource))
	case seen.Check == CheckUnstartable:
		d.inconclusive("the GPU check cannot be started, see spec.check: " + seen.CheckMessage)
	case seen.Check == CheckFailed:
		d.rejectCandidate(Fault{"CheckFailed", fmt.Sprintf("the GPU check on node %s failed: %s", seen.Node, seen.CheckMessage)})
	case now.Before(limit):
		d.result.Check = exposes
		d.note = fmt.Sprintf("waiting until %s for %s", timestamp(limit), d.awaited(exposes))
		d.by(limit)
	case seen.Node == "":
		d.rejectCandidate(Fault{"NodeNotJoined", fmt.Sprintf("the canary node did not join the cluster within %s", d.canary)})
	case !exposes:
		d.rejectCandidate(Fault{"ReplicasMissing", fmt.Sprintf("node %s exposes %d of %d %s after %s", seen.Node, seen.Exposed, seen.Promised, seen.Resource, d.canary)})
	default:
		d.rejectCandidate(Fault{"CheckTimedOut", fmt.Sprintf("the GPU check on node %s has not passed after %s: %s", seen.Node, d.canary, seen.CheckMessage)})
	}
}

func (d *decision) awaited(exposes bool) string {
	switch seen := &d.seen.Canary; {
	case seen.Node == "":
		return "the canary node to join the cluster"
	case !exposes:
		return fmt.Sprintf("node %s to expose its replicas, %d of %d so far", seen.Node, seen.Exposed, seen.Promised)
	default:
		return "the GPU check on node " + seen.Node
	}
}

// soakOn watches the node that has passed its check until the soak ends.
func (d *decision) soakOn() {
	canary, seen, now := d.status.Canary, &d.seen.Canary, d.seen.Now
	unwell := seen.Unwell
	if unwell == "" && seen.Exposed < seen.Promised {
		unwell = fmt.Sprintf("it exposes %d of %d %s", seen.Exposed, seen.Promised, seen.Resource)
	}
	if unwell != "" {
		if canary.UnwellSince == nil {
			canary.UnwellSince = &metav1.Time{Time: now}
		}
		limit := canary.UnwellSince.Add(unwellLimit)
		d.note = fmt.Sprintf("node %s is not well, waiting until %s: %s", seen.Node, timestamp(limit), unwell)
		d.by(limit)
		if !now.Before(limit) {
			d.rejectCandidate(Fault{"CanaryUnwell", fmt.Sprintf("node %s was unhealthy for %s during its test: %s", canary.Node, unwellLimit, unwell)})
		}
		return
	}
	canary.UnwellSince = nil
	c := d.status.Candidate
	until := canary.Passed.Add(d.soak)
	if now.Before(until) && !c.Image.Named(d.rollout.Spec.PromoteNow) && d.lost == nil {
		d.note = fmt.Sprintf("%s runs well on node %s, which is watched until %s", c.Image.Release, seen.Node, timestamp(until))
		d.by(until)
		return
	}
	c.Passed = append(c.Passed, canary.Image)
	d.status.Canary = nil
	c.Attempts, c.NotBefore, c.Message = 0, nil, ""
	d.record(false, "CanarySoaked", fmt.Sprintf("%s (%s) ran well for %s", c.Image.Release, canary.Image, now.Sub(canary.Passed.Time)))
	d.try()
}

// rejectCandidate rejects the candidate. If other machines of the pool also fail, the canary is inconclusive instead.
func (d *decision) rejectCandidate(why Fault) {
	if d.seen.Canary.PoolUnwell != "" {
		d.inconclusive(why.Message + ", and " + d.seen.Canary.PoolUnwell)
		return
	}
	canary, candidate := d.status.Canary, d.status.Candidate.Image
	d.abandon()
	// An image that the candidate shares with the current one, for another architecture, is not distrusted.
	d.distrust(&v1alpha1.GPUImage{
		Release: candidate.Release, Created: candidate.Created,
		Images: []v1alpha1.ArchitectureImage{{Architecture: canary.Architecture, ID: canary.Image}},
	}, why)
}

// inconclusive makes the rollout test the image again later, on another canary node.
func (d *decision) inconclusive(why string) {
	c := d.status.Candidate
	d.status.Canary = nil
	c.Attempts++
	backoff := lifecycle.Backoff(firstBackoff, maxBackoff, int(c.Attempts))
	c.NotBefore, c.Message = &metav1.Time{Time: d.seen.Now.Add(backoff)}, plain.Shorten(why, maxMessage)
	d.step(v1alpha1.StepTesting)
	d.note = fmt.Sprintf("trying %s again at %s: %s", c.Image.Release, timestamp(c.NotBefore.Time), why)
	d.record(true, "CanaryInconclusive", d.note)
	d.complain()
}
