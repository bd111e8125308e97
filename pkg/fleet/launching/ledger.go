// Package launching decides what became of launches: it remembers the NodeClaims that the cloud has not launched yet and the offerings that it refused, says which
// offerings a refusal is about and how long Karve avoids them, and how many launches may wait for the cloud at the same time. The package has no clock and no
// client.
package launching

import (
	"cmp"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/snapshot/records"
)

const (
	// memory is how long after its back-off a refusal still counts towards the next one.
	memory = time.Hour
	// quiet is how long Karve launches nothing after a NodeClaim that hung, so that Karpenter can catch up.
	quiet = time.Minute
	// Explained is how long Karve waits for an explanation of why a NodeClaim is gone. Karpenter's events may be late under load.
	Explained = 2 * time.Minute
	// noted is how long it may take to record that a NodeClaim is gone.
	noted = 2 * time.Second
	// maxRemembered is the largest length of the list in the status.
	maxRemembered = 250
	maxMessage    = 512
	// maxName is the largest length of the names in the status.
	maxName = 63
	// maxOfferings is the largest number of offerings for which one refusal is recorded. Karve's own NodeClaims request fewer.
	maxOfferings = 1000
)

// Shape is what a NodeClaim requests from the cloud: any of the instance types in any of the zones.
type Shape struct {
	// Class is the name of the GPUNodeClass.
	Class string
	// Pool is the name of the NodePool. PoolUID is its UID, or "" if the NodeClaim has no owner reference to it.
	Pool    string
	PoolUID types.UID
	// InstanceTypes and Zones begin with the planned ones.
	InstanceTypes, Zones []string
	CapacityType         string
	// Reservation is the ID of the reservation of which the NodeClaim takes a slot, or "" if it takes none.
	Reservation string
}

// ShapeOf returns what one of Karve's NodeClaims requests from the cloud.
func ShapeOf(claim *karpv1.NodeClaim) Shape {
	s := Shape{Class: claim.Labels[v1alpha1.GPUNodeClassLabel], Pool: claim.Labels[karpv1.NodePoolLabelKey]}
	s.InstanceTypes, s.Zones, s.CapacityType = records.RequestedOfferings(claim)
	s.Reservation = records.ReservationOf(claim)
	for _, owner := range claim.OwnerReferences {
		if owner.Kind == "NodePool" && owner.Name == s.Pool {
			s.PoolUID = owner.UID
		}
	}
	return s
}

func keyOf(r v1alpha1.RefusedOffering) string {
	parts := []string{r.InstanceType, r.Zone, r.CapacityType}
	if r.Reservation != "" {
		parts = append(parts, r.Reservation)
	}
	return strings.Join(parts, "\x00")
}

// Ledger remembers NodeClaims that are not launched yet and offerings that were refused. After a restart it is rebuilt from the NodeClaims and from the status
// of the GPUNodeClasses. It is safe for concurrent use.
type Ledger struct {
	mu         sync.Mutex
	awaited    map[string]Entry
	lost       map[string]Entry
	refused    map[string]map[string]v1alpha1.RefusedOffering
	records    map[string]map[string]*record
	departed   map[string]Departure
	quietUntil time.Time
}

// Entry is a NodeClaim that is not launched yet.
type Entry struct {
	Shape Shape
	UID   types.UID
	// Earlier is the UID of the previous NodeClaim with that name, or "" if there was none or its end was explained. A plan that is made again uses the
	// same names.
	Earlier types.UID
	// Missing is when the NodeClaim was first seen to be gone.
	Missing time.Time
}

// Departure is a spot machine that is being deleted, perhaps because the cloud interrupted it.
type Departure struct {
	UID   types.UID
	Shape Shape
	// Refusal is the refusal of its offering if the cloud interrupted it.
	Refusal Refusal
	// Deleted is when the deletion began. Seen is when the NodeClaim was last seen.
	Deleted, Seen time.Time
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{
		awaited: map[string]Entry{}, lost: map[string]Entry{}, refused: map[string]map[string]v1alpha1.RefusedOffering{}, records: map[string]map[string]*record{},
		departed: map[string]Departure{},
	}
}

// Learn adds the refusals in the status of a GPUNodeClass that the ledger lacks, such as after a restart. A refusal that ends later than its back-off
// allows comes from a clock that was ahead, and begins again now.
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

// Await records a NodeClaim that the cloud has not launched yet. The UID is "" before it is created. Await reports whether the NodeClaim is new.
func (l *Ledger) Await(claim string, uid types.UID, s Shape) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, known := l.awaited[claim]
	if !known {
		before = l.lost[claim]
	}
	e := Entry{Shape: s, UID: uid, Earlier: before.Earlier}
	if before.UID != "" && before.UID != uid {
		e.Earlier = before.UID
	}
	l.awaited[claim] = e
	delete(l.lost, claim)
	return !known
}

