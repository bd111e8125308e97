package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// target returns the image that should run, or nil if there is none or it must not be used.
func (d *decision) target() *v1alpha1.GPUImage {
	wanted := d.seen.Wanted
	if wanted == nil {
		d.fault = d.seen.WantedFault
		return nil
	}
	if wanted.Same(d.status.Current) {
		return wanted
	}
	if id := d.missing(wanted); id != "" {
		d.fault = &Fault{"ImageNotFound", fmt.Sprintf("%s cannot be used: its image %s does not exist any more; name another in spec.image", wanted.Release, id)}
		return nil
	}
	if !d.newest() {
		d.trustAgain(wanted)
	}
	if why := d.distrusted(wanted); why != nil {
		d.fault = &Fault{"ImageDistrusted", fmt.Sprintf("%s is not used: %s", wanted.Release, why.Message)}
		return nil
	}
	if d.newest() && d.lost == nil && older(wanted, d.status.Current) {
		d.note = fmt.Sprintf("%s, which is recommended, is older than %s, which stays: name it in spec.image to go back to it", wanted.Release, d.status.Current.Release)
		return nil
	}
	for _, architecture := range d.seen.Architectures {
		if !slices.ContainsFunc(wanted.Images, func(i v1alpha1.ArchitectureImage) bool { return i.Architecture == architecture }) {
			d.fault = &Fault{"ArchitectureMissing", fmt.Sprintf("%s has no image for %s, which NodePools of %s can launch: restrict them with a requirement for kubernetes.io/arch, or name another image in spec.image",
				wanted.Release, architecture, d.className())}
			return nil
		}
	}
	return wanted
}

// trustAgain removes an image from the distrusted ones if the spec names it and was edited after the image failed.
func (d *decision) trustAgain(image *v1alpha1.GPUImage) {
	d.status.Distrusted = slices.DeleteFunc(d.status.Distrusted, func(e v1alpha1.DistrustedImage) bool {
		return e.Generation < d.rollout.Generation && overlap(&e.Image, image)
	})
}

// older reports whether image a was created before image b. It is false if unknown.
func older(a, b *v1alpha1.GPUImage) bool {
	return a != nil && b != nil && a.Created != nil && b.Created != nil && a.Created.Before(b.Created)
}

// choose sets the candidate.
func (d *decision) choose(target *v1alpha1.GPUImage) {
	if c := d.status.Candidate; c != nil && d.missing(&c.Image) == "" && d.keeps(c, target) {
		return
	}
	d.abandon()
	if target != nil && !target.Same(d.status.Current) {
		d.status.Candidate = &v1alpha1.CandidateImage{Image: *target.DeepCopy()}
		d.step(v1alpha1.StepTesting)
		d.record(false, "ImageFound", target.Release+" is to be tried")
	}
}

func (d *decision) keeps(c *v1alpha1.CandidateImage, target *v1alpha1.GPUImage) bool {
	switch {
	case d.seen.Wanted == nil:
		return d.newest() || c.Image.Named(d.rollout.Spec.Image) // The cloud does not answer now, and the candidate is known.
	case target.Same(&c.Image):
		return true
	case target == nil || target.Same(d.status.Current) || !d.newest():
		return false
	}
	// A candidate whose test has begun is tested to the end, even if there is a newer image. Otherwise frequent releases could prevent each other from being
	// promoted.
	return older(&c.Image, target) && (d.status.Canary != nil || len(c.Passed) > 0)
}

// try takes the next step for the candidate.
func (d *decision) try() {
	d.complain()
	switch next := d.untested(); {
	case d.status.Candidate == nil:
		d.step(v1alpha1.StepSettled)
		if d.note == "" {
			d.note = d.status.Current.Release + " is pinned, and no other image is to be tried"
		}
	case d.status.Canary != nil:
		d.result.Again = often
		d.watch()
	case next != nil:
		d.begin(next)
	default:
		d.promote()
	}
}

