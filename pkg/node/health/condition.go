package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/words"
)

// Condition holds the fields of a node condition.
type Condition struct {
	Type string
	// Status is True, False or Unknown.
	Status  string
	Reason  string
	Message string
}

// maxInMessage is the largest number of GPUs that the condition describes.
const maxInMessage = 4

// Condition returns the condition that reports whether all GPUs are in service. It changes only if faults come or go.
func (t *Tracker) Condition() Condition {
	c := Condition{Type: nodecontract.HardwareCondition, Status: "True", Reason: nodecontract.ReasonHealthy}
	faulty, unusable := t.faulty(), t.unusableOnly()
	switch {
	case len(t.devices) == 0 && len(faulty) == 0 && len(unusable) == 0:
		c.Status, c.Reason, c.Message = "Unknown", nodecontract.ReasonNone, "NVML lists no GPU"
		return c
	case len(faulty) == 0 && len(unusable) == 0:
		c.Message = fmt.Sprintf("%s in service", words.Count(len(t.devices), "GPU"))
		return c
	}
	c.Status = "False"
	all := len(t.devices) + len(unusable)
	concerned, inPart := map[string]bool{}, ""
	var worst Fault
	var parts []string
	for i, uuid := range faulty {
		f := t.faults[uuid]
		if i == 0 || severity(f) > severity(worst) {
			worst = f
		}
		of := cmp.Or(f.GPU, uuid)
		if _, listed := t.devices[of]; !listed && !concerned[of] {
			all++ // The GPU is no longer listed.
		}
		concerned[of] = true
		if f.GPU != "" {
			inPart = ", in part"
		}
		if i < maxInMessage {
			parts = append(parts, fmt.Sprintf("%s %s at %s: %s.", t.name(uuid), f.summary(), f.Since.UTC().Format(time.RFC3339), f.advice()))
		}
	}
	for _, u := range unusable[:min(len(unusable), max(0, maxInMessage-len(faulty)))] {
		parts = append(parts, describeUnusable(u)+".")
	}
	if more := len(faulty) + len(unusable) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("And %d more.", more))
	}
	c.Reason = nodecontract.ReasonUnusable
	if len(faulty) > 0 {
		c.Reason = worst.reason()
	}
	c.Message = fmt.Sprintf("%d of %s out of service%s. %s", len(concerned)+len(unusable), words.Count(all, "GPU"), inPart, strings.Join(parts, " "))
	return c
}

// unusableOnly returns the GPUs that the driver does not offer, except for those that it has offered before. Those are lost and already among the faults,
// and the driver no longer reports under which UUID.
func (t *Tracker) unusableOnly() []gpu.Unusable {
	gone := 0
	for uuid, fault := range t.faults {
		if _, listed := t.devices[uuid]; !listed && fault.GPU == "" {
			gone++
		}
	}
	return t.unusable[min(gone, len(t.unusable)):]
}

// faulty returns the UUIDs of the GPUs and MIG instances that are out of service, sorted by index. Those that are no longer listed come last.
func (t *Tracker) faulty() []string {
	var out []string
	for _, uuid := range t.uuids() {
		if !t.Healthy(uuid) {
			out = append(out, uuid)
		}
		for _, p := range t.devices[uuid].Instances {
			if !t.Healthy(p.UUID) {
				out = append(out, p.UUID)
			}
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(t.faults)) {
		if d, _ := t.find(uuid); d == nil {
			out = append(out, uuid)
		}
	}
	return out
}

func severity(f Fault) int {
	if f.Lost {
		return len(severities)
	}
	return slices.Index(severities, f.class())
}