// Name records the UID of a NodeClaim that was created. The UID distinguishes its events from those of an earlier NodeClaim with the same name.
func (l *Ledger) Name(claim string, uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, entries := range []map[string]Entry{l.awaited, l.lost} {
		if e, ok := entries[claim]; ok && e.UID == "" {
			e.UID = uid
			entries[claim] = e
		}
	}
}

// Depart records a spot machine that is being deleted.
func (l *Ledger) Depart(claim string, d Departure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.departed, func(_ string, was Departure) bool { return d.Seen.Sub(was.Seen) > Explained })
	l.departed[claim] = d
}

// Departure returns a spot machine that is being deleted, or that is gone while Karpenter may still report that the cloud interrupted it.
func (l *Ledger) Departure(claim string, now time.Time) (Departure, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, ok := l.departed[claim]
	return d, ok && now.Sub(d.Seen) <= Explained
}

// Interrupted removes a spot machine whose interruption is recorded.
func (l *Ledger) Interrupted(claim string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.departed, claim)
}

// Launched records that the cloud launched a NodeClaim's machine at a time. This ends refusals of its offering and a pause of the class's launches.
func (l *Ledger) Launched(claim, class, instanceType, zone, capacityType string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cameThrough(class, instanceType, at)
	e, ok := l.awaited[claim]
	if !ok {
		return
	}
	delete(l.awaited, claim)
	for _, r := range l.refused[class] {
		if r.Reservation != "" && r.Reservation != e.Shape.Reservation {
			continue
		}
		if (Refusal{InstanceTypes: []string{r.InstanceType}, Zones: []string{r.Zone}, CapacityType: r.CapacityType}).covers(instanceType, zone, capacityType) {
			// The entry is kept without failures, so that Learn does not add the refusal from the status again.
			r.Failures, r.NotBefore = 0, metav1.Time{}
			l.put(class, r)
		}
	}
}

// Gone removes a NodeClaim that no longer exists or was deleted by Karve.
func (l *Ledger) Gone(claim string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.awaited, claim)
	delete(l.lost, claim)
}

// Unlaunched returns a NodeClaim that is awaited, or that is gone without an explanation. In the latter case, lost is true.
func (l *Ledger) Unlaunched(claim string) (e Entry, lost, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok = l.awaited[claim]; ok {
		return e, false, true
	}
	e, ok = l.lost[claim]
	return e, ok, ok
}

// Lose records that a NodeClaim is gone for an unknown reason.
func (l *Ledger) Lose(claim string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.awaited[claim]
	e.Missing = now
	l.lost[claim] = e
	delete(l.awaited, claim)
}

// Vanished reports whether an awaited NodeClaim does not exist. The reason is about to be recorded, and a plan before that would make the same launch
// again. Vanished returns true for at most two seconds for each NodeClaim.
func (l *Ledger) Vanished(exists func(claim string) bool, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	vanished := false
	for name, e := range l.awaited {
		switch {
		case exists(name):
			continue
		case e.Missing.IsZero():
			e.Missing = now
			l.awaited[name] = e
		}
		vanished = vanished || now.Before(e.Missing.Add(noted))
	}
	return vanished
}

// Refuse records that the cloud refused offerings of a class. It returns the new refusals. A NodeClaim of another author can name any number of
// offerings that do not exist. Refuse leaves out those that the status of a GPUNodeClass cannot hold: the API server would reject the whole status.
func (l *Ledger) Refuse(class string, r Refusal, now time.Time) []v1alpha1.RefusedOffering {
	l.mu.Lock()
	defer l.mu.Unlock()
	var news []v1alpha1.RefusedOffering
	offerings := 0
	for _, instanceType := range r.InstanceTypes {
		for _, zone := range r.Zones {
			offering := v1alpha1.RefusedOffering{
				InstanceType: instanceType, Zone: zone, CapacityType: cmp.Or(r.CapacityType, v1alpha1.Any), Reservation: r.Reservation, Reason: r.Reason, NodeClassGeneration: r.Generation,
				Message: plain.Shorten(r.Message, maxMessage),
			}
			if !nameable(&offering) {
				continue
			}
			if offerings++; offerings > maxOfferings {
				return news
			}
			if l.refuse(class, &offering, now) {
				news = append(news, offering)
			}
		}
	}
	return news
}

