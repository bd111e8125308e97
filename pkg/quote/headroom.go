package quote

import (
	"fmt"
	"path"
	"slices"

	"karve.sh/karve/pkg/fleet/headroom"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/words"
)

// Headroom describes the machines that are launched to keep capacity free in addition to the plan, once the pods of the plan run. Its pods are placeholders
// for a single replica, or for a pod of a CapacityBuffer.
type Headroom struct {
	Claims   []Claim    `json:"claims"`
	Unplaced []Unplaced `json:"unplaced"`
	// Pods is the number of placeholders. Those in no claim fit on existing machines, or on those of the plan.
	Pods  int              `json:"pods"`
	Price planner.MicroUSD `json:"microUSDPerHour"`
}

// headroom plans the capacity to keep free after the pending pods are placed. It returns nil if there is none to keep free.
func (q *Quote) headroom(view *snapshot.View, served planner.Plan, search Search) (*Headroom, error) {
	kept := headroom.Build(view, served, search())
	if len(kept.Classes) == 0 {
		return nil, nil //nolint:nilnil // Nothing is kept free.
	}
	var err error
	kept.Snapshot, kept.Plan, err = planFor(kept.Snapshot, &kept.Plan, search)
	if err != nil {
		return nil, err
	}
	h := Headroom{Claims: []Claim{}, Unplaced: []Unplaced{}, Price: kept.Plan.Price}
	for _, class := range kept.Classes {
		h.Pods += len(class.Pods)
		for _, name := range class.Pods {
			q.pods[name] = pod{workload: path.Dir(name), gpu: -1}
		}
	}
	for _, launch := range kept.Plan.Launches {
		h.Claims = append(h.Claims, claimOf(&kept.View, launch))
		if !kept.View.Offerings[launch.Offering].Anywhere() {
			q.assign(launch.Pods, launch.GPUs)
		}
	}
	for _, u := range kept.Plan.Unplaced {
		h.Unplaced = append(h.Unplaced, Unplaced{Pod: u.Pod, Reason: u.Reason, Message: u.Message})
	}
	slices.SortStableFunc(h.Claims, compareClaims)
	return &h, nil
}

// words describes how much of the headroom needs new machines.
func (h *Headroom) words() string {
	launched := 0
	for i := range h.Claims {
		launched += len(h.Claims[i].Pods)
	}
	switch found := h.Pods - len(h.Unplaced); {
	case found == 0:
		return "no room for it"
	case launched == 0:
		return "existing room for " + words.Count(found, "more pod")
	case launched == found:
		return "room for " + words.Count(found, "more pod")
	default:
		return fmt.Sprintf("room for %s, %d of them on the other machines", words.Count(found, "more pod"), found-launched)
	}
}
