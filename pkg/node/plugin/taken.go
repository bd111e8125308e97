package plugin

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/nodecontract"
)

const (
	// settleEvery is how often Run checks whether pods are gone while held devices delay a change.
	settleEvery = 5 * time.Second
	// settleInUse is how long a device counts as held after Allocate although the kubelet does not list it. The kubelet lists a pod once it is admitted.
	settleInUse  = time.Minute
	inUseTimeout = 2 * time.Second
)

var errNotAsked = errors.New("nobody to ask which devices pods hold")

func (m *Manager) askInUse(ctx context.Context) (map[string][]string, error) {
	if m.config.InUse == nil {
		return nil, errNotAsked
	}
	ctx, cancel := context.WithTimeout(ctx, inUseTimeout)
	defer cancel()
	return m.config.InUse.InUse(ctx)
}

// taken is the devices that pods hold, by resource, with the time of the allocation. It is the zero time if the kubelet lists the device.
type taken struct {
	by map[string]map[string]time.Time
	// known reports whether the kubelet has listed the devices of pods. Until then, all listed devices count as held.
	known bool
}

func (t *taken) add(resource, id string, since time.Time) {
	if t.by[resource] == nil {
		t.by[resource] = map[string]time.Time{}
	}
	t.by[resource][id] = since
}

// with returns what pods hold according to a new list of the kubelet: the listed devices that are ours, and those that were allocated a moment ago.
func (t *taken) with(list map[string][]string, now time.Time, ours func(resource, id string) bool) taken {
	next := taken{by: map[string]map[string]time.Time{}, known: true}
	for resource, ids := range t.by {
		for id, since := range ids {
			if !since.IsZero() && now.Sub(since) < settleInUse {
				next.add(resource, id, since)
			}
		}
	}
	for resource, ids := range list {
		for _, id := range ids {
			if ours(resource, id) {
				next.add(resource, id, time.Time{})
			}
		}
	}
	return next
}

// ids returns the devices that pods hold. While these are unknown, all listed devices count.
func (t *taken) ids(listed idSet) idSet {
	all := idSet{}
	for resource, ids := range t.by {
		for id := range ids {
			all.add(resource, id)
		}
	}
	if !t.known {
		for resource, ids := range listed {
			for id := range ids {
				all.add(resource, id)
			}
		}
	}
	return all
}

// learn updates what pods hold from the devices that the kubelet lists. m.mu is held.
func (m *Manager) learn(ctx context.Context, list map[string][]string, err error) {
	switch {
	case errors.Is(err, errNotAsked):
		m.taken.known = true // Only the agent's own allocations are known.
	case err != nil:
		logr.FromContextOrDiscard(ctx).Info("The kubelet does not say which devices pods hold; nothing is taken away before it does", "error", err.Error())
		m.taken.known = false
	default:
		m.taken = m.taken.with(list, m.config.Clock.Now(), func(resource, id string) bool {
			_, ours := m.devices[alloc.UUID(id)]
			return strings.HasPrefix(resource, nodecontract.NVIDIAPrefix) && (ours || m.listed.has(resource, id))
		})
	}
}
