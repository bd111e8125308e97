package rollout

import (
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// operate runs an operation as a user would: the API server counts the generation if the spec changed.
func (w *simulation) operate(t *testing.T, do func(*v1alpha1.GPUImageRollout) (string, error), want string) {
	t.Helper()
	r := w.rollout.DeepCopy()
	words, err := do(r)
	if err != nil || !strings.Contains(words, want) {
		t.Errorf("%q, %v; want %q", words, err, want)
	}
	w.edit(func(s *v1alpha1.GPUImageRolloutSpec) { *s = r.Spec })
}

// refuses checks that an operation is refused with the words.
func (w *simulation) refusesTo(t *testing.T, do func(*v1alpha1.GPUImageRollout) (string, error), want string) {
	t.Helper()
	r := w.rollout.DeepCopy()
	if words, err := do(r); err == nil || !strings.Contains(err.Error(), want) || words != "" {
		t.Errorf("%q, %v; want an error with %q", words, err, want)
	}
	if r.Spec.Promotion != w.rollout.Spec.Promotion || r.Spec.Image != w.rollout.Spec.Image || r.Spec.PromoteNow != w.rollout.Spec.PromoteNow {
		t.Error("it was changed nevertheless")
	}
}

func undo(to string) func(*v1alpha1.GPUImageRollout) (string, error) {
	return func(r *v1alpha1.GPUImageRollout) (string, error) { return Undo(r, to) }
}

func TestARolloutIsPausedResumedPromotedAndUndone(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.now = time.Date(2026, 3, 6, 23, 30, 0, 0, time.UTC) // outside of windows
	w.refusesTo(t, Resume, "GPUImageRollout gpu is not paused")
	w.refusesTo(t, Promote, "has nothing to promote: no image is being tried (v1 is pinned, and no other image is to be tried)")
	w.refusesTo(t, undo(""), "has no image to go back to, because no other than v1 ran well here: name one with --to")
	w.refusesTo(t, undo("Newest"), "spec.image of GPUImageRollout gpu is Newest already")

	w.publish(release(2, "amd64"), fine)
	w.run(10 * time.Minute)
	w.want(t, v1alpha1.StepSoaking, "v1")
	w.operate(t, Pause, "paused")
	w.refusesTo(t, Pause, "is paused already")
	w.refusesTo(t, Promote, "is paused: resume it first")
	w.refusesTo(t, undo(""), "is paused: resume it first")
	w.run(soak)
	w.want(t, v1alpha1.StepWaiting, "v1")
	w.operate(t, Resume, "resumed")
	w.run(time.Minute)
	w.want(t, v1alpha1.StepWaiting, "v1")

	w.operate(t, Promote, "v2 is promoted now")
	w.refusesTo(t, Promote, "promotes v2 already")
	w.run(time.Minute)
	w.want(t, v1alpha1.StepRolling, "v2")

	w.operate(t, undo(""), "goes back from v2 to v1 at once, and stays there; --to Newest follows new images again")
	w.refusesTo(t, undo(""), "spec.image of GPUImageRollout gpu is v1 already")
	w.run(time.Minute)
	w.want(t, v1alpha1.StepSettled, "v1")
	w.operate(t, undo("Newest"), "tried and promoted again")
	w.operate(t, undo("v1"), "stays at v1")
	w.operate(t, undo("v2"), "v2 did not run here before, so a canary node tries it first")
}

func TestAnImageIsPromotedWhileItIsTested(t *testing.T) {
	t.Parallel()
	w := settled(t)
	w.now = time.Date(2026, 3, 6, 23, 30, 0, 0, time.UTC)
	w.publish(release(2, "amd64"), fine)
	w.run(time.Minute)
	w.want(t, v1alpha1.StepTesting, "v1")
	w.operate(t, Promote, "v2 is promoted as soon as its canary has passed the GPU check")
	w.run(10 * time.Minute)
	w.want(t, v1alpha1.StepRolling, "v2")
}

func TestARolloutThatIsNewCannotBeOperated(t *testing.T) {
	t.Parallel()
	w := newSimulation(release(1, "amd64"))
	w.refusesTo(t, Promote, "has not taken over EC2NodeClass gpu yet (the controller has not seen it yet; it needs imageRollouts.enabled=true in the chart)")
	w.refusesTo(t, undo(""), "has not taken over EC2NodeClass gpu yet")
	if o := Summarize(w.rollout); o.Step != "" || o.Since != nil || len(o.Stages) > 0 || o.Current != "" {
		t.Errorf("%+v", o)
	}
}

// states returns the states of the stages, such as "done now later".
func states(o *Summary) string {
	var all []string
	for _, s := range o.Stages {
		all = append(all, string(s.Step)+" "+s.State)
	}
	return strings.Join(all, ", ")
}

func TestSummaryTellsTheStagesOfARollout(t *testing.T) {
	t.Parallel()
	w := settled(t)
	check := func(current, candidate, want, waits string) {
		t.Helper()
		o := Summarize(w.rollout)
		if o.Current != current || o.Candidate != candidate || states(&o) != want || !strings.Contains(o.WaitsFor, waits) || o.Step != w.rollout.Status.Step {
			t.Errorf("%s, %s, stages %q, waits for %q; want %s, %s, %q, %q", o.Current, o.Candidate, states(&o), o.WaitsFor, current, candidate, want, waits)
		}
	}
	check("v1", "", "", "v1 is pinned")
	w.publish(release(2, "amd64"), failsLater)
	w.run(time.Minute)
	check("v1", "v2", "Testing now, Soaking later, Waiting later, Rolling later", "waiting until")
	w.run(10 * time.Minute)
	check("v1", "v2", "Testing done, Soaking now, Waiting later, Rolling later", "v2 runs well on node")
	w.edit(func(s *v1alpha1.GPUImageRolloutSpec) { s.Soak = "2h" })
	check("v1", "v2", "Testing done, Soaking now, Waiting later, Rolling later", "the controller has not seen the last change yet")
	w.nodes = []string{"ami-1amd64", "ami-1amd64", "ami-1amd64"}
	w.run(2*time.Hour + 10*time.Minute)
	check("v2", "", "Testing done, Soaking done, Waiting done, Rolling now", "0 of 3 nodes run v2")
	w.replace()
	w.step(false)
	check("v1", "", "Rolling now", "going back to v1")
	o := Summarize(w.rollout)
	if len(o.Distrusted) != 1 || o.Distrusted[0].Release != "v2" || !strings.Contains(o.Problem, "v2") {
		t.Errorf("%+v", o)
	}
}
