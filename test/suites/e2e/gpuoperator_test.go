package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
)

const (
	operatorNamespace = "gpu-operator"
	// foundByNFD is a label of Node Feature Discovery on nodes with an NVIDIA GPU.
	foundByNFD = "feature.node.kubernetes.io/pci-10de.present"
	operands   = "nvidia.com/gpu.deploy.operands"
)

// TestKarveBesideGPUOperator runs NVIDIA's GPU Operator, as its chart installs it, on a cluster of Karve's. Its operands are DaemonSets whose images are never run:
// all nodes are simulated.
func TestKarveBesideGPUOperator(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the operator reads a fixed folder, which only root can give it alone")
	}
	w := ownWorld(t, cluster.Config{}, settings)
	s := w.scene(t, "operator")
	w.startOperator(t)
	const taint = "nvidia.com/gpu"
	one := []func(*corev1.PodSpec){asks(v1alpha1.ResourceGPU, "1"), tolerates(taint, s.name), selects(karpv1.NodePoolLabelKey, s.name)}
	s.class(v1alpha1.IdleNever, func(spec *v1alpha1.GPUNodeClassSpec) { spec.Sharing.ResourceName = v1alpha1.ResourceGPU })
	s.pool(poolOptions{taintKey: taint, labels: map[string]string{operands: "false"}})

	s.foreignNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "other", Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
		Labels: map[string]string{foundByNFD: "true", corev1.LabelHostname: "other", corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"},
	}}, corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("15Gi"), corev1.ResourcePods: resource.MustParse("20")})
	s.pod("first", one...)
	s.untilRunning(1)
	ours := s.nodes(s.name)[0]
	s.patch(&ours, fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, foundByNFD))

	// The operator serves the other node, and keeps off Karve's.
	const plugin = "nvidia.com/gpu.deploy.device-plugin"
	labeled := func(name string) map[string]string {
		node := &corev1.Node{}
		node.Name = name
		if err := s.api.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
			t.Fatal(err)
		}
		return node.Labels
	}
	s.until(enough, "the operator labels the other node", func() (bool, string) {
		return labeled("other")[plugin] == "true", fmt.Sprint(labeled("other"))
	})
	s.until(enough, "its operands are assigned to the other node", func() (bool, string) {
		n := len(operandsOn(s, "other"))
		return n >= 3, fmt.Sprint(n)
	})
	s.pod("second", one...)
	s.untilRunning(2)
	s.stays(10*time.Second, "Karve's node has no operands", func() (bool, string) {
		labels := labeled(ours.Name)
		for key, value := range labels {
			if strings.HasPrefix(key, "nvidia.com/gpu.deploy.") && value == "true" {
				return false, fmt.Sprint(labels)
			}
		}
		on := operandsOn(s, ours.Name)
		return len(on) == 0 && labels[nodecontract.NVIDIAPrefix+"gpu.present"] == "true", fmt.Sprint(on, labels)
	})
	s.wantClaims(s.claims(), 1, karpv1.CapacityTypeOnDemand, 526_000)

	// Without the label, both would serve the node: the operator's plugin is assigned to it.
	s.patch(&ours, fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, operands))
	s.until(enough, "without the label, operands come", func() (bool, string) {
		on := operandsOn(s, ours.Name)
		return slices.ContainsFunc(on, func(name string) bool { return strings.Contains(name, "device-plugin") }), fmt.Sprint(on)
	})
	s.patch(&ours, fmt.Sprintf(`{"metadata":{"labels":{%q:"false"}}}`, operands))
	s.until(enough, "with it, they go", func() (bool, string) {
		on := operandsOn(s, ours.Name)
		return len(on) == 0, fmt.Sprint(on)
	})
	if got := len(alive(s.claims())); got != 1 {
		t.Errorf("there are %d machines", got)
	}
}

// operandsOn returns the pods of the operator's DaemonSets that are assigned to a node.
func operandsOn(s *scene, node string) []string {
	var pods corev1.PodList
	s.list(&pods, client.InNamespace(operatorNamespace))
	var names []string
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName == node && pods.Items[i].DeletionTimestamp == nil {
			names = append(names, pods.Items[i].Name)
		}
	}
	return names
}

// startOperator installs the operator's chart and runs the operator, without Node Feature Discovery, which finds nothing on simulated nodes.
func (w *world) startOperator(t *testing.T) {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := builder.Build(t.Context(), root, os.Stderr, builder.Containers); err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/gpu-operator")
	list.Dir = filepath.Join(root, "test", "harness", "cluster", "build", "gpu-operator")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	source := strings.TrimSpace(string(out))
	objects, err := chart.Chart{Name: filepath.Join(source, "deployments", "gpu-operator"), Release: "gpu-operator", Namespace: operatorNamespace}.Template(t.Context(), "--include-crds",
		"--values="+filepath.Join(root, "docs", "migrate", "gpu-operator", "operator-values.yaml"), "--set=nfd.enabled=false", "--set=toolkit.enabled=false") // As on EKS' images.
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{}
	namespace.Name = operatorNamespace
	create := func(o client.Object) {
		t.Helper()
		if err := w.api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	create(namespace)
	isPolicy := func(o *unstructured.Unstructured) bool { return o.GetKind() == "ClusterPolicy" }
	for _, o := range objects {
		if kind := o.GetKind(); kind != "Deployment" && kind != "Job" && !isPolicy(o) {
			if slices.Contains([]string{"ServiceAccount", "Role", "RoleBinding", "ConfigMap"}, kind) {
				o.SetNamespace(operatorNamespace) // As kubectl does.
			}
			create(o)
		}
	}
	port, err := w.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	// The operator reads fixed paths: it has a root of its own, with them and the folder of the cluster's kubeconfig.
	folder := filepath.Dir(w.Kubeconfig())
	script := `set -e
		mount -t tmpfs none "$1"
		mkdir -p "$1/opt" "$1/host-etc" "$1/tmp" "$1/dev" "$1$3"
		cp -r "$2/assets" "$1/opt/gpu-operator"
		cp -r "$2/manifests" "$1/opt/gpu-operator/"
		cp /etc/os-release "$1/host-etc/"
		cp "$4" "$1/gpu-operator"
		mount --bind "$3" "$1$3"
		exec chroot "$1" /gpu-operator --metrics-bind-address=127.0.0.1:0 --health-probe-bind-address="$5"`
	if err := w.StartProgram(context.WithoutCancel(t.Context()), cluster.Program{
		Name: "gpu-operator", Path: "/usr/bin/unshare",
		Args:     []string{"--mount", "sh", "-c", script, "sh", t.TempDir(), source, folder, filepath.Join(root, "_output", "bin", "gpu-operator"), address},
		Env:      []string{"KUBECONFIG=" + w.Kubeconfig(), "OPERATOR_NAMESPACE=" + operatorNamespace, "DRIVER_MANAGER_IMAGE=example.com/manager:1"},
		ReadyURL: "http://" + address + "/readyz",
	}); err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if isPolicy(o) { // The API server serves the kind by now.
			create(o)
		}
	}
}
