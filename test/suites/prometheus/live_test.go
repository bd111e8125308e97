package prometheus

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

const (
	pods       = 12           // of testdata/objects.yaml that have room
	sharedPool = "gpu-shared" // of examples/nodepool.yaml
)

// world is a cluster with Karve, one agent with fake GPUs, and a Prometheus that scrapes the controller and the agent.
type world struct {
	*server
	api   client.Client
	agent *agent
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cluster.Require(t)
	c := cluster.ForTest(t, cluster.Config{Components: cluster.Everything()})
	w := &world{server: &server{t: t}, api: must[client.Client](t)(karve.Client(c))}
	controller := must[*karve.Controller](t)(karve.Start(t.Context(), c, karve.Options{Settle: 5 * time.Second}))
	w.create("testdata/objects.yaml")
	w.eventually("all pods with room run", func() error {
		var list corev1.PodList
		if err := w.api.List(t.Context(), &list, client.InNamespace("team")); err != nil {
			return err
		}
		running := 0
		for i := range list.Items {
			if pod := &list.Items[i]; pod.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if running != pods {
			return fmt.Errorf("%d of %d pods run", running, pods)
		}
		return nil
	})
	w.agent = startAgent(t, must[int](t)(c.FreePort(t.Context())))
	w.server = scraping(t, must[int](t)(c.FreePort(t.Context())), host(controller.MetricsURL), w.agent.address)
	return w
}

func host(url string) string {
	url, _ = strings.CutPrefix(url, "http://")
	url, _, _ = strings.Cut(url, "/")
	return url
}

// set returns a change of a field of an object.
func set(value any, path ...string) func(*unstructured.Unstructured) error {
	return func(o *unstructured.Unstructured) error { return unstructured.SetNestedField(o.Object, value, path...) }
}

// create creates the objects of a file, with changes.
func (w *world) create(file string, changes ...func(*unstructured.Unstructured) error) {
	w.t.Helper()
	f := must[*os.File](w.t)(os.Open(file))
	defer f.Close()
	for decoder := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(o)
		if errors.Is(err, io.EOF) {
			return
		}
		for _, change := range changes {
			if err == nil {
				err = change(o)
			}
		}
		if err == nil {
			err = w.api.Create(w.t.Context(), o)
		}
		if err != nil {
			w.t.Fatalf("%s: %s %s: %v", file, o.GetKind(), o.GetName(), err)
		}
	}
}

// TestKarveWorksWithOtherTools scrapes the controller on a cluster, and plays what other tools do there. It also checks the names of metrics that are not Karve's own, which
// TestPanelsAndAlertsHaveAnswers makes up.
func TestKarveWorksWithOtherTools(t *testing.T) {
	cluster.Long(t)
	w := newWorld(t)
	for _, expr := range []string{
		"karve_pool_karpenter_usd_per_hour", `leader_election_master_status{name="karve"} == 1`, `controller_runtime_reconcile_errors_total{controller="pool"}`, "process_cpu_seconds_total",
		"process_resident_memory_bytes", "karve_pods_unplaced == 1", `karve_pool_limit{resource="nvidia.com/gpu"} == 20`, "karve_pool_limit_used > 0",
	} {
		w.eventually(expr, func() error {
			answer, err := w.query(expr)
			if err == nil && len(answer) == 0 {
				err = errors.New("there is no series")
			}
			return err
		})
	}
	w.run("bills", (*world).billsAddUp)
	w.run("kube-state-metrics", (*world).kubeStateMetricsFindsConditions)
	// Only now, because pods of testdata/objects.yaml would have room there too.
	w.create(filepath.Join(root(t), "examples/gpunodeclass.yaml"))
	w.create(filepath.Join(root(t), "examples/nodepool.yaml"))
	// First, while the pool has no nodes: simulated pods of Jobs complete at once, and a free replica would serve them all before Karve plans.
	w.run("Kueue", (*world).whatKueueHoldsBackCostsNothing)
	w.run("HPA", (*world).scalesWithTheUseOfGPUs)
	w.rulesAreEvaluated()
}

// run runs a subtest.
func (w *world) run(name string, test func(*world)) {
	w.t.Run(name, func(t *testing.T) { test(&world{&server{t, w.url}, w.api, w.agent}) })
}

