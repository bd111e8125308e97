package rollout

import (
	"fmt"
	"slices"
	"strings"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// Pause sets spec.promotion to Paused and returns a description of the effect. It returns an error if the rollout is already paused.
func Pause(r *v1alpha1.GPUImageRollout) (string, error) {
	if isPaused(r) {
		return "", fmt.Errorf("GPUImageRollout %s is paused already", r.Name)
	}
	r.Spec.Promotion = v1alpha1.PromotionPaused
	return "paused: no image is tried or promoted, and no node is replaced for its image", nil
}

// Resume sets spec.promotion to Automatic and returns a description of the effect. It returns an error if the rollout is not paused.
func Resume(r *v1alpha1.GPUImageRollout) (string, error) {
	if !isPaused(r) {
		return "", fmt.Errorf("GPUImageRollout %s is not paused", r.Name)
	}
	r.Spec.Promotion = v1alpha1.PromotionAutomatic
	return "resumed", nil
}

// Promote sets spec.promoteNow to the candidate and returns a description of the effect. It returns an error if there is nothing to promote.
func Promote(r *v1alpha1.GPUImageRollout) (string, error) {
	if err := canChange(r); err != nil {
		return "", err
	}
	c := r.Status.Candidate
	if c == nil {
		return "", fmt.Errorf("GPUImageRollout %s has nothing to promote: no image is being tried%s", r.Name, reasonText(r))
	}
	release := c.Image.Release
	if c.Image.Named(r.Spec.PromoteNow) {
		return "", fmt.Errorf("GPUImageRollout %s promotes %s already, as soon as its canary has passed the GPU check%s", r.Name, release, reasonText(r))
	}
	r.Spec.PromoteNow = release
	if r.Status.Step == v1alpha1.StepTesting {
		return release + " is promoted as soon as its canary has passed the GPU check, without a soak and outside windows", nil
	}
	return release + " is promoted now, without the rest of the soak and outside windows", nil
}

// Undo sets spec.image to the release to, and returns a description of the effect. If to is empty, it is the latest other image that ran well. It
// returns an error if there is no such image, or if spec.image is already to.
func Undo(r *v1alpha1.GPUImageRollout, to string) (string, error) {
	if err := canChange(r); err != nil {
		return "", err
	}
	current := r.Status.Current.Release
	if to == "" {
		good := formerImage(r)
		if good == nil {
			return "", fmt.Errorf("GPUImageRollout %s has no image to go back to, because no other than %s ran well here: name one with --to", r.Name, current)
		}
		to = good.Release
	}
	if r.Spec.Image == to {
		return "", fmt.Errorf("spec.image of GPUImageRollout %s is %s already%s", r.Name, to, reasonText(r))
	}
	r.Spec.Image = to
	switch {
	case to == v1alpha1.ImageNewest:
		return "the newest image that is recommended is tried and promoted again", nil
	case r.Status.Current.Named(to):
		return "stays at " + to, nil
	case slices.ContainsFunc(r.Status.Good, func(i v1alpha1.GPUImage) bool { return i.Named(to) }):
		return fmt.Sprintf("goes back from %s to %s at once, and stays there; --to %s follows new images again", current, to, v1alpha1.ImageNewest), nil
	default:
		return to + " did not run here before, so a canary node tries it first", nil
	}
}

// formerImage returns the latest image that ran well, is not the current one and is not distrusted. It is nil if there is none.
func formerImage(r *v1alpha1.GPUImageRollout) *v1alpha1.GPUImage {
	d := &decision{rollout: r, status: &r.Status, seen: &Seen{}}
	return d.lastGood()
}

// canChange returns an error if the controller would not change the image now, whatever the spec is.
func canChange(r *v1alpha1.GPUImageRollout) error {
	switch {
	case isPaused(r):
		return fmt.Errorf("GPUImageRollout %s is paused: resume it first", r.Name)
	case r.Status.Current == nil:
		return fmt.Errorf("GPUImageRollout %s has not taken over %s %s yet%s", r.Name, r.Spec.NodeClassRef.Kind, r.Spec.NodeClassRef.Name, reasonText(r))
	}
	return nil
}

// reasonText returns what the rollout waits for, as the end of a sentence.
func reasonText(r *v1alpha1.GPUImageRollout) string {
	if waits := waitsFor(r); waits != "" {
		return " (" + strings.TrimSuffix(waits, ".") + ")"
	}
	return ""
}
