// Package lifecycle is the life of a machine as one table: for each state what the machine is good for, how long the state may last, who takes the next step and
// what that is. The decisions read it, and docs/machines.md shows it. It is pure.
package lifecycle

import (
	"fmt"
	"time"
)

// State is where a machine is in its life.
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

// Room is what a machine is to pods that need a place.
type Room string

const (
	// NoRoom is for machines that take no pods any more.
	NoRoom Room = "none"
	// Promised is for machines that start: they count as what they will have.
	Promised Room = "what it promises"
	// Exposed is for machines that run: they count as what their Node has.
	Exposed Room = "what its Node has"
)

// Limit is how long a state may last.
type Limit struct {
	// Setting is the chart's setting or the API field that says it, "" for a constant.
	Setting string
	// Default is the value without the setting; 0 where the state may last.
	Default time.Duration
}

func (l Limit) String() string {
	switch {
	case l.Default == 0 && l.Setting == "":
		return "none"
	case l.Default == 0:
		return "`" + l.Setting + "`"
	case l.Setting == "":
		return short(l.Default)
	}
	return fmt.Sprintf("`%s` (%s)", l.Setting, short(l.Default))
}

// short writes a duration without the units that are 0.
func short(d time.Duration) string {
	switch {
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}

// Constants of the table that are no settings.
const (
	// ReplacingPatience is how long the new place of a machine's pods may take: Karpenter lets a machine register for 15 minutes, and after that its
	// replicas have to come.
	ReplacingPatience = 30 * time.Minute
	// ProbeRetries is how many times the retry of the breaker a pool stays half-open that nobody asks anything of.
	ProbeRetries = 6
	// LongestRest is how long a machine is left alone at most whose pods got no new place, and LongestRepairRest one that stands for others that were sick.
	LongestRest       = 6 * time.Hour
	LongestRepairRest = 12 * time.Hour
	// LayoutLook is how close together two looks for a cheaper layout may be.
	LayoutLook = 10 * time.Second
)

var (
	launchTimeout   = Limit{"settings.launchTimeout", time.Minute}
	replicasTimeout = Limit{"settings.replicasTimeout", 10 * time.Minute}
	settle          = Limit{"settings.settleDuration", 10 * time.Second}
)

// Rule is what holds for a state.
type Rule struct {
	State State
	// Means says when a machine is in the state.
	Means string
	Room  Room
	// Budgeted says that the machine counts towards its NodePool's disruption budgets: in the total, and when it is on its way out or not ready among those
	// that are disrupted. As in Karpenter, machines that have not been initialised are in neither number.
	Budgeted bool
	// Breaks says that the machine is broken when the limit is over.
	Breaks bool
	Limit  Limit
	// Since is from when on the limit counts.
	Since string
	// Owner takes the next step.
	Owner string
	// Next is what ends the state in time, Late what happens when the limit is over.
	Next, Late string
}

// Table is the life of a machine.
var Table = []Rule{
	{
		State: Requested, Means: "the NodeClaim exists", Room: Promised, Limit: launchTimeout, Since: "the NodeClaim's creation",
		Owner: "Karpenter", Next: "the cloud makes the machine: Launched", Late: "Karve deletes the NodeClaim and leaves the offering alone for a while (`refusedOfferings`)",
	},
	{
		State: Launched, Means: "the cloud has made the machine, which has no Node yet", Room: Promised, Breaks: true, Limit: replicasTimeout, Since: "`Launched`",
		Owner: "the kubelet", Next: "its Node registers: Registered", Late: "Broken",
	},
	{
		State: Registered, Means: "its Node lacks replicas that were promised", Room: Promised, Breaks: true, Limit: replicasTimeout, Since: "`Registered`",
		Owner: "the device plugin", Next: "the replicas come and Karve takes its startup taint off: Initializing", Late: "Broken",
	},
	{
		State: Initializing, Means: "its replicas came, and something else is missing: another startup taint is there, or the Node is not ready", Room: Promised, Breaks: true,
		Limit: replicasTimeout, Since: "`Registered` or the annotation `karve.sh/replicas-ready-since` of the Node, whichever is later",
		Owner: "whoever set the startup taint; the kubelet", Next: "Karpenter initialises it: Started", Late: "Broken",
	},
	{
		State: Broken, Means: "it has not started in time", Room: NoRoom, Limit: replicasTimeout, Since: "it became broken",
		Owner: "Karve", Next: "its NodePool's breaker opens; without pods of workloads its NodeClaim is deleted: Draining. One without a Node is left to Karpenter, which deletes it 15m after its creation",
		Late: "its NodeClaim is deleted, whatever pods are on it: Draining",
	},
	{
		State: NodeMissing, Means: "it has registered, and there is no Node", Room: Promised, Breaks: true, Limit: replicasTimeout, Since: "`Registered`",
		Owner: "the kubelet", Next: "its Node is seen: Registered", Late: "Broken, and its NodeClaim is deleted: Draining",
	},
	{
		State: Started, Means: "it takes pods", Room: Exposed, Budgeted: true, Limit: Limit{Setting: "expireAfter"}, Since: "the NodeClaim's creation", Owner: "Karve",
		Next: "it idles for `idleAfter`: Disrupting; it drifts or costs too much: Replacing", Late: "Karpenter deletes its NodeClaim: Draining; Karve has a place for its pods ready 15m before",
	},
	{
		State: Unhealthy, Means: "it takes pods, and something ails it", Room: Exposed, Budgeted: true, Limit: Limit{"settings.notReadyTimeout", 30 * time.Minute}, Since: "the Node's condition",
		Owner: "the kubelet; people", Next: "it is well again: Started", Late: "it is replaced: Replacing; one that is not heard of: Draining. Other ailments have [other limits](disruption.md#unhealthy-nodes)",
	},
	{
		State: Replacing, Means: "it is marked to go, and its pods need another place", Room: NoRoom, Budgeted: true, Limit: Limit{Default: ReplacingPatience}, Since: "the annotation `karve.sh/replacing-since`",
		Owner: "Karve", Next: "its pods have another place: Disrupting", Late: "it stays: Started, and is left alone for 10m, twice as long each time, at most 6h",
	},
	{
		State: Disrupting, Means: "it has the taint `karve.sh/disrupting`", Room: Exposed, Budgeted: true, Limit: settle, Since: "the annotation `karve.sh/disrupting-since`", Owner: "Karve",
		Next: "a pod comes, or something keeps it: the taint goes, Started or Replacing", Late: "its NodeClaim is deleted: Draining",
	},
	{
		State: Draining, Means: "its NodeClaim is being deleted", Room: NoRoom, Budgeted: true, Limit: Limit{"terminationGracePeriod", time.Hour}, Since: "the NodeClaim's deletion", Owner: "Karpenter",
		Next: "its pods are evicted as their PodDisruptionBudgets allow: it is gone", Late: "Karpenter deletes what is left of its pods: it is gone. With `Never` it waits for them",
	},
}

// Of is the rule of a state.
func Of(s State) *Rule {
	for i := range Table {
		if Table[i].State == s {
			return &Table[i]
		}
	}
	panic("there is no rule for machines that are " + string(s)) // A test looks at every state.
}
