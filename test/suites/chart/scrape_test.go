package chart_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/test/harness/cluster"
)

// TestScrapeConfigurationFindsControllerAndAgents compares the configuration for a Prometheus without the Operator in docs/metrics.md with the pods of the chart.
func TestScrapeConfigurationFindsControllerAndAgents(t *testing.T) {
	t.Parallel()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\n(scrape_configs:.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("the page has no configuration")
	}
	var config struct {
		Jobs []struct {
			HonorLabels bool `json:"honor_labels"`
			Discovery   []struct {
				Namespaces struct {
					Names []string `json:"names"`
				} `json:"namespaces"`
			} `json:"kubernetes_sd_configs"`
			Relabel []struct {
				Sources []string `json:"source_labels"`
				Regex   string   `json:"regex"`
				Action  string   `json:"action"`
			} `json:"relabel_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal(block[1], &config); err != nil {
		t.Fatal(err)
	}
	job := config.Jobs[0]
	keep := job.Relabel[0]
	if !job.HonorLabels || keep.Action != "keep" || !slices.Equal(keep.Sources, []string{"__meta_kubernetes_pod_label_app_kubernetes_io_name", "__meta_kubernetes_pod_container_port_name"}) {
		t.Errorf("the job is %+v", job)
	}
	kept := regexp.MustCompile("^(?:" + keep.Regex + ")$")
	all := objects(t, needed, "--set=node.enabled=true,node.image.repository=registry.example.com/karve/node")
	controller, agent := into[appsv1.Deployment](t, all, "Deployment"), into[appsv1.DaemonSet](t, all, "DaemonSet")
	for _, workload := range []struct {
		meta metav1.ObjectMeta
		pod  corev1.PodTemplateSpec
	}{{controller.ObjectMeta, controller.Spec.Template}, {agent.ObjectMeta, agent.Spec.Template}} {
		if !slices.Contains(job.Discovery[0].Namespaces.Names, workload.meta.Namespace) {
			t.Errorf("%s is in the namespace %s, and Prometheus reads %v", workload.meta.Name, workload.meta.Namespace, job.Discovery[0].Namespaces.Names)
		}
		ports := 0
		for _, container := range workload.pod.Spec.Containers {
			for _, port := range container.Ports {
				if kept.MatchString(workload.pod.Labels["app.kubernetes.io/name"] + ";" + port.Name) {
					ports++
				}
			}
		}
		if ports != 1 {
			t.Errorf("%d ports of %s are scraped", ports, workload.meta.Name)
		}
	}
}
