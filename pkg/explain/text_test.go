package explain

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

var update = flag.Bool("update", false, "rewrite testdata, for the diff to be reviewed")

func TestAnswersAsText(t *testing.T) {
	t.Parallel()
	waits := func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(Now.Add(-252 * time.Second)) }
	threePools := with(machine("a", 10), machine("b", 2, GPUMemory("6Gi")), func(c *facts.Cluster) {
		spot := Pool("gpu-spot", "gpu-spot", Tainted(v1alpha1.ResourceGPUShared), Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, karpv1.CapacityTypeSpot))
		c.NodePools = append(c.NodePools, spot, Pool("notebooks", "gpu-shared", Tainted("example.com/notebooks")))
		c.GPUNodeClasses = append(c.GPUNodeClasses, Class("gpu-spot", 10))
		c.Refused["gpu-spot"] = []v1alpha1.RefusedOffering{{
			InstanceType: v1alpha1.Any, Zone: v1alpha1.Any, CapacityType: v1alpha1.Any, Reason: "InsufficientCapacity", Failures: 3, Message: "no capacity", NotBefore: metav1.NewTime(Now.Add(3 * time.Minute)),
		}}
	}, limited(v1alpha1.ResourceGPU, "2"), pods(Pod("train-7", waits, GPUMemory("6Gi"))))
	for name, c := range map[string]struct {
		cluster *facts.Cluster
		// object is pod/x or node/x.
		object string
		wide   bool
	}{
		"pod-waits":      {threePools, "pod/train-7", false},
		"pod-waits-wide": {threePools, "pod/train-7", true},
		"pod-planned":    {with(pods(Pod("x", waits))), "pod/x", false},
		"pod-fits":       {with(machine("a", 1), pods(Pod("x", waits))), "pod/x", false},
		"pod-runs":       {with(machine("a", 3, GPUMemory("4Gi"), Selecting(corev1.LabelTopologyZone, Zones[0]))), "pod/a-000", false},
		"pod-misspelled": {with(pods(Pod("x", waits, Asking("nvidia.com/gpu.shred", "1")))), "pod/x", false},
		"pod-left":       {with(pods(Pod("x", waits, GPUMemory("lots")))), "pod/x", false},
		"node-busy":      {with(machine("a", 10)), "node/a", true},
		"node-idle":      {with(machine("a", 0), budgets("100%"), onNode(annotated(v1alpha1.IdleSinceAnnotation, before(3*time.Minute)))), "node/a", false},
		"node-idle-kept": {with(machine("a", 0), budgets("0"), onNode(annotated(v1alpha1.IdleSinceAnnotation, before(3*time.Minute)))), "node/a", false},
		"node-underused": {with(machine("a", 2), machine("b", 2), budgets("100%")), "node/a", false},
		"node-starting": {with(machine("a", 0), func(c *facts.Cluster) {
			c.Nodes = nil
			c.NodeClaims[0].Status.Conditions = c.NodeClaims[0].Status.Conditions[:1]
		}), "node/a", false},
		"node-of-others": {with(func(c *facts.Cluster) {
			c.Nodes = append(c.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mine"}})
		}), "node/mine", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got string
			x := explainer(c.cluster)
			kind, object, _ := strings.Cut(c.object, "/")
			var err error
			if kind == "pod" {
				a, notFound := x.Pod("default", object)
				if err = notFound; err == nil {
					got = a.Text(Now, c.wide)
				}
			} else {
				a, notFound := x.Node(object)
				if err = notFound; err == nil {
					got = a.Text(Now, c.wide)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got; -update accepts it)\n%s", diff)
			}
		})
	}
}

// TestTheDocumentShowsAnswers compares the answers in docs/cli.md with those that are printed.
func TestTheDocumentShowsAnswers(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pod-waits", "node-idle-kept"} {
		answer, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(page), "\n\n"+string(answer)+"```\n") {
			t.Errorf("docs/cli.md does not show %s as it is printed:\n%s", name, answer)
		}
	}
}
