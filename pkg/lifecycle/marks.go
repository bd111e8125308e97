package lifecycle

import (
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// Mark is something that Karve writes and that holds something back for a while: a condition, a taint, an annotation or an entry of a status.
type Mark struct {
	// Name is that of the condition, taint or annotation, On the kind of object that carries it.
	Name, On string
	// Holds is what it holds back.
	Holds string
	Limit Limit
	// Owner ends it, and Ends says when.
	Owner, Ends string
}

// Marks are all of them.
var Marks = []Mark{
	{v1alpha1.ConditionReplicasHealthy + "=False", "NodePool", "nothing is launched for the pool", Limit{"settings.breakerRetry", 10 * time.Minute}, "Karve", "it becomes `Unknown`, or `True` when a machine starts after all"},
	{
		v1alpha1.ConditionReplicasHealthy + "=Unknown", "NodePool", "one machine is launched at a time",
		Limit{Default: ProbeRetries * 10 * time.Minute},
		"Karve",
		"a machine that is launched starts (`True`) or breaks (`False`); `True` when nothing was asked for six times `settings.breakerRetry`",
	},
	{v1alpha1.ConditionNodesHealthy + "=False", "NodePool", "no sick machine of the pool is replaced", Limit{}, "people", "at most a fifth of its machines are sick; it names those that are, and asks for their NodeClaims to be deleted"},
	{"status.refusedOfferings", "GPUNodeClass", "what was refused is not asked for", Limit{Setting: "notBefore"}, "Karve", "its time is over, or the cloud launches it"},
	{v1alpha1.ReplicasNotReadyTaintKey, "Node", "no pod is bound to a machine that starts", replicasTimeout, "Karve", "its replicas come, or its NodeClaim is deleted"},
	{v1alpha1.ReplicasReadySinceAnnotation, "Node", "nothing", replicasTimeout, "Karve", "it is initialised, or its NodeClaim is deleted"},
	{v1alpha1.IdleSinceAnnotation, "Node", "nothing", Limit{"idleAfter", 5 * time.Minute}, "Karve", "a pod comes, or the machine is tainted"},
	{v1alpha1.DisruptingTaintKey, "Node", "no new pod is bound", settle, "Karve", "something keeps it, or its NodeClaim is deleted"},
	{v1alpha1.DisruptingSinceAnnotation, "Node", "nothing", settle, "Karve", "as the taint"},
	{v1alpha1.SurplusTaintKey, "Node", "the scheduler prefers other machines", Limit{Default: LayoutLook}, "Karve", "a look for a cheaper layout finds a use for it, or pods move no longer"},
	{v1alpha1.ReplacingAnnotation, "NodeClaim", "no pod is planned for it", Limit{Default: ReplacingPatience}, "Karve", "its NodeClaim is deleted, or it stays"},
	{v1alpha1.ReplacingSinceAnnotation, "NodeClaim", "nothing", Limit{Default: ReplacingPatience}, "Karve", "as `" + v1alpha1.ReplacingAnnotation + "`"},
	{v1alpha1.ReplaceAfterAnnotation, "NodeClaim", "it is not replaced", Limit{Default: LongestRest}, "Karve", "its time is over: 10m, twice as long each time; people remove it to try at once"},
	{v1alpha1.ReplacementFailuresAnnotation, "NodeClaim", "nothing", Limit{Default: LongestRest}, "Karve", "the machine is replaced"},
	{v1alpha1.ReplicasShortSinceAnnotation, "Node", "nothing", replicasTimeout, "Karve", "the replicas are back, or the machine is replaced"},
	{v1alpha1.RepairsAnnotation, "NodeClaim", "it is not replaced although it is sick", Limit{Default: LongestRepairRest}, "Karve", "the machine is old enough: 30m, twice as much for each before it; people remove it to replace it at once"},
	{v1alpha1.ReplicasRaisedAnnotation, "NodeClaim", "nothing", Limit{Default: time.Minute}, "the node agent", "the replicas are there; those that are not do not count any more"},
}
