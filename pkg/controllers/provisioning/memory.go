package provisioning

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
)

// memory is the plan that is being carried out, as far as its machines do not exist yet; what those that exist are for is on their NodeClaims. It is
// read from the NodeClaims of an earlier life of the controller before the first plan.
type memory struct {
	recalled bool
	// id orders plans by time.
	id       string
	launches []snapshot.PlannedLaunch
	// on is the NodeClaim that holds the launches for the next life of the controller.
	on string
}

const (
	// planLife is how long after its last NodeClaim was created a plan is read from it. Held back launches follow within seconds while a controller runs.
	planLife = 10 * time.Minute
	// maxPlanBytes bounds the annotation with the launches of a plan, which Karpenter copies to the Node. The rest of a longer one is planned anew after a restart.
	maxPlanBytes = 64 << 10
	// maxPlanText bounds what such an annotation is unpacked to.
	maxPlanText = 4 << 20
)

// earlier is the plan that is being carried out, in terms of the view.
func (m *memory) earlier(view *snapshot.View, now time.Time) planner.Plan {
	if !m.recalled {
		m.recall(view.Machines, now)
	}
	return view.Earlier(m.still(view.Machines))
}

// recall reads the newest plan that any NodeClaim was created by.
func (m *memory) recall(machines []snapshot.Machine, now time.Time) {
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
			*m = memory{recalled: true, id: idOf(at)}
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
		*m = memory{recalled: true}
	}
}

// still are the launches of the plan that have not been made: none of the machines is one of them.
func (m *memory) still(machines []snapshot.Machine) []snapshot.PlannedLaunch {
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

// keep remembers a plan. It returns the entry of each launch; a plan that launches what was still to be launched has its old ones.
func (m *memory) keep(view *snapshot.View, plan planner.Plan, now time.Time) []int {
	launches, at := view.PlannedLaunches(plan)
	if len(launches) == 0 {
		*m = memory{recalled: true, id: m.id}
		return nil
	}
	entries := make([]int, len(launches))
	if m.continues(view, launches, entries) {
		for i := range at {
			at[i] = entries[at[i]]
		}
		return at
	}
	last, _ := strconv.ParseInt(m.id, idBase, 64) // An unreadable one, which is none, is 0.
	*m = memory{recalled: true, id: idOf(max(now.UnixMilli(), last+1)), launches: launches}
	return at
}

// continues says whether launches are just those that are still to be made, and which entries they are.
func (m *memory) continues(view *snapshot.View, launches []snapshot.PlannedLaunch, entries []int) bool {
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

// mark writes on a NodeClaim which entry of the plan it is, and the whole plan where it is the first to exist and others are held back.
func (m *memory) mark(claim *karpv1.NodeClaim, entry int, machines []snapshot.Machine, heldBack bool) error {
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

// created notes that a NodeClaim exists with what mark wrote.
func (m *memory) created(claim *karpv1.NodeClaim) {
	if claim.Annotations[v1alpha1.PlannedLaunchesAnnotation] != "" {
		m.on = claim.Name
	}
}

// written says whether a NodeClaim holds the plan. One that was created a moment ago may not be among the machines.
func (m *memory) written(machines []snapshot.Machine) bool {
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

// entryOf is the plan that a NodeClaim was created by, and the entry.
func entryOf(claim *karpv1.NodeClaim) (at int64, entry int, ok bool) {
	id, text, found := strings.Cut(claim.Annotations[v1alpha1.PlanAnnotation], "/")
	if !found {
		return 0, 0, false
	}
	at, err := strconv.ParseInt(id, idBase, 64)
	entry, err2 := strconv.Atoi(text)
	return at, entry, errors.Join(err, err2) == nil && at > 0 && entry >= 0
}

// packed writes launches, as many as the annotation may hold.
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

// replan writes on the NodeClaims of machines that start which pods they are for now.
func (c *Controller) replan(ctx context.Context, view *snapshot.View, plan planner.Plan) error {
	var errs []error
	for claim, pods := range view.Replanned(plan) {
		changed := claim.DeepCopy()
		if changed.Annotations == nil {
			changed.Annotations = map[string]string{}
		}
		changed.Annotations[v1alpha1.PlannedPodsAnnotation] = pods
		if err := c.Client.Patch(ctx, changed, client.MergeFrom(claim)); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("writing the pods of NodeClaim %s: %w", claim.Name, err))
		}
	}
	return errors.Join(errs...)
}
