package rollout

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// settled returns a world in which the rollout has adopted the node class and runs v1 on four nodes.
func settled(t *testing.T, architectures ...string) *simulation {
	t.Helper()
	if len(architectures) == 0 {
		architectures = []string{"amd64"}
	}
	w := newSimulation(release(1, architectures...))
	w.architectures = architectures
	w.nodes = slices.Repeat([]string{w.pin[0]}, 4)
	w.run(time.Minute)
	w.want(t, v1alpha1.StepSettled, "v1")
	return w
}

func (w *simulation) want(t *testing.T, step v1alpha1.RolloutStep, current string) {
	t.Helper()
	s := &w.rollout.Status
	if s.Step != step || s.Current == nil || s.Current.Release != current {
		t.Fatalf("at %s it is %s with %v, want %s with %s; conditions %+v", w.now, s.Step, s.Current, step, current, s.Conditions)
	}
	if s.Replaced == nil && !slices.Equal(w.pin, s.Current.IDs()) {
		t.Fatalf("the class is pinned to %v, want %v", w.pin, s.Current.IDs())
	}
}

func (w *simulation) wantCondition(t *testing.T, conditionType string, status metav1.ConditionStatus, reason, says string) {
	t.Helper()
	c := meta.FindStatusCondition(w.rollout.Status.Conditions, conditionType)
	if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, says) {
		t.Errorf("%s is %+v, want %s %s %q", conditionType, c, status, reason, says)
	}
}

func (w *simulation) hasEvent(reason string) bool {
	return slices.ContainsFunc(w.events, func(e Event) bool { return e.Reason == reason })
}

func TestHealthyImageIsTestedSoakedPromotedAndRolledOut(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.publish(release(2, "amd64"), fine)
	w.run(time.Minute)
	w.want(t, v1alpha1.StepTesting, "v1")
	w.run(5 * time.Minute)
	w.want(t, v1alpha1.StepSoaking, "v1")
	w.wantCondition(t, v1alpha1.ConditionProgressing, metav1.ConditionTrue, "Soaking", "is watched until")
	w.run(soak + time.Minute)
	w.want(t, v1alpha1.StepRolling, "v2")
	if left := w.leftovers(); left != nil {
		t.Errorf("objects of the canary are left: %v", left)
	}
	w.wantCondition(t, v1alpha1.ConditionProgressing, metav1.ConditionTrue, "Rolling", "0 of 4 nodes run v2")
	for range 4 {
		w.replace()
		w.run(time.Minute)
	}
	w.want(t, v1alpha1.StepSettled, "v2")
	w.wantCondition(t, v1alpha1.ConditionReady, metav1.ConditionTrue, "Pinned", "")
	w.wantCondition(t, v1alpha1.ConditionDegraded, metav1.ConditionFalse, "AsWanted", "")
	if good := w.rollout.Status.Good; len(good) != 2 || good[0].Release != "v2" || good[1].Release != "v1" {
		t.Errorf("the good images are %v", good)
	}
	for _, reason := range []string{"TakenOver", "ImageFound", "CanaryStarted", "CanaryPassed", "CanarySoaked", "Promoted", "RolledOut"} {
		if !w.hasEvent(reason) {
			t.Errorf("no event %s: %v", reason, w.events)
		}
	}
}

// The verdict comes within the canary's time plus a minute, and no production node gets the image.
func TestImageThatFailsCanaryIsDistrustedAndClassIsUnchanged(t *testing.T) {
	t.Parallel()
	for is, reason := range map[kind]string{neverJoins: "NodeNotJoined", neverExposes: "ReplicasMissing", failsItsCheck: "CheckFailed"} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			w := settled(t)
			w.publish(release(2, "amd64"), is)
			begun := w.now
			for w.rollout.Status.Distrusted == nil && w.now.Sub(begun) < time.Hour {
				result := w.step(false)
				w.now = w.now.Add(max(result.Again, time.Second))
			}
			if took := w.now.Sub(begun); took > trial+time.Minute+seldom {
				t.Errorf("the verdict took %s", took)
			}
			w.run(48 * time.Hour)
			w.want(t, v1alpha1.StepSettled, "v1")
			if d := w.rollout.Status.Distrusted; len(d) != 1 || d[0].Reason != reason || d[0].Image.Release != "v2" {
				t.Errorf("distrusted are %+v, want v2 for %s", d, reason)
			}
			w.wantCondition(t, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "ImageDistrusted", "v2 is not used")
			w.wantCondition(t, v1alpha1.ConditionReady, metav1.ConditionTrue, "Pinned", "")
			if left := w.leftovers(); left != nil {
				t.Errorf("objects of the canary are left: %v", left)
			}
		})
	}
}

