package rollout

import (
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// TestOnlyTestedImagesArePromoted runs rollouts with random images, faults, edits and crashes.
func TestOnlyTestedImagesArePromoted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, laws)
}

func FuzzRollout(f *testing.F) { f.Fuzz(rapid.MakeFuzz(laws)) }

// laws checks the properties that hold at every step of every rollout.
func laws(t *rapid.T) {
	architectures := rapid.SampledFrom([][]string{{"amd64"}, {"arm64"}, {"amd64", "arm64"}}).Draw(t, "architectures")
	w := newSimulation(release(1, architectures...))
	w.architectures = architectures
	for range rapid.IntRange(0, 4).Draw(t, "nodes") {
		w.nodes = append(w.nodes, w.pin[0])
	}
	w.now = w.now.Add(time.Duration(rapid.IntRange(0, 167).Draw(t, "hour of the week")) * time.Hour)
	if rapid.IntRange(0, 3).Draw(t, "any time") == 0 {
		w.rollout.Spec.Windows = nil
	}
	witness := &witness{world: w, t: t, well: map[string]time.Time{}, owed: map[string]bool{}}
	releases := 1
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		switch rapid.IntRange(0, 30).Draw(t, "happens") {
		case 0:
			releases++
			w.publish(release(releases, architectures...), kind(rapid.IntRange(0, int(kinds)-1).Draw(t, "kind")))
		case 1:
			w.edit(func(s *v1alpha1.GPUImageRolloutSpec) {
				s.Promotion = rapid.SampledFrom([]v1alpha1.Promotion{v1alpha1.PromotionAutomatic, v1alpha1.PromotionPaused}).Draw(t, "promotion")
			})
		case 2:
			w.edit(func(s *v1alpha1.GPUImageRolloutSpec) {
				s.PromoteNow = rapid.SampledFrom([]string{"", w.newest.Release}).Draw(t, "promote now")
			})
		case 3:
			w.edit(func(s *v1alpha1.GPUImageRolloutSpec) {
				s.Image = rapid.SampledFrom([]string{v1alpha1.ImageNewest, v1alpha1.ImageNewest, w.newest.Release, "v1", "v2", "v99"}).Draw(t, "image")
			})
		case 4:
			w.noAWS = !w.noAWS
		case 5:
			w.refuses = !w.refuses
		case 6:
			w.stuck = !w.stuck
		case 7:
			w.noPlace = !w.noPlace
		case 8:
			if w.claim != nil { // Another client deleted the NodeClaim.
				w.claim, w.going = nil, w.now.Add(drainTime)
			}
		case 9:
			w.gone = !w.gone
			if w.gone {
				w.mark = ""
			}
		case 10, 11, 12:
			w.replace()
		case 13:
			w.newest = w.released["v1"] // All later releases are withdrawn.
		case 18, 19:
			if w.mark != w.rollout.Name {
				continue // Before the rollout adopts the class, it is not responsible for the images of the class.
			}
			w.vanish(w.released[rapid.SampledFrom(slices.Sorted(maps.Keys(w.released))).Draw(t, "vanishes")])
		case 14, 15, 16, 17:
			releases++
			w.publish(release(releases, architectures...), fine)
			witness.run(2*time.Hour, rapid.SliceOfN(rapid.Bool(), 8, 8).Draw(t, "crashes"))
		}
		witness.step(rapid.IntRange(0, 9).Draw(t, "crash") == 0)
		w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int{1, 1, 5, 30, 60, 300, 1800, 20000}).Draw(t, "seconds")) * time.Second)
	}
	// Once all faults are repaired and no new images arrive, the rollout ends and leaves no objects behind.
	w.noAWS, w.refuses, w.stuck, w.noPlace, w.gone = false, false, false, false, false
	if w.mark != w.rollout.Name {
		clear(w.vanished)
	}
	if !w.exists(w.newest) || w.rollout.Status.Current != nil && !w.exists(w.rollout.Status.Current) {
		w.publish(release(releases+1, architectures...), fine)
	}
	w.edit(func(s *v1alpha1.GPUImageRolloutSpec) {
		s.Promotion, s.Image = v1alpha1.PromotionAutomatic, v1alpha1.ImageNewest
	})
	for range 3 {
		witness.run(8*time.Hour, nil)
		if w.rollout.Status.Step == v1alpha1.StepWaiting {
			for !inWindow(w.rollout.Spec.Windows, w.now) {
				w.now = w.now.Add(time.Hour)
			}
		}
	}
	s := &w.rollout.Status
	if s.Step != v1alpha1.StepSettled || len(w.leftovers()) > 0 || s.Canary != nil || s.Candidate != nil {
		t.Fatalf("the rollout does not end: step %s, objects left: %v: %+v", s.Step, w.leftovers(), s)
	}
	for _, c := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionReady} {
		if !meta.IsStatusConditionTrue(s.Conditions, c) {
			t.Fatalf("%s is not True at the end: %+v", c, s.Conditions)
		}
	}
	for _, id := range w.pin {
		if w.vanished[id] {
			t.Fatalf("the class ends pinned to %s, which does not exist", id)
		}
	}
	for id := range witness.owed {
		if slices.Contains(w.pin, id) {
			t.Fatalf("the class ends pinned to %s, which failed on nodes", id)
		}
	}
}

