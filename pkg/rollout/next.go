package rollout

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/words"
)

const (
	// often is the interval while a canary starts or nodes are replaced.
	often = 5 * time.Second
	// seldom is the interval otherwise. Node classes are not watched.
	seldom = time.Minute

	maxGood       = 5
	maxDistrusted = 20
	maxFailed     = 10
	// maxNamed is how many nodes a message names.
	maxNamed = 5
	// maxMessage is the longest message that the status allows.
	maxMessage = 1000
	// tolerated is how many nodes may fail with a promoted image, if others work, before it is rolled back.
	tolerated = 1
)

// Next returns what to do for a rollout. It does not change its arguments.
func Next(r *v1alpha1.GPUImageRollout, seen *Seen) Result {
	d := &decision{rollout: r, seen: seen, status: r.Status.DeepCopy(), result: Result{Again: seldom}}
	d.decide()
	d.report()
	d.result.Status = *d.status
	return d.result
}

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

func (d *decision) paused() bool { return d.rollout.Spec.Promotion == v1alpha1.PromotionPaused }

func (d *decision) decide() {
	d.status.ObservedGeneration = d.rollout.Generation
	d.status.Nodes, d.status.NodesUpdated = d.seen.Nodes.Total, d.seen.Nodes.Updated
	if d.refused = d.blocked(); d.refused != nil {
		d.block(d.refused)
		return
	}
	if d.status.Current == nil || d.seen.Class.Rollout != d.rollout.Name {
		d.adoptClass()
		return
	}
	if !d.classUnchanged() {
		d.abandon()
		return
	}
	if d.status.Replaced != nil {
		return // The pin that was decided before comes first.
	}
	d.markImageMissing()
	target := d.target()
	if d.recover() || d.goBack(target) {
		return
	}
	if d.status.Step == v1alpha1.StepRolling && d.lost == nil && !d.roll() {
		return
	}
	d.choose(target)
	d.try()
}

// blocked returns why nothing can be done, which includes invalid values in the spec. It is nil if the rollout can proceed.
func (d *decision) blocked() *Blocked {
	if d.seen.Blocked != nil {
		return d.seen.Blocked
	}
	var err error
	if d.windows, err = parseWindows(d.rollout.Spec.Windows); err != nil {
		return &Blocked{Fault: Fault{"InvalidWindow", err.Error() + ": correct it, or remove the window"}, Spec: true}
	}
	if d.soak, err = time.ParseDuration(d.rollout.Spec.Soak); err != nil {
		return &Blocked{Fault: Fault{"InvalidSoak", "spec.soak: " + err.Error()}, Spec: true}
	}
	if d.canary, err = time.ParseDuration(d.rollout.Spec.CanaryTimeout); err != nil {
		return &Blocked{Fault: Fault{"InvalidCanaryTimeout", "spec.canaryTimeout: " + err.Error()}, Spec: true}
	}
	return nil
}

func (d *decision) block(b *Blocked) {
	d.fault, d.unready, d.note = &b.Fault, &b.Fault, b.Message
	d.abandon()
	if b.Gone {
		// A node class that is created later with the same name is a different one, and is taken over again.
		d.status.Current, d.status.Replaced, d.status.Good, d.status.FailedNodes = nil, nil, nil, nil
	}
	if d.status.Current == nil {
		d.step(v1alpha1.StepPending)
	}
}

// abandon stops the test of an image. The canary's objects are deleted because the status no longer names it.
func (d *decision) abandon() {
	d.status.Canary, d.status.Candidate = nil, nil
	if slices.Contains([]v1alpha1.RolloutStep{v1alpha1.StepTesting, v1alpha1.StepSoaking, v1alpha1.StepWaiting}, d.status.Step) {
		d.step(v1alpha1.StepSettled)
	}
}

// adoptClass pins the node class to the image that it resolves to, so that from now on only the rollout changes its image.
func (d *decision) adoptClass() {
	d.abandon()
	d.step(v1alpha1.StepPending)
	resolves := d.seen.Class.Resolves
	switch {
	case d.paused():
		d.note = "paused: " + d.className() + " is taken over once spec.promotion is Automatic"
		d.unready = &Fault{"Paused", d.note}
		return
	case resolves == nil:
		d.fault = d.seen.Class.ResolvesFault
		if d.fault == nil {
			d.fault = &Fault{"NodeClassNotReady", d.className() + " resolves to no image yet"}
		}
		d.unready, d.note = d.fault, d.fault.Message
		return
	}
	d.status.Current, d.status.Replaced, d.status.FailedNodes = resolves.DeepCopy(), nil, nil
	d.settle()
	d.result.Pin, d.result.Again = true, often
	d.record(false, "TakenOver", fmt.Sprintf("%s is pinned to %s, which it resolved to", d.className(), resolves.Release))
}

