package migration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
)

// world is an API server, kubectl and the kubectl plugin.
type world struct {
	cluster      *cluster.Cluster
	root, plugin string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cluster.Require(t)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{root: root, plugin: filepath.Join(t.TempDir(), "kubectl-karve")}
	w.cluster = cluster.ForTest(t, cluster.Config{})
	build := exec.CommandContext(t.Context(), filepath.Join(root, "tools", "build"), "kubectl-karve")
	build.Env = append(os.Environ(), "OUT="+filepath.Dir(w.plugin), "TRIMPATH=no")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the plugin: %v\n%s", err, out)
	}
	return w
}

// does runs a command of a page. Only the settings of a command of Helm count that make pods of gpushare and HAMi get slots.
func (w *world) does(t *testing.T, command string) {
	t.Helper()
	if _, settings, found := strings.Cut(command, "--set "); found && strings.HasPrefix(command, "helm ") {
		w.replacesAliases(t, settings)
		return
	}
	w.run(t, "sh", nil, "-ec", command)
}

// replacesAliases installs what gives pods of gpushare and HAMi slots with these settings of the chart, and removes what is not needed with them.
func (w *world) replacesAliases(t *testing.T, settings string) {
	t.Helper()
	c := chart.Chart{Name: "karve", Release: "karve", Namespace: "karve-system"}
	objects, err := c.Template(t.Context(), "--set=controller.image.repository=example/controller,node.enabled=false,"+settings,
		"--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")
	if err != nil {
		t.Fatal(err)
	}
	var policies bytes.Buffer
	for _, o := range objects {
		if strings.HasSuffix(o.GetName(), "-memory-aliases") {
			text, err := yaml.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			policies.WriteString("---\n")
			policies.Write(text)
		}
	}
	if policies.Len() == 0 {
		w.kubectl(t, "delete", "mutatingadmissionpolicies,mutatingadmissionpolicybindings,validatingadmissionpolicies,validatingadmissionpolicybindings", "--all")
		return
	}
	w.run(t, w.cluster.Kubectl(), policies.Bytes(), "apply", "-f", "-")
}

// created returns the pods of all workloads as the API server would store them.
func (w *world) created(t *testing.T) []byte {
	t.Helper()
	pods, err := w.create(t)
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

// create returns the pods of all workloads as the API server would store them, or an error if it refuses one.
func (w *world) create(t *testing.T) ([]byte, error) {
	t.Helper()
	type workload struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Replicas int                    `json:"replicas"`
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	var pods bytes.Buffer
	for _, of := range list[workload](t, w, "deployments,statefulsets") {
		for i := range of.Spec.Replicas {
			pod := corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: of.Spec.Template.ObjectMeta, Spec: of.Spec.Template.Spec}
			pod.Namespace, pod.Name = of.Namespace, fmt.Sprintf("%s-%d", of.Name, i)
			text, err := yaml.Marshal(&pod)
			if err != nil {
				t.Fatal(err)
			}
			pods.WriteString("---\n")
			pods.Write(text)
		}
	}
	return w.try(t, w.cluster.Kubectl(), pods.Bytes(), "create", "--dry-run=server", "-o", "yaml", "-f", "-")
}

// untilSlots waits until new pods request slots, or no longer do. The API server begins and ends to apply policies one by one, so while the one that refuses pods without slots applies and
// the one that gives them slots does not, it refuses all.
func (w *world) untilSlots(t *testing.T, wanted bool) {
	t.Helper()
	slot := regexp.MustCompile(`nvidia\.com/gpu-\d+gb`)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		pods, err := w.create(t)
		if err == nil && slot.Match(pods) == wanted {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("new pods should request slots: %t, and are %s, %v", wanted, pods, err)
		}
	}
}

func (w *world) run(t *testing.T, path string, stdin []byte, args ...string) []byte {
	t.Helper()
	out, err := w.try(t, path, stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// try runs a command, and returns its output or an error.
func (w *world) try(t *testing.T, path string, stdin []byte, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = w.root
	path = strings.Join([]string{filepath.Dir(w.cluster.Kubectl()), filepath.Dir(w.plugin), os.Getenv("PATH")}, string(os.PathListSeparator))
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.cluster.Kubeconfig(), "PATH="+path)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w\n%s", filepath.Base(cmd.Path), args, err, stderr.Bytes())
	}
	return out, nil
}

func (w *world) kubectl(t *testing.T, args ...string) []byte {
	t.Helper()
	return w.run(t, w.cluster.Kubectl(), nil, args...)
}

// plan returns Karve's plan for the objects in the cluster, with the pods of the Deployments, or with those that the recipe's policies change.
func (w *world) plan(t *testing.T, r recipe) quote.Quote {
	t.Helper()
	kinds := "nodepools,gpunodeclasses,nodeoverlays,ec2nodeclasses,daemonsets,nodes,pods"
	if !r.aliases {
		kinds += ",deployments"
	}
	state := w.kubectl(t, "get", kinds, "--all-namespaces", "-o", "yaml")
	if r.aliases {
		state = slices.Concat(state, []byte("\n---\n"), w.created(t))
	}
	var q quote.Quote
	decode(t, w.run(t, w.plugin, state, "plan", "-o", "json", "-f", "-"), &q)
	return q
}

// objects returns what the objects that the pages change say, by kind and name.
func (w *world) objects(t *testing.T) map[string]any {
	t.Helper()
	objects := map[string]any{}
	for _, o := range list[map[string]any](t, w, "nodepools,gpunodeclasses,nodeoverlays,ec2nodeclasses,daemonsets,deployments,statefulsets,configmaps") {
		u := unstructured.Unstructured{Object: o}
		if u.GetName() == "kube-root-ca.crt" || u.GetNamespace() == metav1.NamespaceSystem && u.GetKind() == "ConfigMap" && !strings.HasPrefix(u.GetName(), "nvidia") {
			continue
		}
		unstructured.RemoveNestedField(o, "spec", "template", "metadata", "annotations")
		objects[u.GetKind()+" "+u.GetName()] = []any{o["spec"], o["data"], u.GetLabels()}
	}
	return objects
}

// commands returns the commands of kubectl and Helm in a section of a directory's README.md. It skips commands on nodes that do not exist here, and commands that
// wait for controllers.
func (w *world) commands(t *testing.T, folder, section string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.root, folder, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	within := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if title, found := strings.CutPrefix(line, "## "); found {
			within = title == section
		}
		if !within || !strings.HasPrefix(line, "kubectl ") && !strings.HasPrefix(line, "helm ") ||
			slices.ContainsFunc([]string{"cordon", "uncordon", "rollout status"}, func(verb string) bool { return strings.HasPrefix(line, "kubectl "+verb) }) {
			continue
		}
		commands = append(commands, line)
	}
	return commands
}

func list[T any](t *testing.T, w *world, kinds string) []T {
	t.Helper()
	var found struct {
		Items []T `json:"items"`
	}
	decode(t, w.kubectl(t, "get", kinds, "--all-namespaces", "-o", "json"), &found)
	return found.Items
}

func decode(t *testing.T, text []byte, into any) {
	t.Helper()
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}
