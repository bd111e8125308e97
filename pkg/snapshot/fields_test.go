package snapshot_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// fieldsHonored is the condition type for fields that have no effect. Fields that [snapshot.Problem] reports prevent the pool from launching.
const fieldsHonored = v1alpha1.ConditionFieldsHonored

// reported are NodePools with one field that is not honored, the path of the field in the schema, and the condition that reports it.
var reported = []struct {
	name, path string
	edit       func(*karpv1.NodePool)
	// condition is the condition type that is False.
	condition, reason, message string
}{
	{
		"Balanced", "spec.disruption.consolidationPolicy=Balanced",
		func(np *karpv1.NodePool) { np.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyBalanced },
		fieldsHonored, "UnsupportedConsolidationPolicy", "spec.disruption.consolidationPolicy: Balanced has the effect of WhenEmptyOrUnderutilized: set it to",
	},
	{
		"a policy of a later version", "",
		func(np *karpv1.NodePool) { np.Spec.Disruption.ConsolidationPolicy = "WhenCold" },
		fieldsHonored, "UnsupportedConsolidationPolicy", "WhenCold is not known to this version of Karve and has the effect of WhenEmpty: set it to",
	},
	{
		"a schedule that is none", "",
		func(np *karpv1.NodePool) {
			np.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "1"}, {Nodes: "0", Schedule: new("0 25 * * *")}}
		},
		fieldsHonored, "InvalidBudget", `spec.disruption.budgets[1].schedule: "0 25 * * *" cannot be read, so no node is given back or replaced: write a cron expression`,
	},
	{
		"an annotation of Karve's", "",
		func(np *karpv1.NodePool) {
			np.Spec.Template.Annotations = map[string]string{nodecontract.GPUsAnnotation: "8", "example.com/note": "kept"}
		},
		fieldsHonored, "ReservedKey", "spec.template.metadata.annotations: karve.sh/gpus is written by Karve and has no effect here: remove it",
	},
	{
		"a label of Karve's", "", Labeled(map[string]string{v1alpha1.GPUNodeClassLabel: "other"}),
		fieldsHonored, "ReservedKey", "spec.template.metadata.labels: karve.sh/gpunodeclass is written by Karve",
	},
	{
		"reserved capacity alone", "", Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "reserved"),
		karpv1.ConditionTypeValidationSucceeded, "NoReservations", `allows only reserved capacity, and EC2NodeClass "gpu" has no capacity reservations in its status: see that`,
	},
	{
		"reserved capacity as a label", "", Labeled(map[string]string{karpv1.CapacityTypeLabelKey: "reserved"}),
		karpv1.ConditionTypeValidationSucceeded, "NoReservations", "allows only reserved capacity",
	},
	{
		"reserved capacity and minValues", "",
		func(np *karpv1.NodePool) {
			Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "on-demand", "reserved")(np)
			Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge", "g4dn.2xlarge")(np)
			np.Spec.Template.Spec.Requirements[1].MinValues = new(2)
		},
		fieldsHonored, "ReservedCapacityIgnored", "spec.template.spec.requirements: karpenter.sh/capacity-type reserved is not launched, because a NodeClaim for a reservation allows",
	},
	{
		"more values than are tried", "",
		func(np *karpv1.NodePool) {
			Requiring("team", corev1.NodeSelectorOpIn, strings.Split("abcdefghi", "")...)(np)
			Requiring("rack", corev1.NodeSelectorOpIn, strings.Split("12345678", "")...)(np)
		},
		fieldsHonored, "TooManyLabelValues",
		"spec.template.spec.requirements: rack, team have 72 combinations of values, and nodes are launched with the first 64 only: name fewer values, or use several NodePools",
	},
	{
		"more values than can be counted", "",
		func(np *karpv1.NodePool) {
			for key := range strings.SplitSeq("abcdefghijklmnopqrstuvwxyz", "") {
				Requiring(key, corev1.NodeSelectorOpIn, strings.Split("abcdefghijklmnopqrstuvwxyz", "")...)(np)
			}
		},
		fieldsHonored, "TooManyLabelValues", "have 2147483647 combinations of values",
	},
	{
		"a label without a value", "", Requiring("team", corev1.NodeSelectorOpExists),
		fieldsHonored, "LabelNotChosen", "spec.template.spec.requirements: team has no value that Karve could choose, so pods that select nodes by it have none: use operator In with the values",
	},
	{
		"a label within bounds", "", Requiring("generation", karpv1.NodeSelectorOpGte, "3"),
		fieldsHonored, "LabelNotChosen", "generation has no value that Karve could choose",
	},
	{
		"an operator of a later version", "", Requiring("karpenter.k8s.aws/instance-cpu", "Like", "4*"),
		karpv1.ConditionTypeValidationSucceeded, "UnknownOperator", "operator Like of karpenter.k8s.aws/instance-cpu is not known to this version of Karve: use one of DoesNotExist, Exists, Gt,",
	},
	{
		"static nodes", "spec.replicas", func(np *karpv1.NodePool) { np.Spec.Replicas = new(int64(2)) },
		karpv1.ConditionTypeValidationSucceeded, "StaticPool", "spec.replicas asks for a fixed number of nodes, which Karve does not serve: remove it, or",
	},
	{
		"an unsupported limit", "", func(np *karpv1.NodePool) { np.Spec.Limits = karpv1.Limits(Amounts("ephemeral-storage", "1Ti")) },
		karpv1.ConditionTypeValidationSucceeded, "UnsupportedLimit", `limit "ephemeral-storage" cannot be enforced: use cpu, memory,`,
	},
	{
		"choices of a label that no instance type has", "",
		func(np *karpv1.NodePool) {
			Requiring("team", corev1.NodeSelectorOpIn, "red", "blue")(np)
			np.Spec.Template.Spec.Requirements[0].MinValues = new(2)
		},
		karpv1.ConditionTypeValidationSucceeded, "UnsupportedMinValues", `minValues of requirement "team" cannot be kept`,
	},
}

