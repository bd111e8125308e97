package prometheus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/node/nvml/nvmltest"
)

// scalesWithTheUseOfGPUs lets the real HorizontalPodAutoscaler scale examples/deployment.yaml by the use that the agent reads from the fake driver. It checks that nodes come for the new
// pods, and go when the load has ended.
func (w *world) scalesWithTheUseOfGPUs() {
	examples := filepath.Join(root(w.t), "examples")
	w.create(filepath.Join(examples, "deployment.yaml"), set("default", "metadata", "namespace"), set(int64(1), "spec", "replicas"),
		set(map[string]any{karpv1.NodePoolLabelKey: sharedPool}, "spec", "template", "spec", "nodeSelector"))
	w.eventually("one pod runs on one node", func() error { return w.scaled(1, 1) })

	// The agent's GPUs stand for those of the pod's node.
	for i := range 3 {
		w.agent.kubelet.Delete(fmt.Sprint("train-", i))
	}
	if _, err := w.agent.kubelet.Admit(w.t.Context(), must[*corev1.PodList](w.t)(w.inference()).Items[0].Name, resource, 1); err != nil {
		w.t.Fatal(err)
	}
	rule := readAdapterRule(w.t)
	w.adapter(rule.Name.As, rule.MetricsQuery)
	w.create(filepath.Join(examples, "integrations/hpa.yaml"), set("default", "metadata", "namespace"),
		set(int64(0), "spec", "behavior", "scaleDown", "stabilizationWindowSeconds")) // instead of five minutes

	w.load(95)
	w.eventually("the HPA adds pods, and they run", func() error { return w.scaled(12, 2) }) // 0.95 / 0.08, rounded up
	w.load(0)
	w.eventually("the HPA removes pods, and the nodes go", func() error { return w.scaled(1, 1) })
}

// load sets the utilization of the agent's GPUs in percent.
func (w *world) load(percent int) {
	w.t.Helper()
	w.agent.gpus.Change(w.t, func(state *nvmltest.State) {
		for i := range state.Devices {
			state.Devices[i].Usage.GPUPercent = percent
		}
	})
}

// inference lists the pods of examples/deployment.yaml.
func (w *world) inference() (*corev1.PodList, error) {
	var pods corev1.PodList
	return &pods, w.api.List(w.t.Context(), &pods, client.InNamespace("default"), client.MatchingLabels{"app": "inference"})
}

// scaled returns an error unless so many pods of the Deployment run, there are no others, and their pool has so many nodes and NodeClaims.
func (w *world) scaled(pods, nodes int) error {
	all, err := w.inference()
	if err != nil {
		return err
	}
	running := 0
	for i := range all.Items {
		if all.Items[i].Status.Phase == corev1.PodRunning {
			running++
		}
	}
	var there corev1.NodeList
	var claims karpv1.NodeClaimList
	var scaler autoscalingv2.HorizontalPodAutoscaler
	pool := client.MatchingLabels{karpv1.NodePoolLabelKey: sharedPool}
	if err := errors.Join(w.api.List(w.t.Context(), &there, pool), w.api.List(w.t.Context(), &claims, pool),
		client.IgnoreNotFound(w.api.Get(w.t.Context(), client.ObjectKey{Namespace: "default", Name: "inference"}, &scaler))); err != nil {
		return err
	}
	if len(all.Items) != pods || running != pods || len(there.Items) != nodes || len(claims.Items) != nodes {
		return fmt.Errorf("%d of %d pods run on %d nodes with %d NodeClaims, want %d and %d; the HPA says %+v, %+v", running, len(all.Items), len(there.Items), len(claims.Items), pods, nodes,
			scaler.Status.CurrentMetrics, scaler.Status.Conditions)
	}
	return nil
}

// adapterRule is a rule of prometheus-adapter for an external metric.
type adapterRule struct {
	SeriesQuery string `json:"seriesQuery"`
	Resources   struct {
		Namespaced *bool `json:"namespaced"`
	} `json:"resources"`
	Name struct {
		As string `json:"as"`
	} `json:"name"`
	MetricsQuery string `json:"metricsQuery"`
}

// readAdapterRule reads the rule of the example, of which no field may be unknown.
func readAdapterRule(t *testing.T) adapterRule {
	t.Helper()
	var values struct {
		Prometheus struct {
			URL  string `json:"url"`
			Port int    `json:"port"`
		} `json:"prometheus"`
		Rules struct {
			Default  bool          `json:"default"`
			External []adapterRule `json:"external"`
		} `json:"rules"`
	}
	text := must[[]byte](t)(os.ReadFile(filepath.Join(root(t), "examples/integrations/prometheus-adapter.yaml")))
	if err := sigsyaml.UnmarshalStrict(text, &values); err != nil {
		t.Fatal(err)
	}
	if len(values.Rules.External) != 1 {
		t.Fatalf("there are %d rules", len(values.Rules.External))
	}
	return values.Rules.External[0]
}

const externalMetrics = "external.metrics.k8s.io"

// adapter serves the API of external metrics as prometheus-adapter and KEDA do, with one metric that a query defines, and registers it at the API server.
func (w *world) adapter(metric, query string) {
	w.t.Helper()
	group := "/apis/" + externalMetrics + "/v1beta1"
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+group, func(rw http.ResponseWriter, _ *http.Request) {
		answer(rw, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: externalMetrics + "/v1beta1",
			APIResources: []metav1.APIResource{{Name: metric, Namespaced: true, Kind: "ExternalMetricValueList", Verbs: metav1.Verbs{"get"}}},
		})
	})
	mux.HandleFunc("GET "+group+"/namespaces/{namespace}/"+metric, func(rw http.ResponseWriter, _ *http.Request) {
		all, err := w.query(query)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
			return
		}
		items := []map[string]any{}
		for _, s := range all {
			items = append(items, map[string]any{
				"metricName": metric, "metricLabels": s.Metric, "timestamp": metav1.Now(), "value": quantity.NewMilliQuantity(int64(number(s.Value)*1000+0.5), quantity.DecimalSI),
			})
		}
		answer(rw, map[string]any{"apiVersion": externalMetrics + "/v1beta1", "kind": "ExternalMetricValueList", "metadata": map[string]any{}, "items": items})
	})
	s := httptest.NewTLSServer(mux)
	port := must[int](w.t)(strconv.Atoi(must[*url.URL](w.t)(url.Parse(s.URL)).Port()))

	// The API server reaches a Service of this type without kube-proxy.
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "external-metrics"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}
	registration := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1beta1." + externalMetrics},
		"spec": map[string]any{
			"group": externalMetrics, "version": "v1beta1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": service.Namespace, "name": service.Name, "port": int64(port)},
		},
	}}
	if err := errors.Join(w.api.Create(w.t.Context(), service), w.api.Create(w.t.Context(), registration)); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := w.api.Delete(context.WithoutCancel(w.t.Context()), registration); err != nil {
			w.t.Error(err)
		}
		s.Close()
	})
}

func answer(rw http.ResponseWriter, object any) {
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(object) // The client notices an incomplete answer.
}
