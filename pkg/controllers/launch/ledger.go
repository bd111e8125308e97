// Package launch watches the NodeClaims of ours until the cloud has made their machines, gives up those that it does not make, and remembers
// which offerings were refused. A claim that cannot launch stops all of stock Karpenter's provisioning, so nothing here waits for long and
// no refused offering is tried again at once.
package launch

import (
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/wording"
)

const (
	// memory is how long after its backoff a refusal still counts towards the next one.
	memory = time.Hour
	// quiet is how long nothing at all is launched after a claim that hung, so that stock Karpenter, which it held up, can do its own work.
	quiet = time.Minute
	// explained is how long an explanation is waited for of why a claim vanished: where much happens at once, Karpenter's events come late.
	explained = 2 * time.Minute
	// noted is how long it may take until it is noted that a claim has vanished.
	noted = 2 * time.Second
	// maxRemembered is the bound of the status list.
	maxRemembered = 250
	maxMessage    = 512
)

// Shape is what a claim asks the cloud for: any of the instance types in any of the zones.
type Shape struct {
	// Class is the name of the GPUNodeClass.
	Class string
	// Pool is the name of the NodePool, and PoolUID its UID where the claim says it.
	Pool    string
	PoolUID types.UID
	// InstanceTypes and Zones begin with what was chosen.
	InstanceTypes, Zones []string
	CapacityType         string
}

func keyOf(r v1alpha1.RefusedOffering) string {
	return strings.Join([]string{r.InstanceType, r.Zone, r.CapacityType}, "\x00")
}

// Ledger remembers claims that are not launched yet and offerings that were refused. It is rebuilt from the API: claims by watching
// them, refusals from the status of the GPUNodeClasses. It is safe for concurrent use.
type Ledger struct {
	mu         sync.Mutex
	awaited    map[string]entry
	lost       map[string]entry
	refused    map[string]map[string]v1alpha1.RefusedOffering
	records    map[string]map[string]*record
	quietUntil time.Time
}

// entry is a claim that is not launched.
type entry struct {
	shape Shape
	uid   types.UID
	// missing is when the claim was first seen to be gone.
	missing time.Time
}

// NewLedger makes an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{
		awaited: map[string]entry{}, lost: map[string]entry{}, refused: map[string]map[string]v1alpha1.RefusedOffering{}, records: map[string]map[string]*record{},
	}
}

