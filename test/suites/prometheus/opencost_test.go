package prometheus

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	sigsyaml "sigs.k8s.io/yaml"
)

// gpuPrice is the price of a GPU of each node in OpenCost, in dollars per hour.
const gpuPrice = 0.47

// openCost serves the metrics of OpenCost that its GPU prices depend on, except for those that the example disables, and returns its address. OpenCost exports
// container_gpu_allocation for each container: what it requests of nvidia.com/gpu, which is 0 for replicas (pkg/costmodel/metrics.go).
func openCost(t *testing.T) string {
	t.Helper()
	var values struct {
		OpenCost struct {
			Metrics struct {
				Config struct {
					Enabled         bool
					DisabledMetrics []string
				}
			}
		}
	}
	if err := sigsyaml.Unmarshal(must[[]byte](t)(os.ReadFile(filepath.Join(root(t), "examples/integrations/opencost-values.yaml"))), &values); err != nil {
		t.Fatal(err)
	}
	config := values.OpenCost.Metrics.Config
	var text strings.Builder
	export := func(name, labels string, value float64) {
		if !config.Enabled || !slices.Contains(config.DisabledMetrics, name) {
			_, _ = fmt.Fprintf(&text, "%s{%s} %v\n", name, labels, value)
		}
	}
	export("node_gpu_hourly_cost", fmt.Sprintf(`node=%q,instance_type="g4dn.xlarge",provider_id="i-0"`, node), gpuPrice)
	for i := range 3 {
		export("container_gpu_allocation", fmt.Sprintf(`namespace="default",pod="train-%d",container="main",node=%q`, i, node), 0)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text.String())) }))
	t.Cleanup(s.Close)
	return host(s.URL)
}

// openCostRules writes the rules of the example for OpenCost as Prometheus reads them, and returns the file.
func openCostRules(t *testing.T) string {
	t.Helper()
	var rule struct {
		Spec struct{ Groups []map[string]any }
	}
	if err := sigsyaml.Unmarshal(must[[]byte](t)(os.ReadFile(filepath.Join(root(t), "examples/integrations/opencost.yaml"))), &rule); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "opencost.yaml")
	if err := os.WriteFile(file, must[[]byte](t)(sigsyaml.Marshal(map[string]any{"groups": rule.Spec.Groups})), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// What OpenCost asks Prometheus for to price the GPUs of containers (modules/prometheus-source/pkg/prom/metricsquerier.go, v1.117.0), in a window of five seconds.
const (
	gpusRequested = `avg(avg_over_time(kube_pod_container_resource_requests{resource="nvidia_com_gpu", container!="",container!="POD", node!="", }[5s])) by (container, pod, namespace, node, cluster_id)`
	gpusAllocated = `avg(avg_over_time(container_gpu_allocation{container!="", container!="POD", node!="", }[5s])) by (container, pod, namespace, node, cluster_id)`
	pricePerGPU   = `avg(avg_over_time(node_gpu_hourly_cost{}[5s])) by (node, cluster_id, instance_type, provider_id)`
)

// openCostPricesReplicas prices what OpenCost finds as OpenCost does: if any container has an allocation, the requests do not count (applyGPUsAllocated in
// pkg/costmodel/allocation_helpers.go). A container with one of ten replicas costs a tenth of a GPU.
func (s *server) openCostPricesReplicas(t *testing.T) {
	s.eventually("OpenCost prices the replicas", func() error {
		counted, err := s.query(gpusAllocated)
		if err == nil && len(counted) == 0 {
			counted, err = s.query(gpusRequested)
		}
		if err != nil || len(counted) != 3 {
			return fmt.Errorf("OpenCost finds %d containers, want 3: %v", len(counted), err) //nolint:errorlint // It may be nil.
		}
		prices, err := s.query(pricePerGPU)
		if err != nil || len(prices) != 1 {
			return fmt.Errorf("OpenCost finds %d prices, want 1: %v", len(prices), err) //nolint:errorlint // It may be nil.
		}
		for _, container := range counted {
			price := number(prices[0].Value)
			if container.Metric["node"] != prices[0].Metric["node"] {
				price = 0
			}
			if cost := number(container.Value) * price; math.Abs(cost-gpuPrice/10) > 1e-9 || container.Metric["namespace"] != "default" || !strings.HasPrefix(container.Metric["pod"], "train-") {
				return fmt.Errorf("OpenCost finds that the GPU of %v costs %v, want %v", container.Metric, cost, gpuPrice/10)
			}
		}
		return nil
	})
}
