package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// shows adds a node with two pods and an agent, as Karpenter, the kubelet and the agent would, and looks at it with inspect, top and nodes.
func (w *world) shows(t *testing.T) {
	w.populate(t)
	row := func(out, name string) []string {
		for line := range strings.Lines(out) {
			if fields := strings.Fields(line); len(fields) > 0 && fields[0] == name {
				return fields
			}
		}
		t.Fatalf("there is no row of %s:\n%s", name, out)
		return nil
	}
	planner, err := w.cluster.KubeconfigFor("planner")
	if err != nil {
		t.Fatal(err)
	}
	nobody, err := w.cluster.KubeconfigFor("nobody")
	if err != nil {
		t.Fatal(err)
	}
	inspected := w.does(t, "karve", "inspect", "shown", "-d")
	if got, want := row(inspected, "shown")[:7], []string{"shown", "gpu-shared", "g4dn.xlarge", "0.526", "2/10", "2/10", "8/15Gi"}; !slices.Equal(got, want) {
		t.Errorf("inspect shows %q, want %q", got, want)
	}
	if !strings.Contains(inspected, "default/holds-1") || !strings.Contains(inspected, "1 node  2/10 replicas (20 %)  $0.526/h  $384/month") {
		t.Errorf("inspect shows\n%s", inspected)
	}
	if out, errOut, ok := w.kubectl(t, planner, "karve", "inspect", "shown", "-o", "json"); !ok || strings.Count(errOut, "\n") != 1 || !strings.HasPrefix(errOut, "note: you may not get ConfigMap karve-system/karve-catalog") || !strings.Contains(out, `"replicasHeld": 2`) {
		t.Errorf("who may only list sees %s%s", out, errOut)
	}
	if out, errOut, ok := w.kubectl(t, nobody, "karve", "inspect"); ok || out != "" || !strings.HasPrefix(errOut, "error: ") || !strings.Contains(errOut, "forbidden") {
		t.Errorf("who may do nothing sees %s%s, succeeded: %t", out, errOut, ok)
	}
	out, errOut, ok := w.kubectl(t, planner, "karve", "top", "pods")
	if want := []string{"default/holds-0", "1", "shown/0", "-", "-/4Gi", "0.053", "-"}; !ok || !slices.Equal(row(out, want[0]), want) {
		t.Errorf("top pods shows %s%s, want %q", out, errOut, want)
	}
	if !strings.Contains(errOut, "you may not get pods/proxy in the namespace default") {
		t.Errorf("top pods says\n%s", errOut)
	}
	if out, errOut, ok := w.kubectl(t, w.cluster.Kubeconfig(), "karve", "top", "nodes"); !ok || row(out, "shown")[3] != "-" || !strings.Contains(errOut, "asking pod default/karve-node-shown") {
		t.Errorf("an agent that does not answer: %s%s", out, errOut)
	}
	if got := row(w.does(t, "karve", "nodes"), "shown"); got[3] != "2/10" || got[4] != "0.526" {
		t.Errorf("nodes shows %q", got)
	}
}

// populate adds the node shown of the NodePool gpu-shared.
func (w *world) populate(t *testing.T) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	report := nodecontract.HoldersReport{AsOf: time.Now(), GPUs: []nodecontract.HeldGPU{{
		UUID: "GPU-shown", Product: "Tesla T4", MemoryMiB: 15360, Replicas: 10, Health: nodecontract.GPUInService, Held: 2, Holders: []nodecontract.GPUHolder{
			{Pod: "default/holds-0", Container: "main", IDs: []int{0}}, {Pod: "default/holds-1", Container: "main", IDs: []int{1}},
		},
	}}}
	w.machine(t, "shown", func(n *corev1.Node) { n.Annotations[nodecontract.HoldersAnnotation] = report.String() })
	onIt := func(p *corev1.Pod) {
		p.Spec.NodeName, p.Spec.Containers[0].Image = "shown", "image"
		p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		p.Status = corev1.PodStatus{}
	}
	for _, pod := range []corev1.Pod{
		snapshottest.Pod("holds-0", snapshottest.GPUMemory("4Gi"), onIt), snapshottest.Pod("holds-1", snapshottest.GPUMemory("4Gi"), onIt),
		snapshottest.Pod("karve-node-shown", snapshottest.Asking("cpu", "10m"), snapshottest.WithLabels("app.kubernetes.io/name", "karve-node"), onIt),
	} {
		must(w.Create(t.Context(), &pod))
		pod.Status.Phase = corev1.PodRunning
		must(w.Status().Update(t.Context(), &pod))
	}
}

// machine adds a node of the NodePool gpu-shared with its NodeClaim.
func (w *world) machine(t *testing.T, name string, edits ...func(*corev1.Node)) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, started := t.Context(), time.Now().Add(-3*time.Hour)
	var pool karpv1.NodePool
	must(w.Get(ctx, client.ObjectKey{Name: "gpu-shared"}, &pool))
	kind := snapshottest.TypeNamed("g4dn.xlarge")
	claim := snapshottest.Claim(name, &pool, kind, snapshottest.Initialized(started))
	claimStatus := claim.Status
	must(w.Create(ctx, &claim))
	claim.Status = claimStatus
	must(w.Status().Update(ctx, &claim))
	node := snapshottest.Node(&claim, kind, 10, append(edits, func(n *corev1.Node) { n.Labels[nodecontract.GPUMemoryLabel] = "15360" })...)
	nodeStatus := node.Status
	must(w.Create(ctx, &node))
	created := node.DeepCopy() // The controller manager writes taints meanwhile.
	node.Status = nodeStatus
	must(w.Status().Patch(ctx, &node, client.MergeFrom(created)))
}

// keepsHeadroom asks about an idle node without and with a CapacityBuffer that needs its replicas.
func (w *world) keepsHeadroom(t *testing.T) {
	w.machine(t, "kept")
	explained := func() string {
		return w.does(t, "karve", "explain", "node/kept", "--instance-types=test/harness/cluster/instance-types.json")
	}
	const kept = "its free replicas are headroom"
	if out := explained(); !strings.Contains(out, "it is idle") || strings.Contains(out, kept) {
		t.Errorf("an idle node:\n%s", out)
	}
	pod := snapshottest.Pod("", snapshottest.Tolerating("nvidia.com/gpu.shared", "")).Spec
	pod.Containers[0].Image, pod.Containers[0].Resources.Limits = "app", pod.Containers[0].Resources.Requests
	buffer := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"podTemplateRef": map[string]any{"name": "burst"}, "replicas": int64(15)}}}
	buffer.SetGroupVersionKind(karpenter.CapacityBufferKind.WithVersion("v1beta1"))
	buffer.SetNamespace("default")
	buffer.SetName("burst")
	template := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "burst"}, Template: corev1.PodTemplateSpec{Spec: pod}}
	for _, o := range []client.Object{template, buffer} {
		if err := w.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	buffer.Object["status"] = map[string]any{"replicas": int64(15), "conditions": []any{map[string]any{
		"type": "ReadyForProvisioning", "status": "True", "reason": "Resolved", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
	}}}
	if err := w.Status().Update(t.Context(), buffer); err != nil {
		t.Fatal(err)
	}
	if out := explained(); !strings.Contains(out, kept) {
		t.Errorf("a node that a CapacityBuffer keeps:\n%s", out)
	}
	w.does(t, "delete", "capacitybuffer,podtemplate", "burst")
	w.does(t, "delete", "--wait=false", "--ignore-not-found", "nodeclaim,node", "kept")
}