// classUnchanged reports whether the node class is as the rollout left it. If a pin was decided but not carried out, it requests the pin.
func (d *decision) classUnchanged() bool {
	pin := d.seen.Class.Pin
	switch {
	case slices.Equal(pin, d.status.Current.IDs()):
		d.status.Replaced = nil
		return true
	case d.status.Replaced != nil && slices.Equal(pin, d.status.Replaced.IDs()):
		d.result.Pin, d.result.Again = true, often
		d.note = "pinning " + d.className() + " to " + d.status.Current.Release
		d.unready = &Fault{"Pinning", d.note}
		return true
	}
	d.fault = &Fault{"NodeClassChanged", fmt.Sprintf(
		"%s of %s was changed by somebody else: set it to the ids of status.current again, or remove the annotation %s from it to have it taken over as it is",
		d.seen.Class.Field, d.className(), v1alpha1.ImageRolloutAnnotation)}
	d.unready, d.note = d.fault, d.fault.Message
	return false
}

// goBack pins an image that spec.image names and that has run well before. It reports whether it did.
func (d *decision) goBack(target *v1alpha1.GPUImage) bool {
	if target == nil || d.newest() || target.Same(d.status.Current) || d.paused() || !containsImage(d.status.Good, target) {
		return false
	}
	d.abandon()
	d.pin(target)
	d.note = "going back to " + target.Release + ", as spec.image says"
	d.record(false, "RollingBack", d.note)
	return true
}

// pin decides to pin the node class to another image.
func (d *decision) pin(image *v1alpha1.GPUImage) {
	d.status.Replaced, d.status.Current = d.status.Current, image.DeepCopy()
	d.status.FailedNodes = nil
	d.step(v1alpha1.StepRolling)
	d.result.Pin, d.result.Again = true, often
}

// roll follows the replacement of nodes. It reports whether all of them run the current image.
func (d *decision) roll() bool {
	d.result.Again = often
	nodes := &d.seen.Nodes
	for _, name := range nodes.Broken {
		if !slices.Contains(d.status.FailedNodes, name) && len(d.status.FailedNodes) < maxFailed {
			d.status.FailedNodes = append(d.status.FailedNodes, name)
		}
	}
	current := d.status.Current
	d.note = fmt.Sprintf("%d of %d nodes run %s; the others are replaced as their NodePools' budgets allow", nodes.Updated, nodes.Total, current.Release)
	if d.paused() {
		d.note = fmt.Sprintf("%d of %d nodes run %s; the others stay while spec.promotion is Paused", nodes.Updated, nodes.Total, current.Release)
	}
	failed := len(d.status.FailedNodes)
	if failed > tolerated || failed > 0 && nodes.Working == 0 {
		d.rollBackFailing()
		return false
	}
	if nodes.Updated < nodes.Total || nodes.Awaiting > 0 {
		return false
	}
	d.settle()
	d.result.Again = seldom
	d.note = ""
	d.record(false, "RolledOut", fmt.Sprintf("all %d nodes run %s", nodes.Total, current.Release))
	return true
}

// rollBackFailing returns to the last good image if nodes with a promoted one fail.
func (d *decision) rollBackFailing() {
	current := d.status.Current
	failing := Fault{"NodesFailing", fmt.Sprintf("nodes with %s never exposed their replicas: %s", current.Release, words.Named(d.status.FailedNodes, maxNamed))}
	good := d.lastGood()
	switch {
	case containsImage(d.status.Good, current):
		failing.Message += "; it ran well before, so look at the device plugin or DRA driver on such nodes"
	case good == nil && slices.ContainsFunc(d.status.Good, func(g v1alpha1.GPUImage) bool { return d.missing(&g) != "" }):
		failing.Message += "; the images that ran well before do not exist any more: name another in spec.image"
	case good == nil:
		failing.Message += "; there is no other image to go back to: name one in spec.image"
	case d.paused():
		failing.Message += "; set spec.promotion to Automatic to have it taken back"
	default:
		d.distrust(current, failing)
		d.pin(good)
		d.note = "going back to " + good.Release + ": " + failing.Message
		d.record(true, "RollingBack", d.note)
	}
	d.fault = &failing
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