// nameable reports whether the fields of a refusal that come from a NodeClaim are valid in a status.
func nameable(r *v1alpha1.RefusedOffering) bool {
	switch r.CapacityType {
	case karpv1.CapacityTypeSpot, karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeReserved, v1alpha1.Any:
		return r.InstanceType != "" && max(len(r.InstanceType), len(r.Zone), len(r.Reservation)) <= maxName
	}
	return false
}

// refuse records one refusal, and reports whether it is new. Refusals of several NodeClaims of one plan count as one failure. So does a NodeClaim that
// was gone and whose refusal is explained later, even after the pause has ended.
func (l *Ledger) refuse(class string, r *v1alpha1.RefusedOffering, now time.Time) bool {
	before := l.refused[class][keyOf(*r)]
	explains := before.Reason == v1alpha1.RefusalVanished && r.Reason != before.Reason
	pending := now.Before(before.NotBefore.Time)
	// A refusal that is not about the node class stays, whatever is reported about the node class meanwhile.
	if same := before.NodeClassGeneration == r.NodeClassGeneration || before.NodeClassGeneration == 0; pending && same && !explains {
		return false
	}
	// Failures of another generation of the node class do not count.
	changed := before.NodeClassGeneration != r.NodeClassGeneration && before.NodeClassGeneration != 0 && r.NodeClassGeneration != 0
	r.Failures = before.Failures
	if changed || forgotten(before, now) {
		r.Failures = 0
	}
	if (!pending && !explains || r.Failures == 0) && r.Failures < math.MaxInt32 {
		r.Failures++
	}
	r.NotBefore = until(*r, now)
	l.put(class, *r)
	return true
}

// Explain ends the pause for NodeClaims of a class that are gone, once the reason is known for the last of them.
func (l *Ledger) Explain(claim, class string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, e := range l.lost {
		if name != claim && e.Shape.Class == class {
			return
		}
	}
	paused := v1alpha1.RefusedOffering{InstanceType: v1alpha1.Any, Zone: v1alpha1.Any, CapacityType: v1alpha1.Any}
	if r := l.refused[class][keyOf(paused)]; r.Reason == v1alpha1.RefusalVanished {
		r.Failures, r.NotBefore = 0, metav1.Time{} // See Launched for why the entry is kept.
		l.put(class, r)
	}
}

// Quiet stops all launches for a minute.
func (l *Ledger) Quiet(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quietUntil = now.Add(quiet)
}

// forgotten reports whether a refusal is too old to count.
func forgotten(r v1alpha1.RefusedOffering, now time.Time) bool {
	return !now.Before(r.NotBefore.Add(memory))
}

// backoff returns how long Karve avoids the offerings of a refusal. It doubles with each failure, up to the limit of the reason. It adds up to a tenth,
// depending on the offerings, so that retries are spread out.
func backoff(r v1alpha1.RefusedOffering) time.Duration {
	c, _ := causeOf(Known(r.Reason))
	first := c.First
	if r.Reservation != "" && r.Reason == v1alpha1.RefusalInsufficientCapacity {
		first = providersCount
	}
	d := lifecycle.Backoff(first, c.Most, int(r.Failures))
	h := fnv.New32a()
	_, _ = h.Write([]byte(keyOf(r))) // It never returns an error.
	return d + d/10*time.Duration(h.Sum32()%100)/100
}

// until returns the end of a refusal's back-off that begins now. Times in the API have whole seconds, so it is rounded up.
func until(r v1alpha1.RefusedOffering, now time.Time) metav1.Time {
	return metav1.NewTime(now.Add(backoff(r) + time.Second - 1).Truncate(time.Second))
}

// QuietUntil returns the time before which nothing may be launched.
func (l *Ledger) QuietUntil() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.quietUntil
}

// Refused returns the refusals by the names of their GPUNodeClasses.
func (l *Ledger) Refused() map[string][]v1alpha1.RefusedOffering {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string][]v1alpha1.RefusedOffering{}
	for class, refused := range l.refused {
		all[class] = slices.Collect(maps.Values(refused))
	}
	return all
}

// ForStatus returns the refusals of a GPUNodeClass that still count, in a stable order. If there are too many, it returns those that end last.
func (l *Ledger) ForStatus(class string, now time.Time) []v1alpha1.RefusedOffering {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []v1alpha1.RefusedOffering
	for key, r := range l.refused[class] {
		switch {
		case r.Failures == 0: // It has ended, and is kept so that Learn does not add it again.
		case forgotten(r, now):
			delete(l.refused[class], key)
		default:
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b v1alpha1.RefusedOffering) int {
		return cmp.Or(b.NotBefore.Compare(a.NotBefore.Time), strings.Compare(keyOf(a), keyOf(b)))
	})
	return list[:min(len(list), maxRemembered)]
}
