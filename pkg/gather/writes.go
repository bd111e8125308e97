package gather

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// A plan that misses a NodeClaim which was just created would launch a second machine for its pods, and an informer shows an object only some time
// after it was written. So the Gatherer remembers written NodeClaims until the informer shows the write, and meanwhile reads these few from the API
// server. Nobody else creates NodeClaims for Karve's pools, except the replica of the controller that was the leader before. Its NodeClaims are listed
// once.

// doubtTime is how long a NodeClaim is read from the API server after a failed write that may have been carried out nevertheless. It is also how late
// an informer may show a NodeClaim that no longer exists.
const doubtTime = time.Minute

// writes has the written NodeClaims that the informer may not show yet. It is safe for concurrent use.
type writes struct {
	mu    sync.Mutex
	named map[string]write
}

// write is what is known about the writes of a NodeClaim.
type write struct {
	// uid is the UID of the NodeClaim after the last successful write, or "" if there was none. version is its resource version after that write, or
	// before it if the write deleted the NodeClaim.
	uid     types.UID
	version string
	// claim is the NodeClaim after the last write, as the API server returned it at the time answered. It is nil if the write deleted it, or if it is
	// unknown.
	claim    *karpv1.NodeClaim
	answered time.Time
	// seen is the latest resource version that the informer has had since a write began.
	seen string
	// deleted reports whether the last write deleted it, and gone whether it did not exist afterwards.
	deleted, gone bool
	// open is the number of writes without a response.
	open int
	// doubted is the time until which a failed write may still have been carried out. remembered is the time until which a deleted NodeClaim is
	// remembered.
	doubted, remembered time.Time
}

// begin records that a NodeClaim is about to be written.
func (w *writes) begin(name string) {
	w.editWrite(name, func(is *write) { is.open++ })
}

// end records the response to a write. result has the UID and resource version of the NodeClaim, or reports that it was deleted.
func (w *writes) end(name string, result write, err error, now time.Time) {
	w.editWrite(name, func(is *write) {
		if is.open--; err != nil {
			is.doubted = now.Add(doubtTime)
			return
		}
		result.open, result.doubted, result.answered, result.seen = is.open, is.doubted, now, is.seen
		if result.deleted && result.uid == is.uid {
			result.version = is.version
		}
		*is = result
	})
}

func (w *writes) editWrite(name string, edit func(*write)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.named == nil {
		w.named = map[string]write{}
	}
	is := w.named[name]
	edit(&is)
	w.named[name] = is
}

// unseen returns the writes that the informer may not show, by the names of their NodeClaims. It forgets those that the informer shows. shown returns
// the informer's NodeClaim. It is called without the lock, because the informer holds its own lock when it calls noteSeen.
func (w *writes) unseen(shown func(string) *karpv1.NodeClaim, now time.Time) map[string]write {
	w.mu.Lock()
	all := maps.Clone(w.named)
	w.mu.Unlock()
	unseen := map[string]write{}
	for name, is := range all {
		switch seen := !is.deleted && !is.gone && notOlder(is.seen, is.version) || is.shownBy(shown(name)); {
		case is.open > 0, now.Before(is.doubted), !seen:
			unseen[name] = is
		case !now.Before(is.remembered):
			w.forget(name, is)
		}
	}
	return unseen
}

// forget removes what is known about the writes of a NodeClaim, unless it has changed.
func (w *writes) forget(name string, known write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.named[name] == known {
		delete(w.named, name)
	}
}

// shownBy reports whether a NodeClaim, or its absence, is at least as new as the last successful write. A NodeClaim with another UID may be an earlier
// one with that name.
func (w write) shownBy(claim *karpv1.NodeClaim) bool {
	switch {
	case w.uid == "":
		return true
	case claim == nil:
		return w.gone
	case claim.UID == w.uid && (w.gone || w.deleted && claim.DeletionTimestamp.IsZero()):
		return false
	}
	return notOlder(claim.ResourceVersion, w.version)
}

// notOlder reports whether both resource versions are known and the first is not older than the second.
func notOlder(version, other string) bool {
	order, err := resourceversion.CompareResourceVersion(version, other)
	return err == nil && order >= 0
}

// noteSeen records that the informer has had a NodeClaim, which may be gone by the next read.
func (w *writes) noteSeen(claim *karpv1.NodeClaim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if is, ok := w.named[claim.Name]; ok {
		is.seen = claim.ResourceVersion
		w.named[claim.Name] = is
	}
}

// settledClaim returns the NodeClaim after the last write if that was a moment ago and no other write may have followed it. Otherwise it returns nil.
func (w write) settledClaim(now time.Time) *karpv1.NodeClaim {
	if w.open > 0 || now.Before(w.doubted) || now.Sub(w.answered) >= reuseTime {
		return nil
	}
	return w.claim
}

// gone records that a NodeClaim did not exist after a write.
func (w *writes) gone(name string, after write, now time.Time) {
	w.editWrite(name, func(is *write) {
		if *is == after && is.open == 0 && is.uid != "" {
			is.gone, is.remembered = true, now.Add(doubtTime)
		}
	})
}