func TestUnhonoredFieldsAreReported(t *testing.T) {
	t.Parallel()
	for _, tc := range reported {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			tc.edit(&c.NodePools[0])
			view := snapshot.Build(c)
			pool := view.Pools[0]
			var reason, message string
			switch {
			case tc.condition == fieldsHonored && len(pool.Unhonored) == 1 && len(pool.Problems) == 0:
				reason, message = pool.Unhonored[0].Reason, pool.Unhonored[0].Message
			case len(pool.Problems) == 1 && pool.Problems[0].Condition == tc.condition && len(pool.Unhonored) == 0:
				reason, message = pool.Problems[0].Reason, pool.Problems[0].Message
			}
			if reason != tc.reason || !strings.Contains(message, tc.message) {
				t.Errorf("fields %+v, problems %+v; want %s False, %s: …%s…", pool.Unhonored, pool.Problems, tc.condition, tc.reason, tc.message)
			}
			if closed := view.Snapshot.Pools[0].Closed; (closed != nil) != (tc.condition != fieldsHonored) {
				t.Errorf("closed: %+v", closed)
			}
		})
	}
}

func TestHonoredFieldsAreNotReported(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*karpv1.NodePool){
		"the defaults": func(np *karpv1.NodePool) {
			np.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized
		},
		"WhenEmpty": func(np *karpv1.NodePool) {
			np.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmpty
		},
		"a schedule": func(np *karpv1.NodePool) {
			np.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0", Schedule: new("@daily")}}
		},
		"any capacity type":            Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpExists),
		"NotIn spot":                   Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpNotIn, "spot"),
		"the maximum number of values": Requiring("team", corev1.NodeSelectorOpIn, strings.Split(strings.Repeat("a,", 64)+"b", ",")...),
		"a label with NotIn":           Requiring("team", corev1.NodeSelectorOpNotIn, "red"),
		"a label with DoesNotExist":    Requiring("team", corev1.NodeSelectorOpDoesNotExist),
		"a cloud provider label":       Requiring("karpenter.k8s.aws/instance-cpu", corev1.NodeSelectorOpGt, "1"),
		"a template label": func(np *karpv1.NodePool) {
			Labeled(map[string]string{"team": "red"})(np)
			Requiring("team", corev1.NodeSelectorOpExists)(np)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			edit(&c.NodePools[0])
			if pool := snapshot.Pools(c)[0]; len(pool.Unhonored) > 0 || len(pool.Problems) > 0 {
				t.Errorf("fields %+v, problems %+v", pool.Unhonored, pool.Problems)
			}
		})
	}
}

// Until the cloud's instance types are known, Karve cannot tell which labels are the cloud's.
func TestLabelsAreNotReportedBeforeInstanceTypesAreKnown(t *testing.T) {
	t.Parallel()
	c := Shared()
	Requiring("karpenter.azure.com/sku-gpu-count", corev1.NodeSelectorOpGt, "1")(&c.NodePools[0])
	state := c.NodeClasses[NodeClassRef]
	state.InstanceTypes = []catalog.InstanceType{}
	c.NodeClasses[NodeClassRef] = state
	if fields := snapshot.Pools(c)[0].Unhonored; len(fields) > 0 {
		t.Errorf("reported: %+v", fields)
	}
}

func TestUnknownFieldsAreReportedWithoutGPUNodeClass(t *testing.T) {
	t.Parallel()
	c := Shared()
	c.GPUNodeClasses = nil
	c.NodePools[0].Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyBalanced
	c.UnknownFields = map[types.UID][]string{c.NodePools[0].UID: {"spec.template.spec.kubelet", "spec.disruption.zones"}, "other": {"spec.other"}}
	var got []string
	for _, f := range snapshot.Pools(c)[0].Unhonored {
		got = append(got, f.Reason+" "+f.Path)
	}
	want := []string{"UnsupportedConsolidationPolicy spec.disruption.consolidationPolicy", "UnknownField spec.disruption.zones", "UnknownField spec.template.spec.kubelet"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
