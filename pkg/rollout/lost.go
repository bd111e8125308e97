package rollout

import "fmt"

// markImageMissing records that the pinned image no longer exists. Karpenter cannot launch machines with the node class then.
func (d *decision) markImageMissing() {
	if id := d.missing(d.status.Current); id != "" {
		d.lost = &Fault{"ImageNotFound", fmt.Sprintf("%s is pinned to %s, whose image %s does not exist any more, so nothing can be launched with it",
			d.className(), d.status.Current.Release, id)}
	}
}

// recover pins the last good image that still exists if the pinned one is lost, and reports whether it did. If there is none, the next candidate is tested on
// a canary as usual, and pinned as soon as its check has passed. A soak or a window would protect nothing, because no nodes can be launched.
func (d *decision) recover() bool {
	if d.lost == nil {
		return false
	}
	good := d.lastGood()
	switch {
	case d.paused():
		d.lost.Message += "; set spec.promotion to Automatic to have another one pinned"
	case !d.newest():
		d.lost.Message += "; an image that spec.image names and that exists is pinned instead, so name another one there, or Newest"
	case good == nil:
		d.lost.Message += "; the next image that passes its check on a canary node is pinned at once"
	default:
		gone := d.lost.Message
		d.abandon()
		d.pin(good)
		d.note = fmt.Sprintf("going back to %s: %s", good.Release, gone)
		d.record(true, "RollingBack", d.note)
		return true
	}
	return false
}

// withLost returns a fault that begins with why the pinned image is lost. If f is nil, it contains nothing else.
func (d *decision) withLost(f *Fault) *Fault {
	if d.lost == nil || f == nil || f == d.lost || f.Message == d.lost.Message {
		return d.lost
	}
	return &Fault{d.lost.Reason, d.lost.Message + ". " + f.Message}
}
