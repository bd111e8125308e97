// Package health decides from events which GPUs are out of service. Only Store has side effects. A GPU that is out of service stays so until it is
// reset. That its memory can be read or that it is listed again does not prove that it can compute. A GPU counts as reset in three cases: the machine was
// rebooted, the driver asked for a reset and no longer does (Ask), or someone who ran `nvidia-smi --gpu-reset` reports it (MarkReset) and the GPU then
// answers after the driver was opened again (Reopened).
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
	// Since is when the GPU was taken out of service.
	Since time.Time `json:"since"`
	// XIDs are the distinct XIDs of the fault, in the order in which they were reported. The worst of them determines what to do.
	XIDs []int `json:"xids,omitempty"`
	// Lost reports whether the GPU stopped answering.
	Lost bool `json:"lost,omitempty"`
	// Asked is what the driver asks for, or RecoveryNone.
	Asked gpu.Recovery `json:"asked,omitempty"`
	// Unread reports whether the record of an earlier agent could not be read.
	Unread bool `json:"unread,omitempty"`
	// Reset reports whether someone has reset the GPU since.
	Reset bool `json:"reset,omitempty"`
	// GPU is the UUID of the GPU if the fault is one of its MIG instances, or "" otherwise.
	GPU string `json:"gpu,omitempty"`
}

// State is the state that must survive a restart of the agent. Without it, a restarted agent would put unhealthy GPUs back in service.
type State struct {
	// Boot is the boot ID of the machine when the faults occurred (/proc/sys/kernel/random/boot_id).
	Boot string `json:"boot"`
	// Faults are keyed by the UUID of the GPU or of the MIG instance.
	Faults map[string]Fault `json:"faults,omitempty"`
	// GPUs are the UUIDs of the GPUs that were listed at any time during this boot, sorted. A GPU that is no longer listed is lost.
	GPUs []string `json:"gpus,omitempty"`
	// Distrust reports whether GPUs that are not in GPUs are out of service, because an earlier record of this boot could not be read.
	Distrust bool `json:"distrust,omitempty"`
}

// Change is a GPU or a MIG instance that went out of service or came back. It applies to all its replicas.
type Change struct {
	UUID    string
	Healthy bool
	Fault   Fault
}

// Event is a Kubernetes event to write about the node.
type Event struct {
	// Warning reports whether the type of the event is Warning. Otherwise it is Normal.
	Warning bool
	Reason  string
	Message string
}

// Reasons that only events have.
const (
	ReasonApplication = "GPUApplicationError"
	ReasonIgnored     = "GPUFaultIgnored"
	ReasonRecovered   = "GPURecovered"
	// ReasonDriverBack means that the driver answers again.
	ReasonDriverBack = "DriverBack"
)

const annotate = "annotate the Node with " + nodecontract.GPUResetAnnotation + "=<its UUID>"

// maxXIDs is the largest number of XIDs that a fault keeps.
const maxXIDs = 8

// Tracker tracks the health of the GPUs of a machine. It is not safe for concurrent use.
type Tracker struct {
	policy   Policy
	boot     string
	devices  map[string]gpu.Device
	faults   map[string]Fault
	reported map[gpu.Event]bool
	seen     map[string]bool
	distrust bool
	// rebooted are the GPUs that were out of service in an earlier boot.
	rebooted map[string]bool
	unusable []gpu.Unusable
	// asked is what the driver asked for last, by GPU.
	asked map[string]gpu.Recovery
}

// New returns a tracker for a machine with the given boot ID. saved is the state of an earlier agent, or the zero value. Its faults apply if the machine
// was not rebooted since. An unknown boot ID, "", counts as the same boot. The tracker knows no GPUs until Reopened is called.
func New(p Policy, boot string, saved State) *Tracker {
	t := &Tracker{
		policy: p, boot: cmp.Or(boot, saved.Boot), devices: map[string]gpu.Device{}, faults: map[string]Fault{},
		reported: map[gpu.Event]bool{}, seen: map[string]bool{}, rebooted: map[string]bool{}, asked: map[string]gpu.Recovery{},
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
		for _, xid := range fault.XIDs { // The earlier agent has reported them.
			t.reported[gpu.Event{UUID: uuid, XID: xid}] = true
			t.reported[gpu.Event{UUID: uuid, XID: xid, Lost: true}] = true
		}
		if fault.Lost {
			t.reported[gpu.Event{UUID: uuid, Lost: true}] = true
		}
	}
	return t
}

// Observe handles an event, and returns the changes and the Kubernetes events that follow from it. Each XID of a GPU is reported once.
func (t *Tracker) Observe(e gpu.Event, at time.Time) ([]Change, []Event) {
	return t.observe(t.affected(e), e, at)
}

