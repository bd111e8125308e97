// Package migration runs the steps of docs/migrate on a real API server with Karpenter's CRDs, and plans for the pods after each step.
package migration

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
)

// recipe is a directory of docs/migrate.
type recipe struct {
	folder string
	// pool is Karve's NodePool, deployment the Deployment or StatefulSet that moves to it.
	pool, deployment string
	pods, machines   int
	// price is what the pods' machines cost per hour on demand in us-east-1, in micro-dollars.
	price planner.MicroUSD
	// stays is a Deployment that stays with Karpenter, "" for none.
	stays string
	// aliases says that the pods keep the names of another plugin, which the chart's policies replace when pods are created.
	aliases bool
}

var recipes = []recipe{
	{folder: "two-pools", pool: "shared", deployment: "test-gpu-shared", pods: 12, machines: 2, price: 2 * 526_000, stays: "test-gpu"},
	{folder: "configmap", pool: "g4-shared", deployment: "lab", pods: 4, machines: 2, price: 2 * 526_000},
	{folder: "gpushare", pool: "gpu-memory", deployment: "binpack-1", pods: 3, machines: 1, price: 526_000, aliases: true},
	{folder: "hami", pool: "gpu-memory", deployment: "inference", pods: 7, machines: 3, price: 3 * 526_000, aliases: true},
	{folder: "mig", pool: "mig-shared", deployment: "classify", pods: 40, machines: 1, price: 21_957_642},
	{folder: "mig-manager", pool: "operator-shared", deployment: "notebooks", pods: 40, machines: 1, price: 21_957_642},
	{folder: "mps", pool: "mps-shared", deployment: "serve", pods: 11, machines: 2, price: 2 * 526_000},
	{folder: "nodeoverlay", pool: "gpu-shared", deployment: "inference", pods: 11, machines: 2, price: 2 * 526_000},
}

