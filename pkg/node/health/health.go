// Package health decides which GPUs are out of service, from the events that they report. It is pure but for Store: events in, changes
// out. A GPU that is out of service stays so until it was really reset: that its memory can be read again, or that it is listed again, says
// nothing about whether it computes. Two things say that it was reset: the machine has booted since, or a person or a job that ran
// `nvidia-smi --gpu-reset` says so (MarkReset), and then the GPU answers the driver opened anew (Reopened).
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
)

// Fault is why a GPU is out of service.
type Fault struct {
	// Since is when it was taken out.
	Since time.Time `json:"since"`
	// XIDs are the different ones that counted, in the order in which they came; the worst of them says what to do.
	XIDs []int `json:"xids,omitempty"`
	// Lost says that the GPU did not answer any more.
	Lost bool `json:"lost,omitempty"`
	// Unread says that an earlier agent's record could not be read.
	Unread bool `json:"unread,omitempty"`
	// Reset says that somebody reset the GPU since.
	Reset bool `json:"reset,omitempty"`
}

// State is what has to outlive the agent: without it, a restarted agent would take a broken GPU for a good one.
type State struct {
	// Boot is the boot of the machine during which the faults came up (/proc/sys/kernel/random/boot_id).
	Boot string `json:"boot"`
	// Faults are those of GPUs by UUID.
	Faults map[string]Fault `json:"faults,omitempty"`
	// GPUs were listed at some time of this boot, in order of UUID. One that is not any more is lost.
	GPUs []string `json:"gpus,omitempty"`
	// Distrust says that GPUs that are not in GPUs are out of service: an earlier record of this boot could not be read.
	Distrust bool `json:"distrust,omitempty"`
}

// Change is a GPU that went out of service or came back. It is meant for all of the GPU's replicas.
type Change struct {
	UUID    string
	Healthy bool
	Fault   Fault
}

// Event is a Kubernetes event to write about the node.
type Event struct {
	// Warning is the event's type; else it is Normal.
	Warning bool
	Reason  string
	Message string
}

// Reasons of events alone.
const (
	ReasonApplication = "GPUApplicationError"
	ReasonIgnored     = "GPUFaultIgnored"
	ReasonRecovered   = "GPURecovered"
	// ReasonDriverBack: the driver answers again.
	ReasonDriverBack = "DriverBack"
)

const annotate = "annotate the Node with " + nodecontract.GPUResetAnnotation + "=<its UUID>"

// mostXIDs bounds what is kept of one fault.
const mostXIDs = 8

// Tracker follows the GPUs of a machine. It is not safe for concurrent use.
type Tracker struct {
	policy   Policy
	boot     string
	devices  map[string]gpu.Device
	faults   map[string]Fault
	told     map[gpu.Event]bool
	seen     map[string]bool
	distrust bool
	// rebooted were out of service in an earlier boot.
	rebooted map[string]bool
	unusable []gpu.Unusable
}

// New returns a tracker for a machine that was booted as boot says. saved is the State of an earlier agent, or the zero value: its faults
// hold when the machine was not rebooted since. A boot that is not known, "", is taken for the same one. Reopened tells it of the GPUs.
func New(p Policy, boot string, saved State) *Tracker {
	t := &Tracker{
		policy: p, boot: cmp.Or(boot, saved.Boot), devices: map[string]gpu.Device{}, faults: map[string]Fault{},
		told: map[gpu.Event]bool{}, seen: map[string]bool{}, rebooted: map[string]bool{},
	}
	if boot != "" && saved.Boot != "" && boot != saved.Boot {
		for uuid := range saved.Faults {
			t.rebooted[uuid] = true
		}
		return t
	}
	t.distrust = saved.Distrust
	for _, uuid := range saved.GPUs {
		t.seen[uuid] = true
	}
	for uuid, fault := range saved.Faults {
		t.faults[uuid] = fault
		for _, xid := range fault.XIDs { // The earlier agent has told.
			t.told[gpu.Event{UUID: uuid, XID: xid}] = true
			t.told[gpu.Event{UUID: uuid, XID: xid, Lost: true}] = true
		}
		if fault.Lost {
			t.told[gpu.Event{UUID: uuid, Lost: true}] = true
		}
	}
	return t
}

// Observe takes an event: the changes it makes, and what to tell people. Each XID of a GPU is told once.
func (t *Tracker) Observe(e gpu.Event, at time.Time) ([]Change, []Event) {
	return t.observe(t.affected(e), e, at)
}

