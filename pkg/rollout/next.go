package rollout

import (
	"fmt"
	"slices"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/words"
)

const (
	maxFailed = 10
	// maxNamed is how many nodes a message names.
	maxNamed = 5
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