func TestMigrationGuidesWork(t *testing.T) {
	cluster.Long(t)
	w := newWorld(t)
	for _, r := range recipes {
		t.Run(r.folder, func(t *testing.T) { w.migrate(t, r) })
	}
	t.Run("and back", w.back)
	t.Run("every guide is tested", func(t *testing.T) {
		folders, err := filepath.Glob(filepath.Join(w.root, "docs", "migrate", "*", "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		for _, readme := range folders {
			folder := filepath.Base(filepath.Dir(readme))
			if !slices.ContainsFunc(recipes, func(r recipe) bool { return r.folder == folder }) {
				t.Errorf("nothing tests %s", folder)
			}
		}
	})
}

func (w *world) migrate(t *testing.T, r recipe) {
	t.Helper()
	folder := filepath.Join("docs", "migrate", r.folder)
	w.kubectl(t, "apply", "--validate=strict", "-f", filepath.Join(folder, "before"))
	defer w.kubectl(t, "delete", "--ignore-not-found", "-f", filepath.Join(folder, "before"), "-f", filepath.Join(folder, "after"))
	if r.aliases {
		w.replacesAliases(t, r)
	}
	if q := w.plan(t, r); len(q.Claims) > 0 {
		t.Fatalf("Karve has no pool and would launch %v", q.Claims)
	}
	var applied, switched bool
	for _, command := range w.commands(t, folder) {
		w.kubectl(t, command...)
		switch command[0] {
		case "apply":
			applied = true
			if r.aliases { // Karpenter knows no slots.
				w.untilSlots(t)
				r.isServed(t, w.plan(t, r))
			} else {
				r.isLeftToKarpenter(t, w.plan(t, r))
			}
		case "patch":
			if strings.HasPrefix(command[1], "nodepool") {
				switched = true
			}
		}
		if switched {
			r.isServed(t, w.plan(t, r))
		}
	}
	if !applied || !switched {
		t.Error("the document neither makes the new pool nor switches the old one off")
	}
	w.oldPoolIsGone(t, r)
	w.onePluginOnEachMachine(t, r)
}

func (r recipe) isLeftToKarpenter(t *testing.T, q quote.Quote) {
	t.Helper()
	left := 0
	for _, u := range q.Unplaced {
		if u.Reason == planner.ReasonLeftToKarpenter && strings.HasPrefix(u.Pod, "default/"+r.deployment+"-") {
			left++
		}
	}
	if len(q.Claims) > 0 || left != r.pods {
		t.Errorf("both pools are there: %d of %d pods are left to Karpenter, and Karve would launch %v", left, r.pods, q.Claims)
	}
}

func (r recipe) isServed(t *testing.T, q quote.Quote) {
	t.Helper()
	pods := 0
	for _, claim := range q.Claims {
		if claim.NodePool != r.pool {
			t.Errorf("a machine of the pool %s", claim.NodePool)
		}
		for _, pod := range claim.Pods {
			if strings.HasPrefix(pod, "default/"+r.deployment+"-") {
				pods++
			}
		}
	}
	if pods != r.pods || len(q.Claims) != r.machines || q.Price != r.price {
		t.Errorf("%d of %d pods are on %d machines for %d, want %d for %d: %v", pods, r.pods, len(q.Claims), q.Price, r.machines, r.price, q.Unplaced)
	}
	for _, u := range q.Unplaced {
		if r.stays == "" || !strings.HasPrefix(u.Pod, "default/"+r.stays+"-") {
			t.Errorf("%s has no place: %s", u.Pod, u.Message)
		}
	}
}

// oldPoolIsGone checks that only Karve's pool and the pools of the remaining Deployment exist.
func (w *world) oldPoolIsGone(t *testing.T, r recipe) {
	t.Helper()
	pools := list[karpv1.NodePool](t, w, "nodepools")
	deployments := list[appsv1.Deployment](t, w, "deployments")
	want := []string{r.pool}
	for _, d := range deployments {
		if d.Name == r.stays {
			want = append(want, d.Spec.Template.Spec.NodeSelector[karpv1.NodePoolLabelKey])
		}
	}
	var got []string
	for _, pool := range pools {
		got = append(got, pool.Name)
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the pools in the end: %s", diff)
	}
}

// onePluginOnEachMachine checks the remaining DaemonSets of device plugins other than Karve's agent.
func (w *world) onePluginOnEachMachine(t *testing.T, r recipe) {
	t.Helper()
	pools := list[karpv1.NodePool](t, w, "nodepools")
	i := slices.IndexFunc(pools, func(p karpv1.NodePool) bool { return p.Name == r.pool })
	if i < 0 {
		t.Fatalf("the pool %s is not there", r.pool)
	}
	machine := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.GPUNodeClassLabel: r.pool}}}
	maps.Copy(machine.Labels, pools[i].Spec.Template.Labels)
	plugins := list[appsv1.DaemonSet](t, w, "daemonsets")
	values, err := os.ReadFile(filepath.Join(w.root, "docs", "migrate", r.folder, "nvdp.yml"))
	if err == nil {
		var chart struct {
			NodeSelector map[string]string `json:"nodeSelector"`
		}
		decode(t, values, &chart)
		plugin := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "of nvdp.yml"}}
		plugin.Spec.Template.Spec.NodeSelector = chart.NodeSelector
		plugins = append(plugins, plugin)
	}
	for _, plugin := range plugins {
		runs, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: plugin.Spec.Template.Spec}).Match(machine)
		if err != nil || runs {
			t.Errorf("the device plugin %s would run on a machine of Karve's: %t, %v", plugin.Name, runs, err)
		}
	}
}

