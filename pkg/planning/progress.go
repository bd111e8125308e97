package planning

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/records"
)

// Progress is the part of the current plan whose machines do not exist yet. The other machines' NodeClaims record what they are for. After a restart it
// is read from the NodeClaims before the first plan. It is safe for concurrent use.
type Progress struct {
	mu sync.Mutex
	progress
}

type progress struct {
	recalled bool
	// id orders plans by time.
	id       string
	launches []snapshot.PlannedLaunch
	// on is the name of the NodeClaim that stores the remaining launches for a restarted controller.
	on string
}

const (
	// planLife is how long after its last NodeClaim was created a plan is still read after a restart. A running controller makes launches that were held
	// back within seconds.
	planLife = 10 * time.Minute
	// maxPlanBytes is the largest size of the annotation with the launches of a plan, which Karpenter copies to the Node. Launches that do not fit are
	// planned again after a restart.
	maxPlanBytes = 64 << 10
	// maxPlanText is the largest uncompressed size of the annotation.
	maxPlanText = 4 << 20
)

// earlier returns the current plan in terms of the view.
func (m *Progress) earlier(view *snapshot.View, now time.Time) planner.Plan {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.recalled {
		m.recall(view.Machines, now)
	}
	return view.Earlier(m.still(view.Machines))
}

// recall reads the newest plan from the NodeClaims.
func (m *progress) recall(machines []records.Machine, now time.Time) {
	m.recalled = true
	var newest int64
	var last time.Time
	for i := range machines {
		claim := machines[i].Claim
		at, _, ok := entryOf(claim)
		if !ok || at < newest {
			continue
		}
		if at > newest {
			newest, last = at, time.Time{}
			*m = progress{recalled: true, id: idOf(at)}
		}
		if created := claim.CreationTimestamp.Time; created.After(last) {
			last = created
		}
		if text := claim.Annotations[v1alpha1.PlannedLaunchesAnnotation]; text != "" {
			if launches, err := unpacked(text); err == nil {
				m.launches, m.on = launches, claim.Name
			}
		}
	}
	if now.Sub(last) > planLife {
		*m = progress{recalled: true}
	}
}

// still returns the launches of the plan that no machine comes from yet.
func (m *progress) still(machines []records.Machine) []snapshot.PlannedLaunch {
	made := make([]int, len(m.launches))
	for i := range machines {
		if at, entry, ok := entryOf(machines[i].Claim); ok && idOf(at) == m.id && entry < len(made) {
			made[entry]++
		}
	}
	var still []snapshot.PlannedLaunch
	for i, l := range m.launches {
		if l.Count -= made[i]; l.Count > 0 {
			still = append(still, l)
		}
	}
	return still
}

// keep remembers a plan and returns the entry of each launch. If the plan consists of just the remaining launches, they keep their entries.
func (m *Progress) keep(view *snapshot.View, plan planner.Plan, now time.Time) []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	launches, at := view.PlannedLaunches(plan)
	if len(launches) == 0 {
		m.progress = progress{recalled: true, id: m.id}
		return nil
	}
	entries := make([]int, len(launches))
	if m.continues(view, launches, entries) {
		for i := range at {
			at[i] = entries[at[i]]
		}
		return at
	}
	last, _ := strconv.ParseInt(m.id, idBase, 64) // It is 0 if there is no ID.
	m.progress = progress{recalled: true, id: idOf(max(now.UnixMilli(), last+1)), launches: launches}
	return at
}

// continues reports whether the launches are just the remaining ones, and sets their entries.
func (m *progress) continues(view *snapshot.View, launches []snapshot.PlannedLaunch, entries []int) bool {
	counts, entry := map[string]int{}, map[string]int{}
	for i, l := range m.launches {
		entry[l.Key()] = i
	}
	for _, l := range m.still(view.Machines) {
		counts[l.Key()] += l.Count
	}
	for i, l := range launches {
		if counts[l.Key()] != l.Count {
			return false
		}
		delete(counts, l.Key())
		entries[i] = entry[l.Key()]
	}
	return len(counts) == 0
}

// Mark writes the entry of the plan to a NodeClaim. It also writes the whole plan if other launches are held back and no NodeClaim has the plan yet.
func (m *Progress) Mark(claim *karpv1.NodeClaim, entry int, machines []records.Machine, heldBack bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	claim.Annotations[v1alpha1.PlanAnnotation] = m.id + "/" + strconv.Itoa(entry)
	if !heldBack || m.written(machines) {
		return nil
	}
	text, err := packed(m.launches)
	if err != nil {
		return err
	}
	claim.Annotations[v1alpha1.PlannedLaunchesAnnotation] = text
	return nil
}

// Created records that a NodeClaim was created with the annotations from Mark.
func (m *Progress) Created(claim *karpv1.NodeClaim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if claim.Annotations[v1alpha1.PlannedLaunchesAnnotation] != "" {
		m.on = claim.Name
	}
}

// written reports whether a NodeClaim has the plan.
func (m *progress) written(machines []records.Machine) bool {
	if m.on == "" {
		return false
	}
	for i := range machines {
		if machines[i].Claim.Name == m.on {
			return true
		}
	}
	return false
}

const idBase = 36

func idOf(at int64) string { return strconv.FormatInt(at, idBase) }

// entryOf returns the plan that created a NodeClaim, and its entry. It returns false if there is none.
func entryOf(claim *karpv1.NodeClaim) (at int64, entry int, ok bool) {
	id, text, found := strings.Cut(claim.Annotations[v1alpha1.PlanAnnotation], "/")
	if !found {
		return 0, 0, false
	}
	at, err := strconv.ParseInt(id, idBase, 64)
	entry, err2 := strconv.Atoi(text)
	return at, entry, errors.Join(err, err2) == nil && at > 0 && entry >= 0
}

// packed encodes as many launches as the annotation may hold.
func packed(launches []snapshot.PlannedLaunch) (string, error) {
	for ; ; launches = launches[:len(launches)/2] {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if err := errors.Join(json.NewEncoder(w).Encode(launches), w.Close()); err != nil {
			return "", fmt.Errorf("writing the launches of a plan: %w", err)
		}
		if text := base64.StdEncoding.EncodeToString(b.Bytes()); len(text) <= maxPlanBytes || len(launches) == 0 {
			return text, nil
		}
	}
}

func unpacked(text string) ([]snapshot.PlannedLaunch, error) {
	r, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(text)))
	if err != nil {
		return nil, fmt.Errorf("reading the launches of a plan: %w", err)
	}
	var launches []snapshot.PlannedLaunch
	if err := json.NewDecoder(io.LimitReader(r, maxPlanText)).Decode(&launches); err != nil {
		return nil, fmt.Errorf("reading the launches of a plan: %w", err)
	}
	return launches, nil
}