// billsAddUp checks that the pods of each node and its idle rest cost what the node costs, and all nodes what the NodePool does.
func (w *world) billsAddUp() {
	for expr, want := range map[string]int{
		"count(karve_pod_usd_per_hour)":                                pods,
		`count(karve_pod_usd_per_hour{namespace="team", job="karve"})`: pods,
		"count(abs(sum by (node) (karve_pod_usd_per_hour) + on (node) karve_node_idle_usd_per_hour - on (node) karve_node_usd_per_hour) < 1e-9) - count(karve_node_usd_per_hour)": 0,
		"sum(karve_node_usd_per_hour) - sum(karve_pool_price_usd_per_hour)": 0,
		"sum(karve_pods_wait_seconds_count)":                                pods,
	} {
		answer, err := w.query(expr)
		if err != nil || len(answer) != 1 {
			w.t.Errorf("%s: %v, %v", expr, answer, err)
			continue
		}
		if got := number(answer[0].Value); math.Abs(got-float64(want)) > 1e-9 {
			w.t.Errorf("%s is %v, want %d", expr, got, want)
		}
	}
}

// kubeStateMetricsFindsConditions follows the paths of the example in a GPUNodeClass of the cluster.
func (w *world) kubeStateMetricsFindsConditions() {
	type labels map[string][]string
	var values struct {
		RBAC struct {
			ExtraRules []rbacv1.PolicyRule `json:"extraRules"`
		} `json:"rbac"`
		CustomResourceState struct {
			Enabled bool `json:"enabled"`
			Config  struct {
				Kind string `json:"kind"`
				Spec struct {
					Resources []struct {
						GroupVersionKind metav1.GroupVersionKind `json:"groupVersionKind"`
						LabelsFromPath   labels                  `json:"labelsFromPath"`
						Metrics          []struct {
							Name string `json:"name"`
							Help string `json:"help"`
							Each struct {
								Type  string `json:"type"`
								Gauge struct {
									Path           []string `json:"path"`
									LabelsFromPath labels   `json:"labelsFromPath"`
									ValueFrom      []string `json:"valueFrom"`
								} `json:"gauge"`
							} `json:"each"`
						} `json:"metrics"`
					} `json:"resources"`
				} `json:"spec"`
			} `json:"config"`
		} `json:"customResourceState"`
	}
	if err := sigsyaml.UnmarshalStrict(must[[]byte](w.t)(os.ReadFile(filepath.Join(root(w.t), "examples/integrations/kube-state-metrics.yaml"))), &values); err != nil {
		w.t.Fatal(err)
	}
	described, rule := values.CustomResourceState.Config.Spec.Resources[0], values.RBAC.ExtraRules[0]
	kind := schema.GroupVersionKind(described.GroupVersionKind)
	mapping := must[*meta.RESTMapping](w.t)(w.api.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version))
	if rule.APIGroups[0] != kind.Group || rule.Resources[0] != mapping.Resource.Resource || !slices.Equal(rule.Verbs, []string{"list", "watch"}) {
		w.t.Errorf("the rule is %v, and the resource %v", rule, mapping.Resource)
	}
	class := &unstructured.Unstructured{}
	class.SetGroupVersionKind(kind)
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: "gpu"}, class); err != nil {
		w.t.Fatal(err)
	}
	if name, _, _ := unstructured.NestedString(class.Object, described.LabelsFromPath["name"]...); name != "gpu" {
		w.t.Errorf("the label name is %q", name)
	}
	gauge := described.Metrics[0].Each.Gauge
	conditions, _, err := unstructured.NestedSlice(class.Object, gauge.Path...)
	if err != nil || len(conditions) == 0 {
		w.t.Fatalf("the GPUNodeClass has the conditions %v: %v", conditions, err)
	}
	ready := ""
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if name, _, _ := unstructured.NestedString(condition, gauge.LabelsFromPath["type"]...); name == v1alpha1.ConditionReady {
			ready, _, _ = unstructured.NestedString(condition, gauge.ValueFrom...)
		}
	}
	if ready != string(metav1.ConditionTrue) {
		w.t.Errorf("the condition %s of the GPUNodeClass is %q", v1alpha1.ConditionReady, ready)
	}
}
