package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func before(d time.Duration) string { return Now.Add(-d).Format(time.RFC3339) }

func onNode(edits ...func(*corev1.Node)) func(*facts.Cluster) {
	return func(c *facts.Cluster) {
		for _, e := range edits {
			e(&c.Nodes[0])
		}
	}
}

func annotated(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations[key] = value }
}

func onClaim(edits ...func(*karpv1.NodeClaim)) func(*facts.Cluster) {
	return func(c *facts.Cluster) {
		for _, e := range edits {
			e(&c.NodeClaims[0])
		}
	}
}

func noted(key, value string) func(*karpv1.NodeClaim) {
	return func(claim *karpv1.NodeClaim) { claim.Annotations[key] = value }
}

func budgets(nodes string) func(*facts.Cluster) {
	return func(c *facts.Cluster) { c.NodePools[0].Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: nodes}} }
}

// drifted launches the first machine from another template.
func drifted(c *facts.Cluster) {
	onClaim(noted(karpv1.NodePoolHashAnnotationKey, "1"), noted(karpv1.NodePoolHashVersionAnnotationKey, karpv1.NodePoolHashVersion))(c)
}

func TestWhyANodeStaysOrGoes(t *testing.T) {
	t.Parallel()
	idle := annotated(v1alpha1.IdleSinceAnnotation, before(3*time.Minute))
	everything := budgets("100%")
	for name, c := range map[string]struct {
		cluster *facts.Cluster
		state   lifecycle.State
		words   string
		// in is how long until it goes at the earliest. It is 0 if it stays.
		in time.Duration
	}{
		"an idle one": {with(machine("a", 0), everything, onNode(idle)), lifecycle.Started, "will be deleted in 2m at the earliest: it is idle", 2*time.Minute + 10*time.Second},
		"an idle one that budgets keep": {
			with(machine("a", 0), budgets("0"), onNode(idle)), lifecycle.Started, "stays although it is idle: the disruption budgets of NodePool gpu-shared allow 0 at present", month,
		},
		"an idle one that its Node keeps": {
			with(machine("a", 0), everything, onNode(idle, annotated(karpv1.DoNotDisruptAnnotationKey, "true"))), lifecycle.Started, "stays although it is idle: the node carries karpenter.sh/do-not-disrupt", month,
		},
		"an idle one that is headroom": {
			with(machine("a", 0), everything, onNode(idle), func(c *facts.Cluster) { c.GPUNodeClasses[0].Spec.Headroom = []v1alpha1.Headroom{{Replicas: 3}} }),
			lifecycle.Started, "stays although it is idle: its free replicas are headroom", month,
		},
		"an idle one that a pod waits for": {with(machine("a", 0), everything, onNode(idle), pods(Pod("x"))), lifecycle.Started, "pods that wait have their place on it", month},
		"a busy one":                       {with(machine("a", 10), everything), lifecycle.Started, "stays until it expires in 29d", month},
		"one whose restarts are saved up for": {
			with(machine("a", 4), machine("b", 4), everything, func(c *facts.Cluster) {
				c.GPUNodeClasses[0].Status.Waste = &v1alpha1.Waste{USD: "0.100", USDPerHour: "0.400", AsOf: metav1.NewTime(Now), Steps: []v1alpha1.WasteStep{
					{NodeClaims: []string{"a"}, Pods: 4, RestartUSD: "0.200", USDPerHour: "0.400"},
				}}
			}), lifecycle.Started,
			"will be deleted in 15m at the earliest: the machines cost $0.526 an hour less without it, and have wasted $0.10 of the $0.20 that moving 4 pods costs", 15*time.Minute + 10*time.Second,
		},
		"one that is deleted": {
			with(machine("a", 2), onClaim(func(claim *karpv1.NodeClaim) { claim.DeletionTimestamp = new(metav1.NewTime(Now)) })), lifecycle.Draining, "is being deleted: Karpenter evicts its 2 pods", 0,
		},
		"one that did not start": {
			with(machine("a", 0), onClaim(func(claim *karpv1.NodeClaim) { claim.Status.Conditions = claim.Status.Conditions[:1] }), func(c *facts.Cluster) { c.Nodes = nil }),
			lifecycle.Broken, "did not start in time, so it does not count as room: its NodeClaim was created 60m ago", month,
		},
		"one that is not ready for long": {
			with(machine("a", 2), everything, onNode(func(n *corev1.Node) {
				n.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(Now.Add(-10 * time.Minute)), LastHeartbeatTime: metav1.NewTime(Now)}
			}), machine("b", 2), machine("d", 2), machine("e", 2)), lifecycle.Unhealthy, "will be deleted in 20m at the earliest", 20*time.Minute + 10*time.Second,
		},
		"one that is replaced": {
			with(machine("a", 10), everything, onClaim(noted(v1alpha1.ReplacingAnnotation, "Drifted"), noted(v1alpha1.ReplacingSinceAnnotation, before(time.Minute))), drifted),
			lifecycle.Replacing, "would have no place", month,
		},
		"one that drifted": {with(machine("a", 2), everything, drifted), lifecycle.Started, "will be deleted once its pods have room elsewhere: NodePoolDrifted", month},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := explainer(c.cluster).Node("a")
			if err != nil || got.State != c.state || !strings.Contains(got.Summary, c.words) {
				t.Errorf("%s: %s, %v; want %s: %s\n%+v", got.State, got.Summary, err, c.state, c.words, got.Causes)
			}
			if (got.Goes != nil) != (c.in > 0) || got.Goes != nil && !got.Goes.Equal(Now.Add(c.in)) {
				t.Errorf("it goes at %v, want in %s", got.Goes, c.in)
			}
		})
	}
}