func (t *Tracker) observe(uuids []string, e gpu.Event, at time.Time) ([]Change, []Event) {
	var changes []Change
	var events []Event
	for _, uuid := range uuids {
		one := gpu.Event{UUID: uuid, XID: e.XID, Lost: e.Lost}
		whole := uuid
		d, instance := t.find(uuid)
		if instance != nil {
			whole = d.UUID
		}
		counts := t.counts(e, whole)
		if !t.reported[one] {
			t.reported[one] = true
			events = append(events, t.event(one, counts))
		}
		if !counts {
			continue
		}
		fault, before := t.faults[uuid]
		if !before {
			fault.Since = at
		}
		if instance != nil {
			fault.GPU = whole
		}
		fault = fault.with(e)
		t.faults[uuid] = fault
		if !before {
			changes = append(changes, Change{UUID: uuid, Fault: fault})
		}
	}
	return changes, events
}

// counts reports whether an event of a GPU, or of one of its MIG instances, is a fault.
func (t *Tracker) counts(e gpu.Event, whole string) bool {
	if e.Lost && t.policy.CountsLost() {
		return true
	}
	if e.XID == 0 || !t.policy.Counts(e.XID) {
		return false
	}
	recovery, known := t.asked[whole]
	return e.Lost || !known || recovery != gpu.RecoveryNone || !t.policy.trustsDriver() || !t.policy.yields(e.XID)
}

// with returns the fault after another event. A fault after a reset is a new fault.
func (f Fault) with(e gpu.Event) Fault {
	f.Lost, f.Reset = f.Lost || e.Lost, false
	if e.XID != 0 && !slices.Contains(f.XIDs, e.XID) && len(f.XIDs) < maxXIDs {
		f.XIDs = append(slices.Clone(f.XIDs), e.XID)
	}
	return f
}

// affected returns the GPU or the MIG instance that an event is about. It returns all GPUs if the event has no UUID, none if the UUID is unknown, and
// the whole GPU if the instance is unknown.
func (t *Tracker) affected(e gpu.Event) []string {
	if e.UUID == "" {
		return t.uuids()
	}
	d, ok := t.devices[e.UUID]
	if !ok {
		return nil
	}
	if _, instance := gpu.Find([]gpu.Device{d}, e.Instance); instance != nil {
		return []string{e.Instance}
	}
	return []string{e.UUID}
}

// find returns the GPU with the UUID, or the one with the MIG instance.
func (t *Tracker) find(uuid string) (d *gpu.Device, instance *gpu.Instance) {
	for _, whole := range t.devices {
		if d, instance := gpu.Find([]gpu.Device{whole}, uuid); d != nil {
			return d, instance
		}
	}
	return nil, nil
}

func (t *Tracker) uuids() []string {
	return slices.SortedFunc(maps.Keys(t.devices), func(a, b string) int {
		return cmp.Or(cmp.Compare(t.devices[a].Index, t.devices[b].Index), cmp.Compare(a, b))
	})
}

// MarkReset records that someone has reset a GPU. If the GPU answers after the driver was opened again, it comes back in service with its MIG
// instances, unless it has another fault before that. MarkReset reports whether the GPU or an instance was out of service.
func (t *Tracker) MarkReset(uuid string) bool {
	marked := false
	for of, fault := range t.faults {
		if of == uuid || fault.GPU == uuid {
			fault.Reset, marked = true, true
			t.faults[of] = fault
		}
	}
	return marked
}

// Marked reports whether MarkReset was called for a GPU and neither it nor an instance of it has had a fault since.
func (t *Tracker) Marked(uuid string) bool {
	marked := false
	for of, fault := range t.faults {
		if of == uuid || fault.GPU == uuid {
			if !fault.Reset {
				return false
			}
			marked = true
		}
	}
	return marked
}

// Reopened handles the GPUs that NVML lists after the driver was opened. GPUs that were reset and answer come back in service. GPUs that were listed before
// during this boot and are no longer listed are lost.
func (t *Tracker) Reopened(devices []gpu.Device, answers func(uuid string) bool, at time.Time) ([]Change, []Event) {
	t.devices = map[string]gpu.Device{}
	for _, d := range devices {
		t.devices[d.UUID] = d
	}
	var changes []Change
	var events []Event
	for _, uuid := range slices.Sorted(maps.Keys(t.faults)) {
		fault := t.faults[uuid]
		if _, listed := t.devices[fault.GPU]; listed && fault.Reset && answers(fault.GPU) {
			back, said := t.recovered(uuid, "was reset")
			changes, events = append(changes, back), append(events, said)
		}
	}
	for _, uuid := range t.uuids() {
		fault, faulty := t.faults[uuid]
		known := t.seen[uuid]
		t.seen[uuid] = true
		switch {
		case faulty && fault.Reset && answers(uuid):
			back, said := t.recovered(uuid, "was reset")
			changes, events = append(changes, back), append(events, said)
		case !faulty && !known && t.distrust:
			fault = Fault{Since: at, Unread: true}
			t.faults[uuid] = fault
			changes = append(changes, Change{UUID: uuid, Fault: fault})
			events = append(events, Event{Warning: true, Reason: fault.reason(), Message: t.name(uuid) + " " + fault.summary() + "; all its replicas are out of service: " + fault.advice()})
		case !faulty && t.rebooted[uuid]:
			events = append(events, Event{Reason: ReasonRecovered, Message: t.name(uuid) + " was out of service before the machine was rebooted, and is in service again"})
		}
	}
	maps.DeleteFunc(t.rebooted, func(uuid string, _ bool) bool { return t.seen[uuid] }) // It is reported once.
	for _, uuid := range slices.Sorted(maps.Keys(t.seen)) {
		if _, listed := t.devices[uuid]; !listed && t.Healthy(uuid) {
			gone, said := t.observe([]string{uuid}, gpu.Event{UUID: uuid, Lost: true}, at)
			changes, events = append(changes, gone...), append(events, said...)
		}
	}
	return changes, events
}

