// Package lifecycle describes the life of a machine in one table. For each state, the table has the number of pods for which the machine counts, how
// long the state may last, who takes the next step, and what the step is. Decisions read the table, and docs/machines.md shows it. The package has no
// clock and no client.
package lifecycle

import (
	"time"
)

// State is a stage in the life of a machine.
type State string

// States of a machine, in the order of its life.
const (
	Requested    State = "Requested"
	Launched     State = "Launched"
	Registered   State = "Registered"
	Initializing State = "Initializing"
	Broken       State = "Broken"
	NodeMissing  State = "NodeMissing"
	Started      State = "Started"
	Unhealthy    State = "Unhealthy"
	Replacing    State = "Replacing"
	Disrupting   State = "Disrupting"
	Draining     State = "Draining"
)

// Room is the capacity of a machine that planning counts on for pending pods.
type Room string

const (
	// NoRoom is for machines that accept no more pods.
	NoRoom Room = "none"
	// Promised is for machines that are starting: the capacity in the NodeClaim.
	Promised Room = "planned capacity"
	// Exposed is for machines that have started: the capacity that their Node reports.
	Exposed Room = "its Node's allocatable"
)

// Limit is how long a state may last.
type Limit struct {
	// Setting is the chart value or API field that sets the limit. It is "" for a constant.
	Setting string
	// Default is the limit without the setting, or 0 if the state may last forever.
	Default time.Duration
}

// Backoff returns how long to wait after a number of consecutive failures: first after one failure, twice as long after each further one, up to most.
func Backoff(first, most time.Duration, failures int) time.Duration {
	d := min(first, most)
	for ; failures > 1 && d < most; failures-- {
		d = min(2*d, most)
	}
	return d
}

// Limits that users cannot set.
const (
	// ReplacingPatience is how long a replacement may take to start. Karpenter gives a machine 15 minutes to register, and then its replicas must appear.
	ReplacingPatience = 30 * time.Minute
	// ProbeRetries times `settings.replicasTimeout` is how long the breaker of a pool without waiting pods stays half-open.
	ProbeRetries = 6
	// LongestBackoff is the longest back-off after a failed replacement. LongestRepairRest is the longest rest of a machine that replaced unhealthy ones.
	LongestBackoff    = 6 * time.Hour
	LongestRepairRest = 12 * time.Hour
	// SlotsSettle is how long a Node is closed to new pods before free slots of memory are withdrawn. The scheduler binds a pod within that time after
	// choosing its Node.
	SlotsSettle = 5 * time.Second
	// SlotsPatience is the longest time for which a Node is closed for this. The kubelet reports changes of devices every ten seconds.
	SlotsPatience = time.Minute
	// LayoutLook is the shortest time between two searches for a cheaper layout.
	LayoutLook = 10 * time.Second
)

var (
	launchTimeout   = Limit{"settings.launchTimeout", time.Minute}
	replicasTimeout = Limit{"settings.replicasTimeout", 10 * time.Minute}
	settle          = Limit{"settings.settleDuration", 10 * time.Second}
)

// Rule describes one state.
type Rule struct {
	State State
	// Means describes when a machine is in the state.
	Means string
	Room  Room
	// Budgeted reports whether the NodePool's disruption budgets count the machine: in the total, and among the disrupted ones if it is leaving or not
	// ready. As in Karpenter, budgets do not count machines that have not been initialized.
	Budgeted bool
	// Breaks reports whether the machine becomes Broken at the limit.
	Breaks bool
	Limit  Limit
	// Owner takes the next step.
	Owner string
	// Next is the event that ends the state. Late is what happens at the limit.
	Next, Late string
}

// Table has a rule for each state, in the order of a machine's life.
var Table = []Rule{
	{
		State: Requested, Means: "the NodeClaim was created", Room: Promised, Limit: launchTimeout,
		Owner: "Karpenter", Next: "the cloud launches the machine: Launched", Late: "Karve deletes the NodeClaim and avoids the offering for a while (`refusedOfferings`)",
	},
	{
		State: Launched, Means: "the cloud launched the machine, and it has no Node yet", Room: Promised, Breaks: true, Limit: replicasTimeout,
		Owner: "the kubelet", Next: "the Node registers: Registered", Late: "Broken",
	},
	{
		State: Registered, Means: "the Node has fewer replicas than planned", Room: Promised, Breaks: true, Limit: replicasTimeout,
		Owner: "the device plugin or DRA driver", Next: "the replicas appear, and Karve removes its startup taint: Initializing", Late: "Broken",
	},
	{
		State: Initializing, Means: "the Node has its replicas, but also another startup taint, or it is not ready", Room: Promised, Breaks: true,
		Limit: replicasTimeout,
		Owner: "the owner of the startup taint; the kubelet", Next: "Karpenter initializes the NodeClaim: Started", Late: "Broken",
	},
	{
		State: Broken, Means: "it did not start in time", Room: NoRoom, Limit: replicasTimeout,
		Owner: "Karve", Next: "the breaker of its NodePool opens. If only DaemonSets have pods on it, Karve deletes its NodeClaim: Draining. If it has no Node, Karpenter deletes it 15m after its creation",
		Late: "Karve deletes its NodeClaim regardless of its pods: Draining",
	},
	{
		State: NodeMissing, Means: "it has registered, but its Node is gone", Room: Promised, Breaks: true, Limit: replicasTimeout,
		Owner: "the kubelet", Next: "the Node appears: Registered", Late: "Broken, and Karve deletes its NodeClaim: Draining",
	},
	{
		State: Started, Means: "it runs pods", Room: Exposed, Budgeted: true, Limit: Limit{Setting: "expireAfter"}, Owner: "Karve",
		Next: "it is idle for `idleAfter`: Disrupting. It drifts or costs too much: Replacing", Late: "Karpenter deletes its NodeClaim: Draining. Karve prepares room for its pods 15m earlier",
	},
	{
		State: Unhealthy, Means: "it runs pods, and a condition says that it is unhealthy", Room: Exposed, Budgeted: true, Limit: Limit{"settings.notReadyTimeout", 30 * time.Minute},
		Owner: "the kubelet; administrators", Next: "it recovers: Started", Late: "Karve replaces it: Replacing. If its kubelet does not respond: Draining. Other conditions have other limits",
	},
	{
		State: Replacing, Means: "Karve replaces it: its pods wait for room elsewhere", Room: NoRoom, Budgeted: true, Limit: Limit{Default: ReplacingPatience},
		Owner: "Karve", Next: "there is room for its pods: Disrupting", Late: "it stays: Started. Karve tries again after 10m, doubled each time up to 6h",
	},
	{
		State: Disrupting, Means: "it has the taint `karve.sh/disrupting`", Room: Exposed, Budgeted: true, Limit: settle, Owner: "Karve",
		Next: "a pod is bound to it, or something else keeps it: Karve removes the taint, Started or Replacing", Late: "Karve deletes its NodeClaim: Draining",
	},
	{
		State: Draining, Means: "its NodeClaim is being deleted", Room: NoRoom, Budgeted: true, Limit: Limit{"terminationGracePeriod", time.Hour}, Owner: "Karpenter",
		Next: "Karpenter evicts its pods as PodDisruptionBudgets allow: it is gone", Late: "Karpenter deletes the remaining pods: it is gone. With `Never` it waits for them",
	},
}

// Of returns the rule of a state. It panics for an unknown state.
func Of(s State) *Rule {
	for i := range Table {
		if Table[i].State == s {
			return &Table[i]
		}
	}
	panic("there is no rule for machines that are " + string(s)) // A test covers every state.
}