func TestImageThatFailsDuringSoakIsDistrusted(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.publish(release(2, "amd64"), ails)
	w.run(3 * time.Hour)
	w.want(t, v1alpha1.StepSettled, "v1")
	if d := w.rollout.Status.Distrusted; len(d) != 1 || d[0].Reason != "CanaryUnwell" || !strings.Contains(d[0].Message, "XID 79") {
		t.Errorf("the distrusted images are %+v", d)
	}
}

func TestImageWhoseNodesFailIsRolledBack(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.publish(release(2, "amd64"), failsLater)
	w.run(soak + 10*time.Minute)
	w.want(t, v1alpha1.StepRolling, "v2")
	w.replace()
	w.run(time.Minute)
	w.want(t, v1alpha1.StepRolling, "v1")
	w.replace()
	w.run(time.Minute)
	w.want(t, v1alpha1.StepSettled, "v1")
	w.run(48 * time.Hour)
	w.want(t, v1alpha1.StepSettled, "v1")
	w.wantCondition(t, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "ImageDistrusted", "never exposed their replicas: node-1")
}

func TestSingleFailedNodeDoesNotRollBackImage(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.publish(release(2, "amd64"), fine)
	w.run(soak + 10*time.Minute)
	w.replace()
	seen := w.see()
	seen.Nodes.Broken = []string{"unlucky"}
	if result := Next(w.rollout, &seen); result.Pin || result.Status.Current.Release != "v2" {
		t.Errorf("v2 was taken back for one node of two: %+v", result.Events)
	}
	seen.Nodes.Broken = []string{"unlucky", "other"}
	if result := Next(w.rollout, &seen); !result.Pin || result.Status.Current.Release != "v1" {
		t.Errorf("v2 was not taken back for two nodes: %+v", result.Status)
	}
}

// The test starts on a Friday at 23:30.
func TestImageIsPromotedOnlyWithinWindows(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.now = time.Date(2026, 3, 6, 23, 30, 0, 0, time.UTC)
	w.publish(release(2, "amd64"), fine)
	w.run(2 * time.Hour)
	w.want(t, v1alpha1.StepWaiting, "v1")
	w.wantCondition(t, v1alpha1.ConditionProgressing, metav1.ConditionTrue, "Waiting", "waits for the window that opens at 2026-03-09T09:00:00Z")
	if left := w.leftovers(); left != nil {
		t.Errorf("a canary that has passed is still there: %v", left)
	}
	w.run(time.Date(2026, 3, 9, 8, 59, 0, 0, time.UTC).Sub(w.now))
	w.want(t, v1alpha1.StepWaiting, "v1")
	w.run(3 * time.Minute)
	w.want(t, v1alpha1.StepRolling, "v2")
}

func TestPromoteNowSkipsSoakAndWindowsButNotCanary(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.now = time.Date(2026, 3, 6, 23, 30, 0, 0, time.UTC)
	w.edit(func(s *v1alpha1.GPUImageRolloutSpec) { s.PromoteNow = "v2" })
	w.publish(release(2, "amd64"), fine)
	w.run(time.Minute)
	w.want(t, v1alpha1.StepTesting, "v1")
	w.run(5 * time.Minute)
	w.want(t, v1alpha1.StepRolling, "v2")
	if !w.hasEvent("CanaryPassed") {
		t.Errorf("events %v", w.events)
	}
}

func TestPausedRolloutStartsNoCanary(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.edit(func(s *v1alpha1.GPUImageRolloutSpec) { s.Promotion = v1alpha1.PromotionPaused })
	w.publish(release(2, "amd64"), fine)
	w.run(48 * time.Hour)
	if w.rollout.Status.Canary != nil || w.hasEvent("CanaryStarted") {
		t.Error("a canary was begun")
	}
	w.edit(func(s *v1alpha1.GPUImageRolloutSpec) { s.Promotion = v1alpha1.PromotionAutomatic })
	w.run(5 * time.Minute)
	w.edit(func(s *v1alpha1.GPUImageRolloutSpec) { s.Promotion = v1alpha1.PromotionPaused })
	w.run(48 * time.Hour)
	w.want(t, v1alpha1.StepWaiting, "v1")
	w.wantCondition(t, v1alpha1.ConditionProgressing, metav1.ConditionTrue, "Waiting", "once spec.promotion is Automatic")
}