func (t *Tracker) observe(uuids []string, e gpu.Event, at time.Time) ([]Change, []Event) {
	var changes []Change
	var events []Event
	for _, uuid := range uuids {
		counts := e.Lost && t.policy.CountsLost() || e.XID != 0 && t.policy.Counts(e.XID)
		one := gpu.Event{UUID: uuid, XID: e.XID, Lost: e.Lost}
		if !t.told[one] {
			t.told[one] = true
			events = append(events, t.event(one, counts))
		}
		if !counts {
			continue
		}
		fault, before := t.faults[uuid]
		if !before {
			fault.Since = at
		}
		// A fault after the reset is a new one.
		fault.Lost, fault.Reset = fault.Lost || e.Lost, false
		if e.XID != 0 && !slices.Contains(fault.XIDs, e.XID) && len(fault.XIDs) < mostXIDs {
			fault.XIDs = append(slices.Clone(fault.XIDs), e.XID)
		}
		t.faults[uuid] = fault
		if !before {
			changes = append(changes, Change{UUID: uuid, Fault: fault})
		}
	}
	return changes, events
}

// affected lists the GPUs that an event is about: all of them when it names none, and none when it names one that is not here.
func (t *Tracker) affected(e gpu.Event) []string {
	if e.UUID == "" {
		return t.uuids()
	}
	if _, ok := t.devices[e.UUID]; !ok {
		return nil
	}
	return []string{e.UUID}
}

func (t *Tracker) uuids() []string {
	return slices.SortedFunc(maps.Keys(t.devices), func(a, b string) int {
		return cmp.Or(cmp.Compare(t.devices[a].Index, t.devices[b].Index), cmp.Compare(a, b))
	})
}

// MarkReset notes that somebody says that they reset a GPU. It comes back when it answers after the driver was opened again, unless it has
// another fault before. It returns whether the GPU is out of service at all.
func (t *Tracker) MarkReset(uuid string) bool {
	fault, ok := t.faults[uuid]
	if ok {
		fault.Reset = true
		t.faults[uuid] = fault
	}
	return ok
}

// Marked says whether MarkReset still holds for a GPU.
func (t *Tracker) Marked(uuid string) bool { return t.faults[uuid].Reset }

// Reopened takes the GPUs that NVML lists after it was opened, and opened again. Those that were reset and answer come back; those that were
// listed before in this boot and are not any more are lost.
func (t *Tracker) Reopened(devices []gpu.Device, answers func(uuid string) bool, at time.Time) ([]Change, []Event) {
	t.devices = map[string]gpu.Device{}
	for _, d := range devices {
		t.devices[d.UUID] = d
	}
	var changes []Change
	var events []Event
	for _, uuid := range t.uuids() {
		fault, faulty := t.faults[uuid]
		known := t.seen[uuid]
		t.seen[uuid] = true
		switch {
		case faulty && fault.Reset && answers(uuid):
			delete(t.faults, uuid)
			maps.DeleteFunc(t.told, func(e gpu.Event, _ bool) bool { return e.UUID == uuid })
			changes = append(changes, Change{UUID: uuid, Healthy: true, Fault: fault})
			events = append(events, Event{Reason: ReasonRecovered, Message: t.name(uuid) + " was reset and is in service again"})
		case !faulty && !known && t.distrust:
			fault = Fault{Since: at, Unread: true}
			t.faults[uuid] = fault
			changes = append(changes, Change{UUID: uuid, Fault: fault})
			events = append(events, Event{Warning: true, Reason: fault.reason(), Message: t.name(uuid) + " " + fault.said() + "; all its replicas are out of service: " + fault.advice()})
		case !faulty && t.rebooted[uuid]:
			events = append(events, Event{Reason: ReasonRecovered, Message: t.name(uuid) + " was out of service before the machine was rebooted, and is in service again"})
		}
	}
	maps.DeleteFunc(t.rebooted, func(uuid string, _ bool) bool { return t.seen[uuid] }) // It is told once.
	for _, uuid := range slices.Sorted(maps.Keys(t.seen)) {
		if _, listed := t.devices[uuid]; !listed && t.Healthy(uuid) {
			gone, said := t.observe([]string{uuid}, gpu.Event{UUID: uuid, Lost: true}, at)
			changes, events = append(changes, gone...), append(events, said...)
		}
	}
	return changes, events
}

