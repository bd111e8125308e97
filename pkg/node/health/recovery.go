package health

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
)

// ReasonAsked is the reason of an event: the driver asks for something that does not concern the pods of the GPU.
const ReasonAsked = "GPURecoveryAsked"

func describeRecovery(r gpu.Recovery) string {
	if known, ok := recoveries[r]; ok {
		return known.phrase + " according to the driver"
	}
	return fmt.Sprintf("needs recovery action %d according to the driver, which this agent does not know", r)
}

// Ask handles what the driver asks for so that a GPU works again. It takes the GPU out of service, or returns it to service:
//
//   - A driver asks for a reset until the GPU was reset. If it then asks for nothing, the GPU and its MIG instances are back, as after MarkReset.
//   - If it asks for a reboot, only a reboot or MarkReset brings the GPU back, because the driver forgets the question when it is loaded again.
//   - If it asks for nothing, faults whose XIDs are not in the catalog end. Those in the catalog remain: the driver asks for nothing after some errors after
//     which the next program can fail.
//   - Its answer never makes a fault less severe.
//
// If the answer is unknown, nothing changes now, and an earlier answer says nothing about later faults.
func (t *Tracker) Ask(uuid string, r gpu.Recovery, at time.Time) ([]Change, []Event) {
	d, listed := t.devices[uuid]
	if !listed {
		return nil, nil
	}
	if r == gpu.RecoveryUnknown {
		delete(t.asked, uuid)
		return nil, nil
	}
	before := t.asked[uuid]
	t.asked[uuid] = r
	switch {
	case t.policy.CountsRecovery(r):
		return t.ask(uuid, r, at)
	case !t.policy.trustsDriver():
		return nil, nil
	case r != gpu.RecoveryNone:
		if r == before {
			return nil, nil
		}
		return nil, []Event{{Warning: true, Reason: ReasonAsked, Message: t.name(d.UUID) + " " + describeRecovery(r) + "; the GPU stays in service"}}
	}
	return t.answered(uuid)
}

func (t *Tracker) ask(uuid string, r gpu.Recovery, at time.Time) ([]Change, []Event) {
	fault, before := t.faults[uuid]
	if !before {
		fault.Since = at
	}
	var events []Event
	if fault.Asked != r && (recoveryClass(fault.Asked) != ClassReplace || recoveryClass(r) == ClassReplace) {
		fault.Asked = r
		alone := Fault{Asked: r}
		events = append(events, Event{Warning: true, Reason: alone.reason(), Message: t.name(uuid) + " " + describeRecovery(r) + "; all its replicas are out of service: " + alone.advice()})
	}
	fault.Reset = false // The reset has not happened, or did not help.
	t.faults[uuid] = fault
	if before {
		return nil, events
	}
	return []Change{{UUID: uuid, Fault: fault}}, events
}

// answered handles a driver that asks for nothing.
func (t *Tracker) answered(uuid string) ([]Change, []Event) {
	var changes []Change
	var events []Event
	wasReset := recoveryClass(t.faults[uuid].Asked) == ClassReset
	for _, of := range slices.Sorted(maps.Keys(t.faults)) {
		fault := t.faults[of]
		if of != uuid && fault.GPU != uuid || fault.Lost || fault.Unread || recoveryClass(fault.Asked) == ClassReplace {
			continue
		}
		why := ""
		switch {
		case wasReset:
			why = "was reset"
		case !slices.ContainsFunc(fault.XIDs, func(xid int) bool { return !t.policy.yields(xid) }):
			why = "needs nothing any more according to the driver,"
		default:
			fault.Asked = gpu.RecoveryNone
			t.faults[of] = fault
			continue
		}
		back, said := t.recovered(of, why)
		changes, events = append(changes, back), append(events, said)
	}
	return changes, events
}

// class returns the worst class of a fault.
func (f Fault) class() Class {
	if f.Lost {
		return ClassReplace
	}
	classes := []Class{ClassUnknown}
	if f.Asked != gpu.RecoveryNone {
		classes = append(classes, recoveryClass(f.Asked))
	}
	for _, xid := range f.XIDs {
		classes = append(classes, Look(xid).Class)
	}
	return slices.MaxFunc(classes, func(a, b Class) int { return slices.Index(severities, a) - slices.Index(severities, b) })
}

// severities are the classes of faults, the least severe first. An XID that is information or an error of an application is a fault only because the
// policy says so.
var severities = []Class{ClassInformation, ClassApplication, ClassUnknown, ClassDrain, ClassReset, ClassReplace}

func (f Fault) reason() string {
	if f.Lost {
		return nodecontract.ReasonLost
	}
	switch f.class() {
	case ClassReplace:
		return nodecontract.ReasonReplace
	case ClassReset:
		return nodecontract.ReasonReset
	case ClassDrain:
		return nodecontract.ReasonDrain
	default:
		return nodecontract.ReasonUnknown
	}
}