// back runs the commands of docs/migrate/README.md for one of the recipes.
func (w *world) back(t *testing.T) {
	t.Helper()
	r := recipes[1]
	folder := filepath.Join("docs", "migrate", r.folder)
	w.kubectl(t, "apply", "-f", filepath.Join(folder, "before"), "-f", filepath.Join(folder, "after"))
	w.kubectl(t, "patch", "nodepool", "g4-nodepool", "--type=merge", "-p", `{"spec":{"limits":{"cpu":"0"}}}`)
	r.isServed(t, w.plan(t, r))
	for _, command := range w.commands(t, filepath.Join("docs", "migrate")) {
		for i, word := range command {
			command[i] = strings.NewReplacer("<old>", "g4-nodepool", "<new>", r.pool, "<as before>", "1000", "<those that moved>", r.deployment).Replace(word)
		}
		w.kubectl(t, command...)
	}
	r.isLeftToKarpenter(t, w.plan(t, r))
}

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
	w.cluster = cluster.ForTest(t, cluster.Config{CRDs: []string{w.karpentersCRDs(t)}})
	build := exec.CommandContext(t.Context(), filepath.Join(root, "tools", "build"), "kubectl-karve")
	build.Env = append(os.Environ(), "OUT="+filepath.Dir(w.plugin), "TRIMPATH=no")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the plugin: %v\n%s", err, out)
	}
	return w
}

// replacesAliases installs the policies that give pods of gpushare and HAMi slots of the recipe's GPUNodeClass.
func (w *world) replacesAliases(t *testing.T, r recipe) {
	t.Helper()
	c := chart.Chart{Name: "karve", Release: "karve", Namespace: "karve-system"}
	objects, err := c.Template(t.Context(), "--set=settings.clusterName=test,controller.image.repository=example/controller,node.enabled=false,memoryAliases.gpuNodeClass="+r.pool,
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
	w.run(t, w.cluster.Kubectl(), policies.Bytes(), "apply", "-f", "-")
	t.Cleanup(func() {
		cmd := exec.Command(w.cluster.Kubectl(), "delete", "-f", "-") //nolint:noctx // The context of the test has ended.
		cmd.Env = append(os.Environ(), "KUBECONFIG="+w.cluster.Kubeconfig())
		cmd.Stdin = bytes.NewReader(policies.Bytes())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// created returns the pods of all workloads as the API server would store them.
func (w *world) created(t *testing.T) []byte {
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
	return w.run(t, w.cluster.Kubectl(), pods.Bytes(), "create", "--dry-run=server", "-o", "yaml", "-f", "-")
}

// untilSlots waits until the policies are in force.
func (w *world) untilSlots(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !bytes.Contains(w.created(t), []byte("nvidia.com/gpu-4gb")); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the pods get no slots: %s", w.created(t))
		}
	}
}

// karpentersCRDs returns the directory of the CRDs that the chart of Karpenter's AWS provider installs.
func (w *world) karpentersCRDs(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/aws/karpenter-provider-aws")
	cmd.Dir = w.root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "pkg", "apis", "crds")
}

func (w *world) run(t *testing.T, path string, stdin []byte, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = w.root
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.cluster.Kubeconfig())
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", filepath.Base(path), args, err, stderr.Bytes())
	}
	return out
}

func (w *world) kubectl(t *testing.T, args ...string) []byte {
	t.Helper()
	return w.run(t, w.cluster.Kubectl(), nil, args...)
}

// plan returns Karve's plan for the objects in the cluster, with the pods of the Deployments, or with those that the recipe's policies change.
func (w *world) plan(t *testing.T, r recipe) quote.Quote {
	t.Helper()
	kinds := "nodepools,gpunodeclasses,nodeoverlays,daemonsets"
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

var word = regexp.MustCompile(`(?:'[^']*'|<[^>]*>|[^\s'<])+`)

// commands returns the kubectl commands in the README.md of a directory that change objects. It skips commands on nodes, which do not exist here, and commands
// that wait for controllers.
func (w *world) commands(t *testing.T, folder string) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.root, folder, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var commands [][]string
	for line := range strings.Lines(string(text)) {
		line, found := strings.CutPrefix(strings.TrimSpace(line), "kubectl ")
		if !found || strings.HasPrefix(line, "cordon") || strings.HasPrefix(line, "uncordon") || strings.HasPrefix(line, "rollout status") {
			continue
		}
		var words []string
		for _, word := range word.FindAllString(line, -1) {
			words = append(words, strings.ReplaceAll(word, "'", ""))
		}
		commands = append(commands, words)
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
