// Package plan tests the kubectl karve plugin with kubectl itself and a real API server.
package plan

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/manifests"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/test/harness/cluster"
)

// world is a cluster without Karve's and Karpenter's controllers, and kubectl with the plugin.
type world struct {
	client.Client
	cluster *cluster.Cluster
	root    string
	// path is the directory of kubectl and kubectl-karve.
	path string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c := cluster.ForTest(t, cluster.Config{Components: []cluster.Component{cluster.Scheduler, cluster.ControllerManager}})
	scheme, err := gather.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.New(c.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{api, c, root, t.TempDir()}
	build := exec.CommandContext(t.Context(), filepath.Join(root, "tools", "build"), "kubectl-karve")
	build.Env = append(os.Environ(), "OUT="+w.path, "TRIMPATH=no")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the plugin: %v\n%s", err, out)
	}
	if err := os.Symlink(c.Kubectl(), filepath.Join(w.path, "kubectl")); err != nil {
		t.Fatal(err)
	}
	return w
}

// kubectl runs kubectl in the root of the repository. It returns both output streams and whether the command succeeded.
func (w *world) kubectl(t *testing.T, kubeconfig string, args ...string) (out, errOut string, ok bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(w.path, "kubectl"), args...)
	cmd.Dir = w.root
	cmd.Env = append(os.Environ(), "PATH="+w.path+":"+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig, "HOME="+w.path)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), err == nil
}

// does runs kubectl as the administrator, fails the test if kubectl fails, and returns its output.
func (w *world) does(t *testing.T, args ...string) string {
	t.Helper()
	out, errOut, ok := w.kubectl(t, w.cluster.Kubeconfig(), args...)
	if !ok {
		t.Fatalf("kubectl %s: %s", strings.Join(args, " "), errOut)
	}
	return out
}

// TestKubectlKarve plans for examples/ before and after it is applied.
func TestKubectlKarve(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const types = "--instance-types=test/harness/cluster/instance-types.json"
	before := w.does(t, "karve", "plan", "-f", "examples", types)
	w.does(t, "apply", "-f", "examples")
	w.does(t, "patch", "ec2nodeclass", "gpu", "--subresource=status", "--type=merge", "-p",
		`{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}`)
	w.untilWaiting(t, 80)

	t.Run("plans", func(t *testing.T) {
		t.Run("the plan for the cluster equals the plan for its manifests", func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(before, w.does(t, "karve", "plan", types)); diff != "" {
				t.Errorf("(-before it was applied +after)\n%s", diff)
			}
			if !strings.Contains(before, "8 × g4dn.xlarge") {
				t.Errorf("the plan is\n%s", before)
			}
		})
		t.Run("a user with list rights can plan", func(t *testing.T) {
			t.Parallel()
			reader := w.reader(t)
			if out, errOut, ok := w.kubectl(t, "", "karve", "plan", types, "--kubeconfig", reader); !ok || out != before {
				t.Errorf("got %s%s", out, errOut)
			}
		})
		t.Run("a user without rights gets an error", func(t *testing.T) {
			t.Parallel()
			unprivileged, err := w.cluster.KubeconfigFor("nobody")
			if err != nil {
				t.Fatal(err)
			}
			if out, errOut, ok := w.kubectl(t, unprivileged, "karve", "plan"); ok || out != "" || !strings.HasPrefix(errOut, "error: ") || !strings.Contains(errOut, "forbidden") {
				t.Errorf("got %s%s, succeeded: %t", out, errOut, ok)
			}
		})
		t.Run("the plan for exported objects equals the plan for the cluster", func(t *testing.T) {
			t.Parallel()
			exported := w.does(t, "get", "nodepools,gpunodeclasses,pods,replicasets,deployments,nodes", "-o", "yaml")
			file := filepath.Join(t.TempDir(), "all.yaml")
			if err := os.WriteFile(file, []byte(exported), 0o600); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, w.does(t, "karve", "plan", "-f", file, types)); diff != "" {
				t.Errorf("(-manifests +exported)\n%s", diff)
			}
		})
		t.Run("version", func(t *testing.T) {
			t.Parallel()
			out := w.does(t, "karve", "version")
			if client, controller, _ := strings.Cut(out, "\n"); !strings.HasPrefix(client, "Client: ") || !strings.HasPrefix(controller, "Controller: - (") {
				t.Errorf("the version is %q", out)
			}
		})
		t.Run("explain", w.explain)
		t.Run("doctor", w.doctor)
		t.Run("the API server rejects the same objects", w.verdicts)
	})
	w.does(t, "delete", "--cascade=foreground", "-f", "examples/deployment.yaml") // Its pods would be bound to the node.
	t.Run("inspect, top and nodes show a running node", w.shows)
	t.Run("explain knows the nodes that a CapacityBuffer keeps", w.keepsHeadroom)
	t.Run("what owns a Job is explained", w.explainsOwners)
	t.Run("each verb needs the documented rights", w.rights)
}