func TestRollbackToEarlierReleaseHappensAtOnce(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.publish(release(2, "amd64"), fine)
	w.run(soak + 10*time.Minute)
	w.nodes = nil
	w.run(time.Minute)
	w.want(t, v1alpha1.StepSettled, "v2")
	w.now = time.Date(2026, 3, 6, 23, 30, 0, 0, time.UTC)
	w.events = nil
	w.edit(func(s *v1alpha1.GPUImageRolloutSpec) { s.Image = "v1" })
	w.run(time.Minute)
	w.want(t, v1alpha1.StepSettled, "v1")
	if w.hasEvent("CanaryStarted") || !w.hasEvent("RollingBack") {
		t.Errorf("events %v", w.events)
	}
	w.run(48 * time.Hour)
	w.want(t, v1alpha1.StepSettled, "v1")
}

func TestDistrustedImageIsRetriedWhenSpecNamesIt(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.publish(release(2, "amd64"), failsItsCheck)
	w.run(time.Hour)
	w.want(t, v1alpha1.StepSettled, "v1")
	w.kinds["ami-2amd64"] = fine // For example, the check was wrong.
	w.run(time.Hour)
	w.edit(func(s *v1alpha1.GPUImageRolloutSpec) { s.Image = "v2" })
	w.run(10 * time.Minute)
	w.want(t, v1alpha1.StepSoaking, "v1")
	if len(w.rollout.Status.Distrusted) != 0 {
		t.Errorf("it is still distrusted: %+v", w.rollout.Status.Distrusted)
	}
	w.kinds["ami-2amd64"] = ails
	w.run(48 * time.Hour)
	w.want(t, v1alpha1.StepSettled, "v1")
	if len(w.rollout.Status.Distrusted) != 1 {
		t.Errorf("the image failed again under the same spec and is tried repeatedly: %+v", w.rollout.Status)
	}
}

func TestEachArchitectureHasItsOwnCanary(t *testing.T) {
	t.Parallel()
	w := settled(t, "amd64", "arm64")
	w.publish(release(2, "amd64", "arm64"), fine)
	w.run(soak + 10*time.Minute)
	if c := w.rollout.Status.Canary; c == nil || c.Architecture != "arm64" {
		t.Fatalf("after the first soak the canary is %+v, want one for arm64", c)
	}
	w.want(t, v1alpha1.StepSoaking, "v1")
	w.nodes = nil
	w.run(soak + 10*time.Minute)
	w.want(t, v1alpha1.StepSettled, "v2")
	// A release that lacks an architecture is not a candidate.
	w.publish(release(3, "amd64"), fine)
	w.run(10 * time.Minute)
	w.want(t, v1alpha1.StepSettled, "v2")
	w.wantCondition(t, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "ArchitectureMissing", "v3 has no image for arm64")
}

func TestFailureUnrelatedToImageIsRetriedLater(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		break_, mend func(*simulation)
		says         string
	}{
		"refused launches":  {func(w *simulation) { w.refuses = true }, func(w *simulation) { w.refuses = false }, "could not be launched"},
		"hung launches":     {func(w *simulation) { w.stuck = true }, func(w *simulation) { w.stuck = false }, "was not launched within 15s: CreateError"},
		"an unhealthy pool": {func(w *simulation) { w.poolUnwell = "so are the others" }, func(w *simulation) { w.poolUnwell = ""; w.kinds["ami-2amd64"] = fine }, "so are the others"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := settled(t)
			is := fine
			if strings.Contains(name, "pool") {
				is = neverExposes
			}
			w.publish(release(2, "amd64"), is)
			c.break_(w)
			w.run(90 * time.Minute)
			w.want(t, v1alpha1.StepTesting, "v1")
			w.wantCondition(t, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "CanaryInconclusive", c.says)
			started := 0
			for _, e := range w.events {
				if e.Reason == "CanaryStarted" {
					started++
				}
			}
			if started < 3 || started > 8 {
				t.Errorf("%d canaries in 90 minutes, want a few, further and further apart", started)
			}
			c.mend(w)
			w.run(24 * time.Hour)
			if len(w.rollout.Status.Distrusted) != 0 {
				t.Errorf("the distrusted images are %+v", w.rollout.Status.Distrusted)
			}
			w.want(t, v1alpha1.StepRolling, "v2")
		})
	}
}

func TestCanaryLostDuringSoakIsReplaced(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.publish(release(2, "amd64"), fine)
	w.run(10 * time.Minute)
	w.want(t, v1alpha1.StepSoaking, "v1")
	w.claim = nil // a spot interruption, or deleted by a user
	w.run(30 * time.Second)
	w.want(t, v1alpha1.StepTesting, "v1")
	w.run(10 * time.Minute)
	w.want(t, v1alpha1.StepSoaking, "v1")
	if len(w.rollout.Status.Distrusted) != 0 {
		t.Errorf("the distrusted images are %+v", w.rollout.Status.Distrusted)
	}
}

func TestClassChangedByOthersIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.publish(release(2, "amd64"), fine)
	w.run(10 * time.Minute)
	w.pin = []string{"ami-by-hand"}
	w.run(48 * time.Hour)
	if !slices.Equal(w.pin, []string{"ami-by-hand"}) || w.leftovers() != nil {
		t.Errorf("the class is pinned to %v; left over is %v", w.pin, w.leftovers())
	}
	w.wantCondition(t, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "NodeClassChanged", v1alpha1.ImageRolloutAnnotation)
	w.wantCondition(t, v1alpha1.ConditionReady, metav1.ConditionFalse, "NodeClassChanged", "")
	// The rollout adopts the class as it is once the annotation is gone.
	w.released["by-hand"] = &v1alpha1.GPUImage{Release: "by-hand", Images: []v1alpha1.ArchitectureImage{{Architecture: "amd64", ID: "ami-by-hand"}}}
	w.mark = ""
	w.edit(func(s *v1alpha1.GPUImageRolloutSpec) { s.Image = "by-hand" })
	w.run(time.Minute)
	w.want(t, v1alpha1.StepSettled, "by-hand")
}

func TestOlderRecommendedReleaseIsIgnored(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.publish(release(0, "amd64"), fine)
	w.run(48 * time.Hour)
	w.want(t, v1alpha1.StepSettled, "v1")
	w.wantCondition(t, v1alpha1.ConditionProgressing, metav1.ConditionFalse, "Settled", "v0, which is recommended, is older than v1, which stays")
}

// Releases that come more often than windows open must not keep each other from being promoted. A release that is withdrawn is dropped.
func TestNewerReleaseDoesNotInterruptCandidate(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.publish(release(2, "amd64"), fine)
	w.run(10 * time.Minute)
	w.publish(release(3, "amd64"), fine)
	w.run(10 * time.Minute)
	if c := w.rollout.Status.Candidate; c == nil || c.Image.Release != "v2" {
		t.Fatalf("the candidate is %+v, want v2", c)
	}
	w.newest = w.released["v1"]
	w.run(time.Minute)
	w.want(t, v1alpha1.StepSettled, "v1")
	if w.rollout.Status.Candidate != nil || w.leftovers() != nil {
		t.Errorf("candidate %+v, left over %v", w.rollout.Status.Candidate, w.leftovers())
	}
}

func TestRolloutContinuesDuringAWSOutage(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.publish(release(2, "amd64"), fine)
	w.run(10 * time.Minute)
	w.noAWS = true
	w.run(soak + time.Minute)
	w.want(t, v1alpha1.StepRolling, "v2")
	w.wantCondition(t, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "AWSThrottled", "too often")
	w.edit(func(s *v1alpha1.GPUImageRolloutSpec) { s.Image = "v9" })
	w.nodes = nil
	w.run(time.Minute)
	w.want(t, v1alpha1.StepSettled, "v2")
}

func TestDeletedClassIsCleanedUpAndRecreatedClassIsAdopted(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.publish(release(2, "amd64"), fine)
	w.run(10 * time.Minute)
	w.gone = true
	w.run(time.Minute)
	if w.leftovers() != nil || w.rollout.Status.Step != v1alpha1.StepPending {
		t.Errorf("left over is %v at step %s", w.leftovers(), w.rollout.Status.Step)
	}
	w.wantCondition(t, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "NodeClassNotFound", "")
	w.gone, w.mark, w.nodes = false, "", nil
	w.run(time.Minute)
	w.want(t, v1alpha1.StepTesting, "v1")
}

func TestInvalidWindowIsReported(t *testing.T) {
	t.Parallel()
	for _, window := range []v1alpha1.PromotionWindow{
		{Schedule: "61 9 * * 1-4", Duration: "6h"}, {Schedule: "0 9 * * 1-4", Duration: "6h", TimeZone: "Mars/Olympus"}, {Schedule: "0 9 30 2 *", Duration: "6h"},
	} {
		w := settled(t)
		w.edit(func(s *v1alpha1.GPUImageRolloutSpec) { s.Windows = []v1alpha1.PromotionWindow{window} })
		w.publish(release(2, "amd64"), fine)
		w.run(soak + 10*time.Minute)
		w.want(t, v1alpha1.StepSettled, "v1")
		w.wantCondition(t, v1alpha1.ConditionAccepted, metav1.ConditionFalse, "InvalidWindow", "spec.windows[0]")
	}
}