// month is when the machines expire.
const month = 719 * time.Hour

func TestANodeThatIsNotKarves(t *testing.T) {
	t.Parallel()
	c := with(func(c *facts.Cluster) {
		c.Nodes = append(c.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mine"}})
	})
	if got, err := explainer(c).Node("mine"); err != nil || !strings.Contains(got.Summary, "was not launched by Karve") {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := explainer(c).Node("b"); err == nil || !strings.Contains(err.Error(), "node b does not exist") {
		t.Error(err)
	}
}

func TestANodeWithCordonedGPUs(t *testing.T) {
	t.Parallel()
	x := Pod("x")
	asked := annotated(nodecontract.GPUCordonAnnotation, "0")
	cordoned := with(machine("a", 0), onNode(CordonedGPUs(0), asked), limited(v1alpha1.ResourceGPU, "1"), pods(x))
	for name, c := range map[string]struct {
		cluster *facts.Cluster
		want    string
	}{
		"as its agent says":      {cordoned, "GPU 0 (GPU-a) takes no new pods"},
		"that no agent knows of": {with(machine("a", 0), onNode(asked)), `no agent has acted on the annotation karve.sh/gpu-cordon="0" yet: see kubectl karve doctor`},
		"and none any more":      {with(machine("a", 0), onNode(CordonedGPUs(10), func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionFalse })), ""},
		"and none at any time":   {with(machine("a", 0)), ""},
	} {
		if got, err := explainer(c.cluster).Node("a"); err != nil || got.Cordon != c.want {
			t.Errorf("a node with cordoned GPUs %s: %q, %v, want %q", name, got.Cordon, err, c.want)
		}
	}
	got, err := explainer(cordoned).Pod("default", "x")
	if err != nil || len(got.Nodes) != 1 || got.Nodes[0].Why != "full apart from cordoned GPUs" {
		t.Errorf("a pod that waits for it is told %+v, %v", got.Nodes, err)
	}
}

func TestWhatConsolidationSaysOfANode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cluster *facts.Cluster
		applies bool
		kept    string
		message string
	}{
		"whose pods fit elsewhere":           {with(machine("a", 2), machine("b", 2), budgets("100%")), true, "", "the machines cost $0.526 an hour less without it"},
		"that budgets keep":                  {with(machine("a", 2), machine("b", 2), budgets("0")), true, "the disruption budgets", "$0.526 an hour less"},
		"with a pod that nobody makes again": {with(machine("a", 2, func(p *corev1.Pod) { p.OwnerReferences = nil }), machine("b", 2), budgets("100%")), true, "has no owner", "less"},
		"whose pods fit nowhere else":        {with(machine("a", 8), machine("b", 8), budgets("100%")), false, "", "would cost"},
		"of a pool that moves none": {
			with(machine("a", 2), machine("b", 2), func(c *facts.Cluster) {
				c.NodePools[0].Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmpty
			}), false, "", "do not allow moving pods",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := explainer(c.cluster).Node("a")
			if err != nil {
				t.Fatal(err)
			}
			for _, cause := range got.Causes {
				if cause.Reason == "Underutilized" {
					if cause.Applies != c.applies || !strings.Contains(cause.Kept, c.kept) || c.kept == "" && cause.Kept != "" || !strings.Contains(cause.Message, c.message) {
						t.Errorf("%+v, want %t: %q, kept by %q", cause, c.applies, c.message, c.kept)
					}
					return
				}
			}
			t.Errorf("nothing is said of consolidation: %+v", got.Causes)
		})
	}
}
