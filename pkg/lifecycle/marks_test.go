package lifecycle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/internal/docpage"
	"karve.sh/karve/pkg/nodecontract"
)

// mark is a condition, taint, annotation or status entry that Karve writes and that has an effect for a limited time.
type mark struct {
	// Name is that of the condition, taint or annotation. On is the kind of the object that has it.
	Name, On string
	// Holds is its effect.
	Holds string
	Limit Limit
	// Owner removes it, and Ends describes when.
	Owner, Ends string
}

// marks is the table of docs/machines.md, with the limits of the code.
var marks = []mark{
	{v1alpha1.ConditionReplicasHealthy + "=False", "NodePool", "Karve launches nothing for the pool", Limit{"settings.replicasTimeout", 10 * time.Minute}, "Karve", "it becomes `Unknown` at the limit, or `True` when a machine starts"},
	{
		v1alpha1.ConditionReplicasHealthy + "=Unknown", "NodePool", "Karve launches one machine at a time",
		Limit{"6 × settings.replicasTimeout", ProbeRetries * 10 * time.Minute},
		"Karve",
		"that machine starts (`True`) or breaks (`False`). Without waiting pods, it becomes `True` at the limit",
	},
	{v1alpha1.ConditionNodesHealthy + "=False", "NodePool", "Karve replaces no unhealthy machine of the pool", Limit{}, "administrators", "at most a fifth of the pool's machines are unhealthy: delete the NodeClaims that the message names"},
	{v1alpha1.ConditionPlanningHealthy + "=False", "NodePool", "Karve decides without the objects that the message names", Limit{Default: 24 * time.Hour}, "Karve", "the objects have changed, or have been gone for ten minutes"},
	{"status.refusedOfferings", "GPUNodeClass", "Karve does not request the offering", Limit{Setting: "notBefore"}, "Karve", "the time has passed, or the cloud launches the offering"},
	{"status.nodeMismatches", "GPUNodeClass", "Karve launches nothing for pods that a node did not admit because of its labels", Limit{}, "administrators", "the node gets the label, or the pods, the NodePool, the GPUNodeClass or the cloud's node class change"},
	{v1alpha1.ReplicasNotReadyTaintKey, "Node", "the scheduler binds no pod to a machine that is starting", replicasTimeout, "Karve", "the replicas appear, or the NodeClaim is deleted"},
	{v1alpha1.ReplicasReadySinceAnnotation, "Node", "nothing", replicasTimeout, "Karve", "Karpenter initializes the NodeClaim, or it is deleted"},
	{v1alpha1.IdleSinceAnnotation, "Node", "nothing", Limit{"idleAfter", 5 * time.Minute}, "Karve", "a pod is bound to the machine, or Karve taints it"},
	{v1alpha1.DisruptingTaintKey, "Node", "the scheduler binds no new pod", settle, "Karve", "something keeps the machine, or its NodeClaim is deleted"},
	{v1alpha1.DisruptingSinceAnnotation, "Node", "nothing", settle, "Karve", "Karve removes the taint"},
	{v1alpha1.SurplusTaintKey, "Node", "the scheduler prefers other machines", Limit{Default: LayoutLook}, "Karve", "the next layout uses the machine, or pods may no longer be moved"},
	{v1alpha1.ReplacingAnnotation, "NodeClaim", "Karve plans no pod for it", Limit{Default: ReplacingPatience}, "Karve", "the NodeClaim is deleted, or the machine stays"},
	{v1alpha1.ReplacingSinceAnnotation, "NodeClaim", "nothing", Limit{Default: ReplacingPatience}, "Karve", "Karve removes `" + v1alpha1.ReplacingAnnotation + "`"},
	{v1alpha1.ReplaceAfterAnnotation, "NodeClaim", "Karve does not replace it", Limit{Default: LongestBackoff}, "Karve", "the time has passed: 10m, doubled after each failure. Remove it to retry at once"},
	{v1alpha1.ReplacementFailuresAnnotation, "NodeClaim", "nothing", Limit{Default: LongestBackoff}, "Karve", "Karve replaces the machine"},
	{v1alpha1.ReplicasShortSinceAnnotation, "Node", "nothing", replicasTimeout, "Karve", "the replicas are back, or Karve replaces the machine"},
	{v1alpha1.RepairsAnnotation, "NodeClaim", "Karve does not replace it although it is unhealthy", Limit{Default: LongestRepairRest}, "Karve", "the machine is old enough: 30m, doubled for each earlier repair. Remove it to replace the machine at once"},
	{nodecontract.SlotsChangingTaintKey, "Node", "the scheduler binds no new pod while free slots of memory are withdrawn", Limit{Default: SlotsPatience}, "Karve", "the Node has the new slots, or pods need the old ones"},
	{v1alpha1.SlotsNextAnnotation, "Node", "nothing", Limit{Default: SlotsPatience}, "Karve", "the slots are written, or Karve removes the taint"},
	{v1alpha1.SlotsChangingSinceAnnotation, "Node", "nothing", Limit{Default: SlotsPatience}, "Karve", "Karve removes the taint"},
	{v1alpha1.ReplicasRaisedAnnotation, "NodeClaim", "nothing", Limit{Default: time.Minute}, "the node agent", "the replicas are there. After the limit, missing ones no longer count"},
}

func TestPageHasTableOfMarks(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("| name | on | effect | limit | ends when |\n|---|---|---|---|---|\n")
	var notes []string
	for _, m := range marks {
		if m.On == "" || m.Holds == "" || m.Owner == "" || m.Ends == "" {
			t.Errorf("%s lacks something: %+v", m.Name, m)
		}
		if m.Limit == (Limit{}) && m.Owner != "administrators" {
			t.Errorf("%s has no limit and no administrator as owner: %+v", m.Name, m)
		}
		switch {
		case !strings.HasPrefix(m.Name, v1alpha1.Group): // Other pages describe the conditions and the status.
			continue
		case m.Holds == "nothing":
			notes = append(notes, "`"+m.Name+"`")
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.On, m.Holds, limit(m.Limit), m.Ends)
	}
	fmt.Fprintf(&b, "| %s | | none: these are Karve's notes | | |\n", strings.Join(notes, ", "))
	docpage.Check(t, page, "<!-- marks -->\n", "<!-- end of marks -->\n", b.String(), *update)
}
