package provisioning

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func TestNodesWithOtherLabelsAreRecordedOnce(t *testing.T) {
	t.Parallel()
	cluster := Shared()
	cluster.Pods = []corev1.Pod{Pod("a", Selecting("nvidia.com/gpu.product", "Tesla-T4"))}
	view := snapshot.Build(cluster)
	claim := Claim("one", &cluster.NodePools[0], TypeNamed("g4dn.xlarge"), Initialized(Now.Add(-time.Minute)), func(claim *karpv1.NodeClaim) {
		claim.Annotations[v1alpha1.PlannedPodsAnnotation] = view.PlannedPods(planner.Launch{Pods: []string{"default/a"}})
		claim.Annotations[karpv1.NodePoolHashAnnotationKey], claim.Annotations[karpv1.NodePoolHashVersionAnnotationKey] = cluster.NodePools[0].Hash(), karpv1.NodePoolHashVersion
	})
	node := Node(&claim, TypeNamed("g4dn.xlarge"), 10)
	node.Labels["nvidia.com/gpu.product"] = "NVIDIA-A10G"
	cluster.NodeClaims, cluster.Nodes = []karpv1.NodeClaim{claim}, []corev1.Node{node}
	view = snapshot.Build(cluster)

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	stored := cluster.GPUNodeClasses[0].DeepCopy()
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(stored).WithStatusSubresource(stored).Build()
	recorder := events.NewFakeRecorder(10)
	c := New(Config{Client: api, Recorder: recorder, Clock: testclock.NewFakeClock(Now)})
	for range 2 {
		if err := c.recordMismatches(t.Context(), &view, cluster.GPUNodeClasses); err != nil {
			t.Fatal(err)
		}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(stored), &cluster.GPUNodeClasses[0]); err != nil {
			t.Fatal(err)
		}
	}
	got := cluster.GPUNodeClasses[0].Status.NodeMismatches
	if len(got) != 1 || got[0].NodeClaim != "one" || got[0].Label != "nvidia.com/gpu.product" || got[0].Expected != "Tesla-T4" || got[0].Actual != "NVIDIA-A10G" {
		t.Errorf("recorded %+v", got)
	}
	if len(recorder.Events) != 1 {
		t.Fatalf("%d events", len(recorder.Events))
	}
	if text := <-recorder.Events; !strings.Contains(text, `the label nvidia.com/gpu.product of its node is "NVIDIA-A10G" instead of "Tesla-T4"`) {
		t.Errorf("the event %q", text)
	}
}