// once returns a world in which the second release is pinned after the first one ran without faults.
func once(t *testing.T) *simulation {
	t.Helper()
	w := settled(t)
	w.rollout.Spec.Windows = nil
	w.publish(release(2, "amd64"), fine)
	w.run(2 * soak)
	for range 4 {
		w.replace()
	}
	w.run(5 * time.Minute)
	w.want(t, v1alpha1.StepSettled, "v2")
	return w
}

func TestRolloutRollsBackWhenPinnedImageIsDeleted(t *testing.T) {
	t.Parallel()
	w := once(t)
	w.vanish(w.released["v2"])
	w.run(2 * time.Minute)
	w.want(t, v1alpha1.StepRolling, "v1")
	if !w.hasEvent("RollingBack") || !strings.Contains(w.events[len(w.events)-1].Message, "ami-2amd64 does not exist any more") {
		t.Errorf("told %v", w.events)
	}
	// The next release is tested like any other.
	for range 4 {
		w.replace()
	}
	w.publish(release(3, "amd64"), fine)
	w.run(2 * soak)
	w.want(t, v1alpha1.StepRolling, "v3")
}

func TestRolloutWithoutImagePinsNextOneThatPassesCheck(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.now = w.now.Add(5 * 24 * time.Hour) // It is a Saturday. The next window opens in two days.
	w.vanish(w.released["v1"])
	w.run(2 * time.Minute)
	w.want(t, v1alpha1.StepSettled, "v1")
	for _, c := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionDegraded} {
		status := map[string]metav1.ConditionStatus{v1alpha1.ConditionReady: metav1.ConditionFalse, v1alpha1.ConditionDegraded: metav1.ConditionTrue}[c]
		w.wantCondition(t, c, status, "ImageNotFound", "v1, whose image ami-1amd64 does not exist any more")
	}
	w.publish(release(2, "amd64"), neverExposes)
	w.run(time.Hour)
	w.want(t, v1alpha1.StepSettled, "v1")
	w.wantCondition(t, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "ImageNotFound", "v2 is not used")
	w.publish(release(3, "amd64"), fine)
	w.run(joinTime + 3*time.Minute)
	w.want(t, v1alpha1.StepRolling, "v3")
	w.wantCondition(t, v1alpha1.ConditionReady, metav1.ConditionTrue, "Pinned", "")
}

func TestOlderRecommendedImageReplacesDeletedOne(t *testing.T) {
	t.Parallel()
	w := newSimulation(release(2, "amd64"))
	w.run(time.Minute)
	w.vanish(w.released["v2"])
	w.publish(release(1, "amd64"), fine)
	w.run(10 * time.Minute)
	w.want(t, v1alpha1.StepSettled, "v1") // The release has no nodes.
}

func TestRolloutDoesNotRollBackToDeletedImage(t *testing.T) {
	t.Parallel()
	w := once(t)
	w.vanish(w.released["v1"])
	w.edit(func(s *v1alpha1.GPUImageRolloutSpec) { s.Image = "v1" })
	w.run(10 * time.Minute)
	w.want(t, v1alpha1.StepSettled, "v2")
	w.wantCondition(t, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "ImageNotFound", "v1 cannot be used: its image ami-1amd64 does not exist any more")

	failing := settled(t)
	failing.rollout.Spec.Windows = nil
	failing.publish(release(2, "amd64"), failsLater)
	failing.run(soak + 6*time.Minute)
	failing.want(t, v1alpha1.StepRolling, "v2")
	failing.vanish(failing.released["v1"])
	failing.replace()
	failing.run(10 * time.Minute)
	failing.want(t, v1alpha1.StepRolling, "v2")
	failing.wantCondition(t, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "NodesFailing", "ran well before do not exist any more")
}

func TestPausedOrPinnedRolloutReportsDeletedImage(t *testing.T) {
	t.Parallel()
	for says, edit := range map[string]func(*v1alpha1.GPUImageRolloutSpec){
		"set spec.promotion to Automatic": func(s *v1alpha1.GPUImageRolloutSpec) { s.Promotion = v1alpha1.PromotionPaused },
		"name another one there":          func(s *v1alpha1.GPUImageRolloutSpec) { s.Image = "v2" },
	} {
		w := once(t)
		w.edit(edit)
		w.vanish(w.released["v2"])
		w.run(10 * time.Minute)
		w.want(t, v1alpha1.StepSettled, "v2")
		w.wantCondition(t, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "ImageNotFound", says)
	}
}
