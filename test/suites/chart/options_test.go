package chart_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
)

const (
	withOptions    = "--values=testdata/options.yaml"
	onHostNetwork  = "--set=hostNetwork=true,dnsPolicy=ClusterFirstWithHostNet,node.hostNetwork=true,node.dnsPolicy=ClusterFirstWithHostNet"
	roleAnnotation = `--set=serviceAccount.annotations.eks\.amazonaws\.com/role-arn=arn:aws:iam::111122223333:role/`
)

// pods returns the pod templates of a chart's workloads, by name.
func pods(t *testing.T, all chart.Objects) map[string]corev1.PodTemplateSpec {
	t.Helper()
	found := map[string]corev1.PodTemplateSpec{}
	for name, d := range named[appsv1.Deployment](t, all, "Deployment") {
		found[name] = d.Spec.Template
	}
	for name, d := range named[appsv1.DaemonSet](t, all, "DaemonSet") {
		found[name] = d.Spec.Template
	}
	return found
}

// TestPodAdditionsExtendChartDefaults renders both charts with and without additions.
func TestPodAdditionsExtendChartDefaults(t *testing.T) {
	const plain = "--set=scheduler.enabled=true,node.config.map.default=version: v1"
	before, after := pods(t, objects(t, needed, plain)), pods(t, objects(t, needed, withOptions))
	for _, name := range []string{"karve", "karve-node"} {
		was, is := before[name].Spec, after[name].Spec
		if diff := cmp.Diff(append(was.Volumes, corev1.Volume{Name: "certificates", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "certificates"}},
		}}), is.Volumes); diff != "" {
			t.Errorf("%s: volumes (-want +got):\n%s", name, diff)
		}
		old, c := was.Containers[0], is.Containers[0]
		if diff := cmp.Diff(append(old.VolumeMounts, corev1.VolumeMount{Name: "certificates", MountPath: "/etc/ssl/certs", ReadOnly: true}), c.VolumeMounts); diff != "" {
			t.Errorf("%s: mounts (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(append(old.Env, corev1.EnvVar{Name: "HTTPS_PROXY", Value: "http://proxy.example.com:3128"}), c.Env); diff != "" {
			t.Errorf("%s: environment (-want +got):\n%s", name, diff)
		}
		if len(c.EnvFrom) != 1 || c.EnvFrom[0].ConfigMapRef.Name != "proxy" {
			t.Errorf("%s: envFrom is %v", name, c.EnvFrom)
		}
		if len(is.Containers) != 1 || len(is.InitContainers) != 1 || is.InitContainers[0].Name != "waits" {
			t.Errorf("%s: containers %d, init containers %v", name, len(is.Containers), is.InitContainers)
		}
	}
	if s := after["karve-scheduler"].Spec; len(s.InitContainers) > 0 || len(s.Volumes) != len(before["karve-scheduler"].Spec.Volumes) || len(s.Containers[0].EnvFrom) > 0 {
		t.Errorf("the scheduler gets the controller's settings: %v", s)
	}
	if len(after) != 3 {
		t.Fatalf("there are %d workloads", len(after))
	}
	for name, template := range after {
		if was := before[name].Spec; was.DNSPolicy != corev1.DNSClusterFirst || was.DNSConfig != nil || was.HostNetwork {
			t.Errorf("%s: DNS policy %s, DNS configuration %v, host network %t by default", name, was.DNSPolicy, was.DNSConfig, was.HostNetwork)
		}
		if template.Spec.DNSPolicy != corev1.DNSNone || !slices.Equal(template.Spec.DNSConfig.Nameservers, []string{"10.0.0.10"}) {
			t.Errorf("%s: DNS policy %s, DNS configuration %v", name, template.Spec.DNSPolicy, template.Spec.DNSConfig)
		}
	}
	for name, template := range pods(t, objects(t, needed, plain, onHostNetwork)) {
		if !template.Spec.HostNetwork || template.Spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet {
			t.Errorf("%s: host network %t, DNS policy %s", name, template.Spec.HostNetwork, template.Spec.DNSPolicy)
		}
	}
}

func TestEveryObjectHasAdditionalLabelsAndAnnotations(t *testing.T) {
	extra := 0
	for _, o := range objects(t, needed, withOptions) {
		if strings.HasSuffix(o.GetName(), "-object") || strings.HasSuffix(o.GetName(), "-text") {
			extra++ // Extra objects have their own labels.
			continue
		}
		if o.GetLabels()["example.com/team"] != "platform" || o.GetLabels()["app.kubernetes.io/name"] == "" {
			t.Errorf("%s %s has the labels %v", o.GetKind(), o.GetName(), o.GetLabels())
		}
		if o.GetAnnotations()["example.com/owner"] != "platform" {
			t.Errorf("%s %s has the annotations %v", o.GetKind(), o.GetName(), o.GetAnnotations())
		}
		if o.GetKind() == "ServiceAccount" && o.GetName() != "karve-scheduler" && len(o.GetAnnotations()) != 2 {
			t.Errorf("ServiceAccount %s lost its own annotations: %v", o.GetName(), o.GetAnnotations())
		}
		if strings.HasSuffix(o.GetKind(), "Monitor") && o.GetLabels()["release"] != "prometheus" {
			t.Errorf("%s %s has the labels %v", o.GetKind(), o.GetName(), o.GetLabels())
		}
	}
	if extra != 3 {
		t.Errorf("there are %d extra objects, want 3", extra)
	}
	for _, o := range objects(t, needed) {
		if len(o.GetAnnotations()) > 0 {
			t.Errorf("nobody asked for the annotations %v of %s %s", o.GetAnnotations(), o.GetKind(), o.GetName())
		}
	}
}