// witness observes the rollout independently and checks its actions.
type witness struct {
	world *simulation
	t     *rapid.T
	// well is when the current canary of an image passed its check.
	well map[string]time.Time
	// owed are images that failed on nodes and were rolled back because of it.
	owed map[string]bool
}

// run steps as often as the decisions request. It crashes at those first changes of the step for which crashes is true.
func (w *witness) run(d time.Duration, crashes []bool) {
	for until := w.world.now.Add(d); w.world.now.Before(until); {
		before := w.world.rollout.Status.Step
		crash := len(crashes) > 0 && crashes[0]
		again := w.step(crash)
		if before != w.world.rollout.Status.Step && len(crashes) > 0 {
			crashes = crashes[1:]
		}
		w.world.now = w.world.now.Add(max(again, 20*time.Second))
		w.world.replace()
	}
}

func (w *witness) step(crash bool) time.Duration {
	world := w.world
	before := *world.rollout.Status.DeepCopy()
	pinned := slices.Clone(world.pin)
	distrusted := map[string]int64{}
	for _, d := range before.Distrusted {
		for _, id := range d.Image.IDs() {
			distrusted[id] = d.Generation
		}
	}
	seen := world.see()
	result := world.step(crash)
	after := &world.rollout.Status
	if len(after.Distrusted) > len(before.Distrusted) && before.Step == v1alpha1.StepRolling {
		for _, id := range after.Distrusted[0].Image.IDs() {
			w.owed[id] = true
		}
	}
	if world.rollout.Spec.Promotion == v1alpha1.PromotionPaused && before.Replaced == nil && !slices.Equal(after.Current.IDs(), before.Current.IDs()) && !world.gone {
		w.t.Fatalf("a paused rollout decided on %v after %v", after.Current, before.Current)
	}
	if world.twice {
		w.t.Fatal("two canary machines at once")
	}
	w.follow(&seen, before.Canary)
	if !slices.Equal(pinned, world.pin) {
		w.judge(&before, pinned, distrusted)
	}
	return result.Again
}

// follow records the canary's health independently of the rollout.
func (w *witness) follow(seen *Seen, before *v1alpha1.CanaryNode) {
	if before != nil && seen.Canary.Claimed && seen.Canary.Exposed == seen.Canary.Promised && seen.Canary.Check == CheckPassed && seen.Canary.Image == before.Image {
		if _, known := w.well[before.Name]; !known {
			w.well[before.Name] = seen.Now
		}
	}
}

// judge checks that the class may have its current pin.
func (w *witness) judge(before *v1alpha1.GPUImageRolloutStatus, pinned []string, distrusted map[string]int64) {
	world := w.world
	current := world.rollout.Status.Current
	fallback := func() bool {
		return slices.ContainsFunc(before.Good, func(g v1alpha1.GPUImage) bool { return g.Same(current) })
	}
	if !world.noAWS && before.Replaced == nil && !w.noneMissing(current) {
		w.t.Fatalf("%v is pinned, which does not exist", current)
	}
	for _, id := range world.pin {
		if generation, bad := distrusted[id]; bad && (generation == world.rollout.Generation || world.rollout.Spec.Image != current.Release) && !slices.Contains(pinned, id) {
			w.t.Fatalf("%s is distrusted and pinned", id)
		}
	}
	if fallback() || before.Replaced != nil || before.Current.Same(current) {
		return // It is a rollback, or a change that was decided and checked before a crash.
	}
	lost := !w.noneMissing(before.Current)
	now := current.Named(world.rollout.Spec.PromoteNow) || lost
	if !now && !inWindow(world.rollout.Spec.Windows, world.now) {
		w.t.Fatalf("promoted at %s, outside the windows", world.now)
	}
	for _, id := range world.pin {
		if slices.Contains(pinned, id) {
			continue
		}
		switch is := world.kinds[id]; is {
		case neverJoins, neverExposes, failsItsCheck:
			w.t.Fatalf("promoted %s, which a canary cannot have passed", id)
		case ails:
			if !now {
				w.t.Fatalf("promoted %s, which failed while it soaked", id)
			}
		case fine, failsLater, kinds:
		}
		longest := time.Duration(-1)
		for name, since := range w.well {
			if name == canaryNameFor(world, id, name) {
				longest = max(longest, world.now.Sub(since))
			}
		}
		if longest < 0 || longest < soak && !now {
			w.t.Fatalf("promoted %s, whose canary was healthy for only %s", id, longest)
		}
	}
}

// noneMissing reports whether AWS has all images of a release.
func (w *witness) noneMissing(image *v1alpha1.GPUImage) bool {
	return image == nil || w.world.exists(image)
}

// canaryNameFor returns name if it is the name of a canary of the image.
func canaryNameFor(w *simulation, id, name string) string {
	for attempt := range int32(200) {
		if canaryName(w.rollout, id, attempt) == name {
			return name
		}
	}
	return ""
}

// inWindow implements the windows of these tests independently: Monday to Thursday, 09:00 to 15:00 UTC.
func inWindow(windows []v1alpha1.PromotionWindow, now time.Time) bool {
	return len(windows) == 0 || now.Weekday() >= time.Monday && now.Weekday() <= time.Thursday && now.Hour() >= 9 && now.Hour() < 15
}