// SetUnusable takes the GPUs that the driver does not offer, each of which is told once.
func (t *Tracker) SetUnusable(unusable []gpu.Unusable) []Event {
	if !t.policy.CountsLost() {
		return nil
	}
	var events []Event
	for _, u := range unusable {
		if !slices.ContainsFunc(t.unusable, func(had gpu.Unusable) bool { return had.Where == u.Where }) {
			events = append(events, Event{Warning: true, Reason: nodecontract.ReasonUnusable, Message: describeUnusable(u)})
		}
	}
	t.unusable = unusable
	return events
}

func describeUnusable(u gpu.Unusable) string {
	return fmt.Sprintf("The GPU %s cannot be used: %s: see what `dmesg | grep NVRM` says on the machine, reboot it, and replace it when that does not help", u.Where, u.Why)
}

// OutOfService lists the GPUs that are, by index; those that are not listed any more come last.
func (t *Tracker) OutOfService() []string { return t.faulty() }

// Healthy says whether a GPU is in service.
func (t *Tracker) Healthy(uuid string) bool {
	_, faulty := t.faults[uuid]
	return !faulty
}

// State is what to save.
func (t *Tracker) State() State {
	return State{Boot: t.boot, Faults: maps.Clone(t.faults), GPUs: slices.Sorted(maps.Keys(t.seen)), Distrust: t.distrust}
}

// event says what happened and what becomes of it.
func (t *Tracker) event(e gpu.Event, counts bool) Event {
	what := t.name(e.UUID) + " " + describe(e)
	if counts {
		fault := Fault{Lost: e.Lost}
		if e.XID != 0 {
			fault.XIDs = []int{e.XID}
		}
		return Event{Warning: true, Reason: fault.reason(), Message: what + "; all its replicas are out of service: " + fault.advice()}
	}
	switch Look(e.XID).Class {
	case ClassApplication:
		return Event{Warning: true, Reason: ReasonApplication, Message: what + ": most likely the fault of a program on it, which may have to be started again; the GPU stays in service"}
	case ClassInformation:
		return Event{Reason: ReasonIgnored, Message: what + "; the GPU stays in service"}
	default:
		return Event{
			Warning: true, Reason: ReasonIgnored,
			Message: fmt.Sprintf("%s; the GPU stays in service, because %s says so", what, DisableEnv),
		}
	}
}

func describe(e gpu.Event) string {
	if e.XID == 0 {
		return "does not answer any more"
	}
	return fmt.Sprintf("reported XID %d (%s)", e.XID, Look(e.XID).Means)
}

// name is how people find the GPU: the index is nvidia-smi's, the UUID is what pods see.
func (t *Tracker) name(uuid string) string {
	d, ok := t.devices[uuid]
	if !ok {
		return "GPU " + uuid
	}
	return fmt.Sprintf("GPU %d (%s, %s)", d.Index, d.Product, uuid)
}

// class is the worst of a fault.
func (f Fault) class() Class {
	if f.Lost {
		return ClassReplace
	}
	worst := ClassUnknown
	for _, xid := range f.XIDs {
		switch c := Look(xid).Class; c {
		case ClassReplace:
			return c
		case ClassReset:
			worst = c
		case ClassInformation, ClassApplication, ClassUnknown:
		}
	}
	return worst
}

func (f Fault) reason() string {
	switch {
	case f.Lost:
		return nodecontract.ReasonLost
	case f.class() == ClassReplace:
		return nodecontract.ReasonReplace
	case f.class() == ClassReset:
		return nodecontract.ReasonReset
	default:
		return nodecontract.ReasonUnknown
	}
}

func (f Fault) advice() string {
	switch {
	case f.Lost:
		return "replace the machine, or reboot it and see whether the GPU comes back"
	case f.class() == ClassReplace:
		return "replace the machine, or reboot it"
	case f.Unread && len(f.XIDs) == 0:
		return "drain the node and replace it, reboot it, or reset the GPU with `nvidia-smi --gpu-reset` and " + annotate
	default:
		return "drain the node and replace it, or take the pods off the GPU and reset it with `nvidia-smi --gpu-reset` and " + annotate
	}
}

// said lists what the GPU reported.
func (f Fault) said() string {
	var parts []string
	for _, xid := range f.XIDs {
		parts = append(parts, describe(gpu.Event{XID: xid}))
	}
	if f.Lost {
		parts = append(parts, describe(gpu.Event{Lost: true}))
	}
	if f.Unread {
		parts = append(parts, "may be faulty, for the record of this boot cannot be read")
	}
	return strings.Join(parts, ", ")
}
