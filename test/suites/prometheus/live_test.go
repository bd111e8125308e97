package prometheus

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

const pods = 12 // of testdata/objects.yaml that have room

// world is a cluster with Karve, one agent with fake GPUs, and a Prometheus that scrapes the controller and the agent.
type world struct {
	*server
	api client.Client
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cluster.Require(t)
	c := cluster.ForTest(t, cluster.Config{Components: cluster.Everything()})
	w := &world{server: &server{t: t}, api: must[client.Client](t)(karve.Client(c))}
	controller := must[*karve.Controller](t)(karve.Start(t.Context(), c, karve.Options{}))
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
	agent, _ := startAgent(t, must[int](t)(c.FreePort(t.Context())))
	w.server = scraping(t, host(controller.MetricsURL), agent, must[int](t)(c.FreePort(t.Context())))
	return w
}

func host(url string) string {
	url, _ = strings.CutPrefix(url, "http://")
	url, _, _ = strings.Cut(url, "/")
	return url
}

// create creates the objects of a file.
func (w *world) create(file string) {
	w.t.Helper()
	f := must[*os.File](w.t)(os.Open(file))
	defer f.Close() //nolint:errcheck // It was only read.
	for decoder := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(o)
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			err = w.api.Create(w.t.Context(), o)
		}
		if err != nil {
			w.t.Fatalf("%s: %s %s: %v", file, o.GetKind(), o.GetName(), err)
		}
	}
}

// TestTheControllersBillsAddUp scrapes the controller on a cluster. It also checks the names of metrics that are not Karve's own, which TestPanelsAndAlertsHaveAnswers makes up.
func TestTheControllersBillsAddUp(t *testing.T) {
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
	t.Run("bills", w.billsAddUp)
	t.Run("Kueue", w.gatedPodsCostNothing)
	w.rulesAreEvaluated()
}

// billsAddUp checks that the pods of each node and its idle rest cost what the node costs, and all nodes what the NodePool does.
func (w *world) billsAddUp(t *testing.T) {
	for expr, want := range map[string]int{
		"count(karve_pod_usd_per_hour)":                                pods,
		`count(karve_pod_usd_per_hour{namespace="team", job="karve"})`: pods,
		"count(abs(sum by (node) (karve_pod_usd_per_hour) + on (node) karve_node_idle_usd_per_hour - on (node) karve_node_usd_per_hour) < 1e-9) - count(karve_node_usd_per_hour)": 0,
		"sum(karve_node_usd_per_hour) - sum(karve_pool_price_usd_per_hour)": 0,
		"sum(karve_pods_wait_seconds_count)":                                pods,
	} {
		answer, err := w.query(expr)
		if err != nil || len(answer) != 1 {
			t.Errorf("%s: %v, %v", expr, answer, err)
			continue
		}
		if got := number(answer[0].Value); math.Abs(got-float64(want)) > 1e-9 {
			t.Errorf("%s is %v, want %d", expr, got, want)
		}
	}
}

// gatedPodsCostNothing creates pods as Kueue holds them back, and checks that Karve launches nodes for them only when they are admitted.
func (w *world) gatedPodsCostNothing(t *testing.T) {
	claims := func() int {
		var list karpv1.NodeClaimList
		if err := w.api.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	before := claims()
	const gated = 12
	for i := range gated {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprint("gated-", i)}, Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}},
			// What Kueue adds of the ResourceFlavor.
			NodeSelector: map[string]string{v1alpha1.GPUNodeClassLabel: "gpu"}, Tolerations: []corev1.Toleration{{Key: resource, Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "main", Image: "example.com/nothing", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{resource: quantity.MustParse("1")}}}},
		}}
		if err := w.api.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(500 * time.Millisecond) {
		if n := claims(); n > before {
			t.Fatalf("%d NodeClaims, %d before pods were gated", n, before)
		}
	}
	for i := range gated {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprint("gated-", i)}}
		if err := w.api.Patch(t.Context(), pod, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"schedulingGates":null}}`))); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually("the admitted pods run", func() error {
		for i := range gated {
			pod := &corev1.Pod{}
			if err := w.api.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: fmt.Sprint("gated-", i)}, pod); err != nil {
				return err
			}
			if pod.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("%s is %s", pod.Name, pod.Status.Phase)
			}
		}
		return nil
	})
	if n := claims(); n <= before {
		t.Errorf("%d NodeClaims, %d before the pods were admitted", n, before)
	}
}