// complain reports a fault if several canaries in a row were inconclusive.
func (d *decision) complain() {
	if c := d.status.Candidate; c != nil && c.Attempts > 1 {
		d.fault = &Fault{"CanaryInconclusive", fmt.Sprintf("%d canary nodes told nothing about %s: %s", c.Attempts, c.Image.Release, c.Message)}
	}
}

// untested returns an image of the candidate that no canary has tested yet, or nil if there is none.
func (d *decision) untested() *v1alpha1.ArchitectureImage {
	c := d.status.Candidate
	if c == nil {
		return nil
	}
	for i := range c.Image.Images {
		image := &c.Image.Images[i]
		if slices.Contains(d.seen.Architectures, image.Architecture) && !slices.Contains(c.Passed, image.ID) && !slices.Contains(d.status.Current.IDs(), image.ID) {
			return image
		}
	}
	return nil
}

// begin decides to start a canary if nothing prevents it.
func (d *decision) begin(image *v1alpha1.ArchitectureImage) {
	c, now := d.status.Candidate, d.seen.Now
	d.step(v1alpha1.StepTesting)
	noPlace, none := d.seen.NoPlace[image.Architecture]
	switch {
	case d.paused():
		d.note = c.Image.Release + " is there and is tried once spec.promotion is Automatic"
	case d.seen.Leftovers || d.rollout.Status.Canary != nil:
		d.note, d.result.Again = "waiting until the former canary node is gone", often
	case d.rollout.Status.Candidate == nil || !d.rollout.Status.Candidate.Image.Same(&c.Image):
		d.note, d.result.Again = c.Image.Release+" is to be tried", 0 // NoPlace is only known for the candidate of the stored status.
	case c.NotBefore != nil && now.Before(c.NotBefore.Time):
		d.note = fmt.Sprintf("trying %s again at %s: %s", c.Image.Release, timestamp(c.NotBefore.Time), c.Message)
		d.by(c.NotBefore.Time)
	case none:
		d.note, d.fault = fmt.Sprintf("%s cannot be tried: %s", c.Image.Release, noPlace.Message), &noPlace
	default:
		d.status.Canary = &v1alpha1.CanaryNode{
			Name: canaryName(d.rollout, image.ID, c.Attempts), Image: image.ID, Architecture: image.Architecture, Started: metav1.NewTime(now),
		}
		d.note, d.result.Again = fmt.Sprintf("trying %s (%s) on a canary node", c.Image.Release, image.ID), often
		d.record(false, "CanaryStarted", d.note)
	}
}

// canaryName returns a name that is short enough for a label value and differs for each canary of a candidate.
func canaryName(r *v1alpha1.GPUImageRollout, image string, attempt int32) string {
	sum := sha256.Sum256([]byte(string(r.UID) + "\x00" + image + "\x00" + strconv.Itoa(int(attempt))))
	return "karve-canary-" + hex.EncodeToString(sum[:])[:12]
}

// promote pins the candidate if that is allowed.
func (d *decision) promote() {
	c, now := d.status.Candidate, d.seen.Now
	d.step(v1alpha1.StepWaiting)
	switch {
	case d.paused():
		d.note = c.Image.Release + " has passed and is promoted once spec.promotion is Automatic"
	case !d.windows.open(now) && !c.Image.Named(d.rollout.Spec.PromoteNow) && d.lost == nil:
		opens := d.windows.next(now)
		d.note = fmt.Sprintf("%s has passed and waits for the window that opens at %s; spec.promoteNow: %s promotes it at once", c.Image.Release, timestamp(opens), c.Image.Release)
		d.by(opens)
	default:
		image := c.Image
		d.status.Candidate = nil
		d.pin(&image)
		d.note = "promoted " + image.Release
		d.record(false, "Promoted", fmt.Sprintf("%s is pinned to %s", d.className(), image.Release))
	}
}