// recovered puts a GPU or a MIG instance back in service. why is a verb phrase.
func (t *Tracker) recovered(uuid, why string) (Change, Event) {
	fault := t.faults[uuid]
	delete(t.faults, uuid)
	maps.DeleteFunc(t.reported, func(e gpu.Event, _ bool) bool { return e.UUID == uuid })
	return Change{UUID: uuid, Healthy: true, Fault: fault}, Event{Reason: ReasonRecovered, Message: t.name(uuid) + " " + why + " and is in service again"}
}

// SetUnusable sets the GPUs that the driver does not offer. Each of them is reported once.
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

// OutOfService returns the UUIDs of the GPUs and MIG instances that are out of service, sorted by index. Those that are no longer listed come last.
func (t *Tracker) OutOfService() []string { return t.faulty() }

// Healthy reports whether a GPU or a MIG instance is in service.
func (t *Tracker) Healthy(uuid string) bool {
	_, faulty := t.faults[uuid]
	return !faulty
}

// Sound reports whether a GPU and all its MIG instances are in service.
func (t *Tracker) Sound(uuid string) bool {
	for of, fault := range t.faults {
		if of == uuid || fault.GPU == uuid {
			return false
		}
	}
	return true
}

// State returns the state to save.
func (t *Tracker) State() State {
	return State{Boot: t.boot, Faults: maps.Clone(t.faults), GPUs: slices.Sorted(maps.Keys(t.seen)), Distrust: t.distrust}
}

// event returns the Kubernetes event for an event of a GPU. counts reports whether it takes the GPU out of service.
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
		if t.policy.Counts(e.XID) {
			return Event{Warning: true, Reason: ReasonIgnored, Message: what + "; the GPU stays in service, because the driver asks for no recovery"}
		}
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

// name returns a name of the GPU for users: the index is the one of nvidia-smi, and pods see the UUID.
func (t *Tracker) name(uuid string) string {
	d, instance := t.find(uuid)
	switch {
	case d == nil && t.faults[uuid].GPU != "":
		return "MIG instance " + uuid + " of GPU " + t.faults[uuid].GPU
	case d == nil:
		return "GPU " + uuid
	case instance != nil:
		return fmt.Sprintf("MIG instance %d:%d (%s, %s, of %s)", d.Index, instance.Index, instance.Profile, instance.UUID, d.UUID)
	}
	return fmt.Sprintf("GPU %d (%s, %s)", d.Index, d.Product, uuid)
}

func (f Fault) advice() string {
	switch {
	case f.Lost:
		return "replace the machine, or reboot it and see whether the GPU comes back"
	case f.class() == ClassReplace:
		return "replace the machine, or reboot it"
	case f.class() == ClassDrain:
		return "end the pods whose work spans GPUs, or drain the node; then the GPU is in service again, or the driver asks for a reset"
	case f.Unread && len(f.XIDs) == 0:
		return "drain the node and replace it, reboot it, or reset the GPU with `nvidia-smi --gpu-reset` and " + annotate
	default:
		return "drain the node and replace it, or take the pods off the GPU and reset it with `nvidia-smi --gpu-reset` and " + annotate
	}
}

// summary returns a list of what the GPU reported.
func (f Fault) summary() string {
	var parts []string
	for _, xid := range f.XIDs {
		parts = append(parts, describe(gpu.Event{XID: xid}))
	}
	if f.Asked != gpu.RecoveryNone {
		parts = append(parts, describeRecovery(f.Asked))
	}
	if f.Lost {
		parts = append(parts, describe(gpu.Event{Lost: true}))
	}
	if f.Unread {
		parts = append(parts, "may be faulty, for the record of this boot cannot be read")
	}
	return strings.Join(parts, ", ")
}