func TestAdditionalRulesExtendGeneratedOnes(t *testing.T) {
	before, after := named[rbacv1.ClusterRole](t, objects(t, needed), "ClusterRole"), named[rbacv1.ClusterRole](t, objects(t, needed, withOptions), "ClusterRole")
	added := rbacv1.PolicyRule{APIGroups: []string{"example.com"}, Resources: []string{"things"}, Verbs: []string{"get"}}
	for name, role := range before {
		want := role.Rules
		if name == "karve" || name == "karve-node" {
			want = append(want, added)
		}
		if diff := cmp.Diff(want, after[name].Rules); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestPodMetricsKeepTheirLabels checks that the labels namespace and pod of karve_pod_* name the pod that uses a GPU, not the agent or the controller.
func TestPodMetricsKeepTheirLabels(t *testing.T) {
	endpoint := into[monitoringv1.PodMonitor](t, objects(t, needed, "--set=node.podMonitor.enabled=true"), "PodMonitor").Spec.PodMetricsEndpoints[0]
	own := into[monitoringv1.ServiceMonitor](t, objects(t, needed, "--set=serviceMonitor.enabled=true"), "ServiceMonitor").Spec.Endpoints[0]
	if !endpoint.HonorLabels || !own.HonorLabels {
		t.Error("labels of the metrics arrive as exported_namespace and exported_pod")
	}
	all := objects(t, needed, withOptions)
	ofPods := into[monitoringv1.PodMonitor](t, all, "PodMonitor").Spec.PodMetricsEndpoints[0]
	ofService := into[monitoringv1.ServiceMonitor](t, all, "ServiceMonitor").Spec.Endpoints[0]
	cluster := monitoringv1.RelabelConfig{TargetLabel: "cluster", Replacement: new("my-cluster")}
	if diff := cmp.Diff(append(endpoint.RelabelConfigs, cluster), ofPods.RelabelConfigs); diff != "" || len(endpoint.RelabelConfigs) != 1 {
		t.Errorf("relabelings of the PodMonitor (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]monitoringv1.RelabelConfig{cluster}, ofService.RelabelConfigs); diff != "" {
		t.Errorf("relabelings of the ServiceMonitor (-want +got):\n%s", diff)
	}
	drop := []monitoringv1.RelabelConfig{{SourceLabels: []monitoringv1.LabelName{"__name__"}, Regex: "go_.*", Action: "drop"}}
	for _, got := range [][]monitoringv1.RelabelConfig{ofPods.MetricRelabelConfigs, ofService.MetricRelabelConfigs} {
		if diff := cmp.Diff(drop, got); diff != "" {
			t.Errorf("relabelings of metrics (-want +got):\n%s", diff)
		}
	}
}

// TestChangedRoleReplacesPods checks that a changed annotation of the service account changes the pod template: only new pods get the credentials of the new
// role.
func TestChangedRoleReplacesPods(t *testing.T) {
	templates := map[string]string{}
	for _, options := range [][]string{{needed}, {needed, roleAnnotation + "a"}, {needed, roleAnnotation + "b"}, {needed, roleAnnotation + "b", "--set=podAnnotations.example\\.com/note=a"}} {
		template := into[appsv1.Deployment](t, objects(t, options...), "Deployment").Spec.Template
		text, err := sigsyaml.Marshal(template)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := templates[string(text)]; ok {
			t.Errorf("%v makes the pods that %s makes", options, other)
		}
		templates[string(text)] = strings.Join(options, " ")
	}
}

// TestChartAnnotationsListCRDs compares the Artifact Hub annotations with the CRDs.
func TestChartAnnotationsListCRDs(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	type described struct {
		Kind, Version, Name string
	}
	want := map[described]bool{}
	files, err := filepath.Glob(filepath.Join(root, "pkg", "apis", "crds", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		var crd struct {
			Metadata struct{ Name string }
			Spec     struct {
				Names    struct{ Kind string }
				Versions []struct{ Name string }
			}
		}
		read(t, file, &crd)
		for _, version := range crd.Spec.Versions {
			want[described{crd.Spec.Names.Kind, version.Name, crd.Metadata.Name}] = true
		}
	}
	versions := map[string]bool{}
	for _, name := range []string{"karve", "karve-crd", "karve/charts/karve-node"} {
		var c struct {
			Version     string            `json:"version"`
			AppVersion  string            `json:"appVersion"`
			Home        string            `json:"home"`
			Icon        string            `json:"icon"`
			Sources     []string          `json:"sources"`
			Keywords    []string          `json:"keywords"`
			Annotations map[string]string `json:"annotations"`
		}
		read(t, filepath.Join(root, "charts", name, "Chart.yaml"), &c)
		versions[c.Version], versions[c.AppVersion] = true, true
		if c.Home == "" || c.Icon == "" || len(c.Sources) == 0 || len(c.Keywords) == 0 || c.Annotations["artifacthub.io/license"] != "Apache-2.0" || c.Annotations["artifacthub.io/category"] == "" {
			t.Errorf("%s: %+v", name, c)
		}
		if name == "karve/charts/karve-node" {
			continue
		}
		var crds []struct{ Kind, Version, Name, DisplayName, Description string }
		if err := sigsyaml.UnmarshalStrict([]byte(c.Annotations["artifacthub.io/crds"]), &crds); err != nil {
			t.Fatal(err)
		}
		got := map[described]bool{}
		for _, crd := range crds {
			got[described{crd.Kind, crd.Version, crd.Name}] = crd.Description != "" && crd.DisplayName != ""
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: CRDs (-want +got):\n%s", name, diff)
		}
	}
	if len(versions) != 1 {
		t.Errorf("the charts have the versions %v", slices.Sorted(maps.Keys(versions)))
	}
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := sigsyaml.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}
