package watchdog

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Object identifies an object of the API server.
type Object struct {
	Kind string `json:"kind"`
	// Name is the name or namespace/name.
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

func (o Object) String() string { return o.Kind + " " + o.Name }

// ObjectOf identifies an object of a kind.
func ObjectOf(kind string, o metav1.Object) Object {
	name := o.GetName()
	if o.GetNamespace() != "" {
		name = o.GetNamespace() + "/" + name
	}
	return Object{kind, name, o.GetUID()}
}

const (
	// retryAfter is how long an object is set aside at most if it does not change.
	retryAfter = 24 * time.Hour
	// forgetAfter is how long after the last object like it is gone an entry is kept. A Deployment replaces its pods within this time.
	forgetAfter = 10 * time.Minute
	// maxEntries is the largest number of entries. The oldest are dropped first.
	maxEntries = 200
)

// Entry is an object that is set aside, or one whose last write took too long. All objects of its kind with the same content are.
type Entry struct {
	Object `json:",inline"`
	// Step is the step that took too long at the object, at the time Since.
	Step  Step      `json:"step"`
	Since time.Time `json:"since"`
	// Content is a hash of what decisions read of the object. It is "" until the object is read the next time.
	Content string `json:"content,omitempty"`

	// matched is when an object last had this content. It is zero after the object has changed.
	matched time.Time
}

// Why is the reason for messages.
func (e *Entry) Why() string {
	switch {
	case e.Step == Write:
		return fmt.Sprintf("writing %s took too long at %s: look for an admission webhook that does not answer", e.Object, e.Since.UTC().Format("15:04Z"))
	case e.Name == "":
		return fmt.Sprintf("step %s took too long at %s, at no object in particular: report this with the log of the controller", e.Step, e.Since.UTC().Format("15:04Z"))
	}
	return fmt.Sprintf("Karve decides without it since %s, because step %s took too long at %s: change it, and report this with its manifest", e.Since.UTC().Format("15:04Z"), e.Step, e.Object)
}

// Aside has the objects that are set aside. It is safe for concurrent use. In a nil Aside there are none.
type Aside struct {
	mu      sync.Mutex
	entries map[Object]Entry
	// version counts the changes of which objects are set aside, and unsaved reports whether entries differ from the stored ones.
	version uint64
	unsaved bool
}

// Add sets an object aside because of a step. If no object is known, the entry only shows that the step took too long.
func (a *Aside) Add(o Object, step Step, now time.Time) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put(Entry{Object: o, Step: step, Since: now})
}

func (a *Aside) put(e Entry) {
	if a.entries == nil {
		a.entries = map[Object]Entry{}
	}
	e.matched = e.Since
	a.entries[e.Object] = e
	if len(a.entries) > maxEntries {
		oldest := slices.MinFunc(slices.Collect(maps.Values(a.entries)), func(a, b Entry) int { return a.Since.Compare(b.Since) })
		delete(a.entries, oldest.Object)
	}
	a.version++
	a.unsaved = true
}

// Version changes whenever other objects are set aside.
func (a *Aside) Version() uint64 {
	if a == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.version
}

// Has returns the entry of an object, or nil if it is not set aside. content returns the text of the object that decisions read.
func (a *Aside) Has(kind string, o metav1.Object, now time.Time, content func() string) *Entry {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.entries) == 0 {
		return nil
	}
	is := ObjectOf(kind, o)
	hash := sync.OnceValue(func() string {
		sum := sha256.Sum256([]byte(kind + "\x00" + o.GetNamespace() + "\x00" + content()))
		return hex.EncodeToString(sum[:])
	})
	if e, ok := a.entries[is]; ok && e.Step != Write && e.Content != hash() {
		if e.Content != "" { // It has changed.
			e.matched = time.Time{}
			a.entries[is] = e
			return nil
		}
		e.Content, e.matched, a.unsaved = hash(), now, true // It is the first read after the step.
		a.entries[is] = e
		return &e
	}
	for key, e := range a.entries {
		if e.Kind == kind && e.Content != "" && e.Content == hash() {
			e.matched = now
			a.entries[key] = e
			return &e
		}
	}
	return nil
}

// Expire drops the entries of objects that have changed, that have been gone for ten minutes, or that were set aside a day ago. still reports whether an
// object of an entry is set aside.
func (a *Aside) Expire(now time.Time, still func(Object) bool) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, e := range a.entries {
		if still(key) {
			e.matched = now
			a.entries[key] = e
		}
		if now.Sub(e.Since) < retryAfter && now.Sub(e.matched) < forgetAfter {
			continue
		}
		delete(a.entries, key)
		a.version++
		a.unsaved = true
	}
}

// Entries returns the objects that are set aside, sorted by time.
func (a *Aside) Entries() []Entry {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.SortedFunc(maps.Values(a.entries), func(a, b Entry) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
}
