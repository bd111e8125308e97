// Package launch watches the NodeClaims of ours until the cloud has made their machines, gives up those that it does not make, and remembers
// which offerings were refused. A claim that cannot launch stops all of stock Karpenter's provisioning, so nothing here waits for long and
// no refused offering is tried again at once.
package launch

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/wording"
)

// How long a refused offering is left alone: as long as the AWS provider remembers a refusal itself, then twice as long each time.
const (
	firstBackoff = 3 * time.Minute
	maxBackoff   = time.Hour
	// memory is how long after its backoff a refusal still counts towards the next one.
	memory = time.Hour
	// quiet is how long nothing at all is launched after a claim that hung, so that stock Karpenter, which it held up, can do its own work.
	quiet = time.Minute
	// maxRemembered is the bound of the status list.
	maxRemembered = 100
	maxMessage    = 1024
)

// AllZones stands in a refused offering for every zone or capacity type of the instance type.
const AllZones = "*"

// Shape is what a claim asks the cloud for.
type Shape struct {
	// Class is the name of the GPUNodeClass.
	Class string
	// Pool is the name of the NodePool.
	Pool                             string
	InstanceType, Zone, CapacityType string
}

func (s Shape) key() string {
	return strings.Join([]string{s.InstanceType, s.Zone, s.CapacityType}, "\x00")
}

func keyOf(r v1alpha1.RefusedOffering) string {
	return Shape{InstanceType: r.InstanceType, Zone: r.Zone, CapacityType: r.CapacityType}.key()
}

// Ledger remembers claims that are not launched yet and offerings that were refused. It is rebuilt from the API: claims by watching
// them, refusals from the status of the GPUNodeClasses. It is safe for concurrent use.
type Ledger struct {
	mu         sync.Mutex
	awaited    map[string]Shape
	refused    map[string]map[string]v1alpha1.RefusedOffering
	quietUntil time.Time
}

// NewLedger makes an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{awaited: map[string]Shape{}, refused: map[string]map[string]v1alpha1.RefusedOffering{}}
}

// Learn adds refusals from the status of a GPUNodeClass that the ledger does not know, as after a restart.
func (l *Ledger) Learn(class string, refused []v1alpha1.RefusedOffering) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range refused {
		if _, ok := l.refused[class][keyOf(r)]; !ok {
			l.put(class, r)
		}
	}
}

func (l *Ledger) put(class string, r v1alpha1.RefusedOffering) {
	if l.refused[class] == nil {
		l.refused[class] = map[string]v1alpha1.RefusedOffering{}
	}
	l.refused[class][keyOf(r)] = r
}

// Await notes a claim that the cloud has not made yet; it says whether that is news.
func (l *Ledger) Await(claim string, s Shape) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.awaited[claim]
	l.awaited[claim] = s
	return !known
}

// Launched notes that the cloud has made a claim's machine: its offering is trusted again.
func (l *Ledger) Launched(claim string, s Shape) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.awaited[claim]; !ok {
		return
	}
	delete(l.awaited, claim)
	for _, trusted := range []Shape{s, {InstanceType: s.InstanceType, Zone: AllZones, CapacityType: AllZones}} {
		if r, ok := l.refused[s.Class][trusted.key()]; ok {
			// Kept as a spent entry, so that the status, which may still hold the refusal, does not teach it again.
			r.Failures, r.NotBefore = 0, metav1.Time{}
			l.put(s.Class, r)
		}
	}
}

// Awaited is the shape of a claim that the cloud has not made yet.
func (l *Ledger) Awaited(claim string) (Shape, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.awaited[claim]
	return s, ok
}

// Gone takes a claim off the ledger that is no longer there or was given up; it tells the claim's shape when it had never been launched.
func (l *Ledger) Gone(claim string) (Shape, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.awaited[claim]
	delete(l.awaited, claim)
	return s, ok
}

// Refuse notes that the cloud refused a shape; it says whether that is news. A claim that hung says more: the whole instance type is left alone,
// and nothing is launched for a while.
func (l *Ledger) Refuse(s Shape, hung bool, message string, now time.Time) (v1alpha1.RefusedOffering, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if hung {
		s.Zone, s.CapacityType = AllZones, AllZones
		l.quietUntil = now.Add(quiet)
	}
	r := l.refused[s.Class][s.key()]
	if now.Before(r.NotBefore.Time) {
		return r, false // Nothing was tried since: claims of one plan are refused together, and that is one failure.
	}
	if forgotten(r, now) {
		r.Failures = 0
	}
	r.InstanceType, r.Zone, r.CapacityType = s.InstanceType, s.Zone, s.CapacityType
	r.Failures++
	// Times in the API are whole seconds; it is rounded up, since too soon is worse than too late.
	r.NotBefore = metav1.NewTime(now.Add(backoff(r.Failures) + time.Second - 1).Truncate(time.Second))
	r.Message = wording.Shorten(message, maxMessage)
	l.put(s.Class, r)
	return r, true
}

// forgotten says that a refusal is too old to count.
func forgotten(r v1alpha1.RefusedOffering, now time.Time) bool {
	return !now.Before(r.NotBefore.Add(memory))
}

func backoff(failures int32) time.Duration {
	d := firstBackoff
	for range failures - 1 {
		if d *= 2; d >= maxBackoff {
			return maxBackoff
		}
	}
	return d
}

// QuietUntil is the time before which nothing is launched.
func (l *Ledger) QuietUntil() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.quietUntil
}

// Refused are the refusals by GPUNodeClass.
func (l *Ledger) Refused() map[string][]v1alpha1.RefusedOffering {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string][]v1alpha1.RefusedOffering{}
	for class, refused := range l.refused {
		all[class] = slices.Collect(maps.Values(refused))
	}
	return all
}

// ForStatus are the refusals of a GPUNodeClass that are worth remembering at the time, the latest first when there are too many, in a stable
// order.
func (l *Ledger) ForStatus(class string, now time.Time) []v1alpha1.RefusedOffering {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []v1alpha1.RefusedOffering
	for key, r := range l.refused[class] {
		switch {
		case r.Failures == 0: // Spent: kept, so that it is not learnt again.
		case forgotten(r, now):
			delete(l.refused[class], key)
		default:
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b v1alpha1.RefusedOffering) int {
		if c := b.NotBefore.Compare(a.NotBefore.Time); c != 0 {
			return c
		}
		return strings.Compare(keyOf(a), keyOf(b))
	})
	return list[:min(len(list), maxRemembered)]
}