// untilWaiting waits until the given number of pods is unschedulable.
func (w *world) untilWaiting(t *testing.T, want int) {
	t.Helper()
	got := 0
	if err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		var pods corev1.PodList
		if err := w.List(ctx, &pods); err != nil {
			return false, err
		}
		got = 0
		for i := range pods.Items {
			if facts.Waits(&pods.Items[i]) {
				got++
			}
		}
		return got == want, nil
	}); err != nil {
		t.Fatalf("%d pods wait, want %d: %v", got, want, err)
	}
}

// reader returns the kubeconfig of a user who may only list and get the objects that a plan depends on.
func (w *world) reader(t *testing.T) string {
	t.Helper()
	reads := []string{"get", "list"}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "plans"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"", "apps", "storage.k8s.io"}, Resources: []string{
			"pods", "nodes", "namespaces", "persistentvolumeclaims", "persistentvolumes", "daemonsets", "storageclasses", "csinodes",
		}, Verbs: reads},
		{APIGroups: []string{"karpenter.sh", "karve.sh", "karpenter.k8s.aws"}, Resources: []string{"*"}, Verbs: reads},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "plans"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "plans"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "planner"}},
	}
	for _, o := range []client.Object{role, binding} {
		if err := w.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig, err := w.cluster.KubeconfigFor("planner")
	if err != nil {
		t.Fatal(err)
	}
	// New RBAC rules take effect after a moment.
	if err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		_, _, ok := w.kubectl(t, kubeconfig, "auth", "can-i", "list", "nodeclaims.karpenter.sh")
		return ok, nil
	}); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// verdicts compares what the manifest reader rejects with what the API server rejects.