// Learn adds refusals from the status of a GPUNodeClass that the ledger does not know, as after a restart. One that lies further ahead than its backoff was written
// by a clock that was ahead, and begins anew.
func (l *Ledger) Learn(class string, refused []v1alpha1.RefusedOffering, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range refused {
		if _, ok := l.refused[class][keyOf(r)]; !ok {
			if latest := until(r, now); latest.Before(&r.NotBefore) {
				r.NotBefore = latest
			}
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

// Await notes a claim that the cloud has not made yet, with its UID once it has one; it says whether that is news.
func (l *Ledger) Await(claim string, uid types.UID, s Shape) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.awaited[claim]
	l.awaited[claim] = entry{shape: s, uid: uid}
	delete(l.lost, claim)
	return !known
}

// Name notes the UID of a claim that was created, which tells its events from those of an earlier one of the same name.
func (l *Ledger) Name(claim string, uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, entries := range []map[string]entry{l.awaited, l.lost} {
		if e, ok := entries[claim]; ok && e.uid == "" {
			e.uid = uid
			entries[claim] = e
		}
	}
}

// Launched notes that the cloud made a claim's machine at a time. What was refused of that offering is tried again, and a pause of the class's launches ends.
func (l *Ledger) Launched(claim, class, instanceType, zone, capacityType string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cameThrough(class, instanceType, at)
	if _, ok := l.awaited[claim]; !ok {
		return
	}
	delete(l.awaited, claim)
	for _, r := range l.refused[class] {
		if (Refusal{InstanceTypes: []string{r.InstanceType}, Zones: []string{r.Zone}, CapacityType: r.CapacityType}).covers(instanceType, zone, capacityType) {
			// Kept as a spent entry, so that the status, which may still hold the refusal, does not teach it again.
			r.Failures, r.NotBefore = 0, metav1.Time{}
			l.put(class, r)
		}
	}
}

// Awaited is the shape of a claim that the cloud has not made yet.
func (l *Ledger) Awaited(claim string) (Shape, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.awaited[claim]
	return e.shape, ok
}

// Gone takes a claim off the ledger that is no longer there or was given up.
func (l *Ledger) Gone(claim string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.awaited, claim)
	delete(l.lost, claim)
}

// unlaunched is a claim that is awaited, or that has vanished without an explanation.
func (l *Ledger) unlaunched(claim string) (e entry, lost, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok = l.awaited[claim]; ok {
		return e, false, true
	}
	e, ok = l.lost[claim]
	return e, ok, ok
}

// lose notes that a claim has vanished, and that it is not known why.
func (l *Ledger) lose(claim string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.awaited[claim]
	e.missing = now
	l.lost[claim] = e
	delete(l.awaited, claim)
}

// Vanished says whether a claim that is awaited is not among those that there are: what has become of it is about to be noted, and to plan before would
// be to try the same again. It says so for two seconds at most.
func (l *Ledger) Vanished(there sets.Set[string], now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	vanished := false
	for name, e := range l.awaited {
		switch {
		case there.Has(name):
			continue
		case e.missing.IsZero():
			e.missing = now
			l.awaited[name] = e
		}
		vanished = vanished || now.Before(e.missing.Add(noted))
	}
	return vanished
}

// Refuse notes that the cloud refused something of a class; it returns the part of it that is news.
func (l *Ledger) Refuse(class string, r Refusal, now time.Time) []v1alpha1.RefusedOffering {
	l.mu.Lock()
	defer l.mu.Unlock()
	var news []v1alpha1.RefusedOffering
	for _, instanceType := range r.InstanceTypes {
		for _, zone := range r.Zones {
			offering := v1alpha1.RefusedOffering{
				InstanceType: instanceType, Zone: zone, CapacityType: r.CapacityType, Reason: r.Reason, NodeClassGeneration: r.Generation,
				Message: wording.Shorten(r.Message, maxMessage),
			}
			if l.refuse(class, &offering, now) {
				news = append(news, offering)
			}
		}
	}
	return news
}

// refuse notes one refusal, and says whether that is news. The claims of one plan are refused together, and that is one failure; so is a claim that
// vanished and whose refusal is explained later, be it after what had vanished was no longer left alone.
func (l *Ledger) refuse(class string, r *v1alpha1.RefusedOffering, now time.Time) bool {
	before := l.refused[class][keyOf(*r)]
	explains := before.Reason == v1alpha1.RefusalVanished && r.Reason != before.Reason
	pending := now.Before(before.NotBefore.Time)
	// What is left alone for another reason than the node class stays so, whatever is said of the node class meanwhile.
	if same := before.NodeClassGeneration == r.NodeClassGeneration || before.NodeClassGeneration == 0; pending && same && !explains {
		return false
	}
	// Another generation of the node class begins anew.
	changed := before.NodeClassGeneration != r.NodeClassGeneration && before.NodeClassGeneration != 0 && r.NodeClassGeneration != 0
	r.Failures = before.Failures
	if changed || forgotten(before, now) {
		r.Failures = 0
	}
	if !pending && !explains || r.Failures == 0 {
		r.Failures++
	}
	r.NotBefore = until(*r, now)
	l.put(class, *r)
	return true
}

// explain ends the pause for claims of a class that vanished, once it is known of the last of them why it did.
func (l *Ledger) explain(claim, class string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, e := range l.lost {
		if name != claim && e.shape.Class == class {
			return
		}
	}
	paused := v1alpha1.RefusedOffering{InstanceType: v1alpha1.Any, Zone: v1alpha1.Any, CapacityType: v1alpha1.Any}
	if r := l.refused[class][keyOf(paused)]; r.Reason == v1alpha1.RefusalVanished {
		r.Failures, r.NotBefore = 0, metav1.Time{} // Kept as a spent entry: see Launched.
		l.put(class, r)
	}
}

// Quiet has nothing launched for a while.
func (l *Ledger) Quiet(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quietUntil = now.Add(quiet)
}

// forgotten says that a refusal is too old to count.
func forgotten(r v1alpha1.RefusedOffering, now time.Time) bool {
	return !now.Before(r.NotBefore.Add(memory))
}

// backoff is how long a refusal has its offering left alone: that of its reason, twice as long each time, and up to a tenth longer, which differs by
// what is refused, so that not everything is tried again in the same moment.
func backoff(r v1alpha1.RefusedOffering) time.Duration {
	c := causes[known(r.Reason)]
	d := c.First
	for range r.Failures - 1 {
		if d *= 2; d >= c.Most {
			d = c.Most
			break
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(keyOf(r))) // It never fails.
	return d + d/10*time.Duration(h.Sum32()%100)/100
}

// until is when the backoff of a refusal ends that begins now. Times in the API are whole seconds; it is rounded up, since too soon is worse than too late.
func until(r v1alpha1.RefusedOffering, now time.Time) metav1.Time {
	return metav1.NewTime(now.Add(backoff(r) + time.Second - 1).Truncate(time.Second))
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
