package rollout

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/plain"
)

const (
	// often is the interval while a canary starts or nodes are replaced.
	often = 5 * time.Second
	// seldom is the interval otherwise. Node classes are not watched.
	seldom = time.Minute

	maxGood       = 5
	maxDistrusted = 20
	// maxMessage is the longest message that the status allows.
	maxMessage = 1000
)

// decision is what a call of Next knows and has decided so far.
type decision struct {
	rollout *v1alpha1.GPUImageRollout
	seen    *Seen
	status  *v1alpha1.GPUImageRolloutStatus
	result  Result

	windows      windows
	soak, canary time.Duration
	// refused is why the node class is not changed.
	refused *Blocked
	// fault is what prevents new images, for the condition Degraded.
	fault *Fault
	// unready is why the node class is not pinned as desired.
	unready *Fault
	// lost is set if the pinned image no longer exists, so that nothing can be launched with it.
	lost *Fault
	// note is the current activity or what it waits for, for the condition Progressing.
	note string
}

func (d *decision) newest() bool { return d.rollout.Spec.Image == v1alpha1.ImageNewest }

func (d *decision) paused() bool { return isPaused(d.rollout) }

func isPaused(r *v1alpha1.GPUImageRollout) bool { return r.Spec.Promotion == v1alpha1.PromotionPaused }

// abandon stops the test of an image. The canary's objects are deleted because the status no longer names it.
func (d *decision) abandon() {
	d.status.Canary, d.status.Candidate = nil, nil
	if slices.Contains([]v1alpha1.RolloutStep{v1alpha1.StepTesting, v1alpha1.StepSoaking, v1alpha1.StepWaiting}, d.status.Step) {
		d.step(v1alpha1.StepSettled)
	}
}

// pin decides to pin the node class to another image.
func (d *decision) pin(image *v1alpha1.GPUImage) {
	d.status.Replaced, d.status.Current = d.status.Current, image.DeepCopy()
	d.status.FailedNodes = nil
	d.step(v1alpha1.StepRolling)
	d.result.Pin, d.result.Again = true, often
}

// lastGood returns the latest image that ran well, still exists and is not the current one. It is nil if there is none.
func (d *decision) lastGood() *v1alpha1.GPUImage {
	for i := range d.status.Good {
		if good := &d.status.Good[i]; !good.Same(d.status.Current) && d.distrusted(good) == nil && d.missing(good) == "" {
			return good
		}
	}
	return nil
}

// missing returns the ID of an image of the release that no longer exists, or "" if all exist.
func (d *decision) missing(image *v1alpha1.GPUImage) string {
	for _, id := range image.IDs() {
		if slices.Contains(d.seen.Missing, id) {
			return id
		}
	}
	return ""
}

// settle accepts the current image as good.
func (d *decision) settle() {
	good := []v1alpha1.GPUImage{*d.status.Current.DeepCopy()}
	for i := range d.status.Good {
		if !d.status.Good[i].Same(d.status.Current) && len(good) < maxGood {
			good = append(good, d.status.Good[i])
		}
	}
	d.status.Good, d.status.FailedNodes = good, nil
	d.step(v1alpha1.StepSettled)
}

// distrust records that an image failed, so that the rollout does not test it again on its own.
func (d *decision) distrust(image *v1alpha1.GPUImage, why Fault) {
	entry := v1alpha1.DistrustedImage{
		Image: *image.DeepCopy(), Reason: why.Reason, Message: plain.Shorten(why.Message, maxMessage), Since: metav1.NewTime(d.seen.Now), Generation: d.rollout.Generation,
	}
	list := slices.DeleteFunc(d.status.Distrusted, func(e v1alpha1.DistrustedImage) bool { return e.Image.Same(image) })
	d.status.Distrusted = append([]v1alpha1.DistrustedImage{entry}, list[:min(len(list), maxDistrusted-1)]...)
	d.fault = &Fault{"ImageDistrusted", fmt.Sprintf("%s is not used: %s", image.Release, why.Message)}
	d.record(true, "ImageDistrusted", d.fault.Message)
}

// distrusted returns why the image, or one for one of its architectures, is distrusted. It is nil if it is not.
func (d *decision) distrusted(image *v1alpha1.GPUImage) *v1alpha1.DistrustedImage {
	for i := range d.status.Distrusted {
		if overlap(&d.status.Distrusted[i].Image, image) {
			return &d.status.Distrusted[i]
		}
	}
	return nil
}

// overlap reports whether two images have the same image for an architecture.
func overlap(a, b *v1alpha1.GPUImage) bool {
	ids := b.IDs()
	return slices.ContainsFunc(a.IDs(), func(id string) bool { return slices.Contains(ids, id) })
}

func (d *decision) step(step v1alpha1.RolloutStep) {
	if d.status.Step != step {
		now := metav1.NewTime(d.seen.Now)
		d.status.Step, d.status.StepSince = step, &now
	}
}

func (d *decision) record(warning bool, reason, message string) {
	d.result.Events = append(d.result.Events, Event{warning, reason, message})
}

func (d *decision) className() string { return d.classKind() + " " + d.rollout.Spec.NodeClassRef.Name }

func (d *decision) classKind() string { return d.rollout.Spec.NodeClassRef.Kind }

func (d *decision) by(t time.Time) {
	d.result.Again = min(d.result.Again, max(t.Sub(d.seen.Now), 0))
}

func containsImage(images []v1alpha1.GPUImage, image *v1alpha1.GPUImage) bool {
	return slices.ContainsFunc(images, func(i v1alpha1.GPUImage) bool { return i.Same(image) })
}

func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