func (w *world) verdicts(t *testing.T) {
	t.Parallel()
	class := func(spec string) string {
		return "apiVersion: karve.sh/v1alpha1\nkind: GPUNodeClass\nmetadata: {name: verdict}\nspec: {nodeClassRef: {group: g, kind: K, name: i}, " + spec + "}"
	}
	sharing := func(s string) string { return class("sharing: {" + s + "}") }
	pod := func(spec string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: verdict, namespace: default}\nspec: {" + spec + "}"
	}
	resources := func(r string) string {
		return pod("containers: [{name: main, image: main, resources: {" + r + "}}]")
	}
	deployment := func(spec string) string {
		return "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: verdict, namespace: default}\nspec: {" + spec +
			", template: {metadata: {labels: {app: x}}, spec: {containers: [{name: main, image: main}]}}}"
	}
	nodePool := func(spec string) string {
		return "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: verdict}\nspec: {template: {spec: {requirements: [], " + spec + "}}}"
	}
	const stock = "nodeClassRef: {group: g, kind: K, name: i}"
	for _, text := range []string{
		sharing("strategy: TimeSlicing, replicas: 2"), sharing("strategy: TimeSlicing, replicas: 128"), sharing("strategy: None"),
		sharing("strategy: TimeSlicing, replicas: 1"), sharing("strategy: TimeSlicing, replicas: 129"), sharing("strategy: TimeSlicing"),
		sharing("strategy: MPS, replicas: 2"), sharing("replicas: 2"), sharing("strategy: None, replicas: 2"), sharing("strategy: None, requestsAboveOne: Allow"),
		sharing("strategy: None, resourceName: nvidia.com/gpu"), sharing("strategy: None, resourceName: nvidia.com/gpu.shared"), sharing("strategy: None, overrides: []"),
		sharing("strategy: None, overrides: [{gpuName: t4, replicas: 1}]"), sharing("strategy: TimeSlicing, replicas: 2, resourceName: nvidia.com/gpu"),
		sharing("strategy: TimeSlicing, replicas: 2, resourceName: gpu"), sharing("strategy: TimeSlicing, replicas: 2, requestsAboveOne: Perhaps"),
		sharing("strategy: TimeSlicing, replicas: 2, overrides: [{gpuName: t4, replicas: 1}]"), sharing("strategy: TimeSlicing, replicas: 2, overrides: [{gpuName: t4, replicas: 0}]"),
		sharing("strategy: TimeSlicing, replicas: 2, overrides: [{gpuName: '', replicas: 1}]"), sharing("strategy: TimeSlicing, replicas: 2, replica: 3"),
		sharing("strategy: TimeSlicing, replicas: 2, overrides: [{gpuName: t4, replicas: 2}, {gpuName: t4, replicas: 3}]"),
		class("sharing: {strategy: None}, consolidation: {idleAfter: Never}"), class("sharing: {strategy: None}, consolidation: {idleAfter: soon}"),
		strings.Replace(sharing("strategy: None"), "group: g", "group: karve.sh", 1), strings.Replace(sharing("strategy: None"), "group: g", "group: g/v1", 1),
		strings.Replace(sharing("strategy: None"), "name: i", "name: ''", 1), "apiVersion: karve.sh/v1alpha1\nkind: GPUNodeClass\nmetadata: {name: verdict}",

		resources("limits: {nvidia.com/gpu.shared: 1}"), resources("requests: {nvidia.com/gpu.shared: 1}"), resources("limits: {nvidia.com/gpu: 500m}"),
		resources("requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}"), resources("requests: {cpu: 2}, limits: {cpu: 1}"), resources("requests: {cpu: 500m}, limits: {cpu: 1}"),
		resources("requests: {cpu: -1}"), resources("requests: {cpu: lots}"), resources("limits: {memory: 1Gi}, request: {}"), pod("containers: []"), pod("nodeSelector: {a: b}"),
		pod("containers: [{name: main, image: main}], Tolerations: []"), strings.Replace(resources(""), "name: verdict", "name: a/b", 1),

		deployment("selector: {matchLabels: {app: x}}"), deployment("selector: {matchLabels: {app: z}}"), deployment("selector: {}"), deployment("replicas: 1"),
		deployment("replicas: -1, selector: {matchLabels: {app: x}}"), deployment("replicas: many, selector: {matchLabels: {app: x}}"), deployment("replica: 3, selector: {matchLabels: {app: x}}"),

		nodePool(stock), nodePool("taints: []"), nodePool("nodeClassRef: {group: g, kind: K, name: ''}"), nodePool(stock + ", taint: []"),
		strings.Replace(nodePool(stock), "requirements: []", "requirements: [{key: a, operator: Is, values: [b]}]", 1),
		strings.Replace(nodePool(stock), "requirements: []", "requirements: [{key: kubernetes.io/hostname, operator: In, values: [b]}]", 1),
		strings.Replace(nodePool(stock), "requirements: []", "requirements: [{key: a, operator: In, values: [b]}]", 1),
	} {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		server := w.Create(t.Context(), object, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
		_, _, ours := manifests.Read(t.Context(), []manifests.File{{Name: "f", Content: []byte(text)}})
		if (server == nil) != (ours == nil) {
			t.Errorf("the API server says %v, we say %v of\n%s", server, ours, text)
		}
	}
}
