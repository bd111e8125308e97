package chart_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	"karve.sh/karve/test/chart"
	"karve.sh/karve/test/cluster"
	"karve.sh/karve/test/karve"
)

const clusterName = "--set=settings.clusterName=my-cluster"

// combinations are values that somebody may want together, each with the cluster's name, which all need.
var combinations = map[string][]string{
	"as it is":    {clusterName},
	"everything":  {clusterName, "--set=networkPolicy.enabled=true,serviceMonitor.enabled=true,node.podMonitor.enabled=true,node.networkPolicy.enabled=true,node.metrics.pods=true"},
	"the least":   {clusterName, "--set=node.enabled=false,podDisruptionBudget.enabled=false,rbac.create=false,serviceAccount.create=false,serviceAccount.name=mine,replicas=1,controller.resources=null,affinity=null,nodeSelector=null,priorityClassName="},
	"another way": {clusterName, "--values=testdata/values.yaml"},
	"a scheduler": {clusterName, "--set=scheduler.enabled=true,networkPolicy.enabled=true"},
}

var controller = chart.Chart{Name: "karve", Release: "karve", Namespace: karve.Namespace}

func objects(t *testing.T, options ...string) chart.Objects {
	t.Helper()
	made, err := controller.Template(t.Context(), options...)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestTheLinterHasNothingToSayOfTheController(t *testing.T) {
	for name, options := range combinations {
		if err := controller.Lint(t.Context(), options...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (chart.Chart{Name: "karve-crd"}).Lint(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestTheAPIServerTakesWhatTheChartMakes asks a real one, which turns fields away that it does not know.
func TestTheAPIServerTakesWhatTheChartMakes(t *testing.T) {
	k, namespace := restricted(t)
	for name, options := range combinations {
		for _, o := range objects(t, options...) {
			if strings.HasPrefix(o.GetAPIVersion(), "monitoring.coreos.com/") {
				continue // Its kinds are not there: see TestPrometheusFindsTheMetrics.
			}
			if o.GetNamespace() == controller.Namespace {
				o.SetNamespace(namespace)
			}
			// Each has a name of its own, because they are applied in this order and none is kept.
			o.SetName(fmt.Sprintf("%s-%s", o.GetName(), strings.ReplaceAll(name, " ", "-")))
			if err := k.Create(t.Context(), o, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
				t.Errorf("%s: %s %s: %v", name, o.GetKind(), o.GetName(), err)
			}
		}
	}
}

// TestTheControllerRunsWhereNamespacesAreRestricted has the API server check the pods, as it would when the ReplicaSet makes them.
func TestTheControllerRunsWhereNamespacesAreRestricted(t *testing.T) {
	k, namespace := restricted(t)
	for name, options := range combinations {
		for deployment, d := range named[appsv1.Deployment](t, objects(t, options...), "Deployment") {
			pod := corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
			pod.Namespace, pod.GenerateName = namespace, deployment+"-"
			if err := k.Create(t.Context(), &pod, client.DryRunAll); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	// It would have been refused otherwise.
	template := into[appsv1.DaemonSet](t, objects(t, clusterName), "DaemonSet").Spec.Template
	agent := corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	agent.Namespace, agent.GenerateName = namespace, "agent-"
	if err := k.Create(t.Context(), &agent, client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("the agent, which has folders of the machine, is let in: %v", err)
	}
}

// restricted is a namespace where only pods of the standard "restricted" may run.
func restricted(t *testing.T) (client.Client, string) {
	t.Helper()
	cluster.Require(t)
	k, err := karve.Client(server)
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "restricted-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	if err := k.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Delete(context.WithoutCancel(t.Context()), namespace); err != nil {
			t.Error(err)
		}
	})
	return k, namespace.Name
}

func TestTheRolesAreThoseOfTheCode(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "config", "rbac", "role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	generated := map[string][]rbacv1.PolicyRule{}
	for document := range strings.SplitSeq(string(text), "---\n") {
		var role rbacv1.ClusterRole // A Role's fields are among a ClusterRole's.
		if err := sigsyaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind != "" {
			generated[role.Kind+" "+role.Namespace] = role.Rules
		}
	}
	made, bound := map[string][]rbacv1.PolicyRule{}, map[string]bool{}
	all := objects(t, clusterName, "--set=node.enabled=false")
	for _, o := range all {
		convert := func(into any) {
			if err := chart.Convert(o, into); err != nil {
				t.Fatal(err)
			}
		}
		switch o.GetKind() {
		case "ClusterRole", "Role":
			var role rbacv1.ClusterRole
			convert(&role)
			made[o.GetKind()+" "+o.GetNamespace()] = role.Rules
		case "ClusterRoleBinding", "RoleBinding":
			var binding rbacv1.RoleBinding
			convert(&binding)
			subject := rbacv1.Subject{Kind: "ServiceAccount", Name: into[corev1.ServiceAccount](t, all, "ServiceAccount").Name, Namespace: controller.Namespace}
			if diff := cmp.Diff([]rbacv1.Subject{subject}, binding.Subjects); diff != "" {
				t.Errorf("%s %s: %s", o.GetKind(), o.GetName(), diff)
			}
			bound[binding.RoleRef.Kind+" "+o.GetNamespace()] = true
		}
	}
	if diff := cmp.Diff(generated, made); diff != "" {
		t.Errorf("the chart's roles are not those of config/rbac: %s", diff)
	}
	for role := range generated {
		if !bound[role] {
			t.Errorf("nothing binds the %s", role)
		}
	}
}

func TestWhatBelongsToTheControllerFindsItsPodsAndNotTheAgents(t *testing.T) {
	all := objects(t, combinations["everything"]...)
	d := into[appsv1.Deployment](t, all, "Deployment")
	pod, agent := labels.Set(d.Spec.Template.Labels), labels.Set(into[appsv1.DaemonSet](t, all, "DaemonSet").Spec.Template.Labels)
	service := into[corev1.Service](t, all, "Service")
	selectors := map[string]*metav1.LabelSelector{
		"Deployment":          d.Spec.Selector,
		"PodDisruptionBudget": into[policyv1.PodDisruptionBudget](t, all, "PodDisruptionBudget").Spec.Selector,
		"Service":             {MatchLabels: service.Spec.Selector},
		"first spread":        d.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector,
		"second spread":       d.Spec.Template.Spec.TopologySpreadConstraints[1].LabelSelector,
	}
	for _, o := range all.Kind("NetworkPolicy") {
		var policy networkingv1.NetworkPolicy
		if err := chart.Convert(o, &policy); err != nil {
			t.Fatal(err)
		}
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err != nil {
			t.Fatal(err)
		}
		if selector.Matches(pod) == selector.Matches(agent) {
			t.Errorf("the network policy %s is of both, or of nobody: %v", policy.Name, selector)
		}
		ports := d.Spec.Template.Spec.Containers[0].Ports
		if selector.Matches(agent) {
			ports = into[appsv1.DaemonSet](t, all, "DaemonSet").Spec.Template.Spec.Containers[0].Ports
		}
		for _, port := range policy.Spec.Ingress[0].Ports {
			if !slices.ContainsFunc(ports, func(p corev1.ContainerPort) bool { return p.Name == port.Port.StrVal }) {
				t.Errorf("the network policy %s lets requests to the port %s in, which is not there", policy.Name, port.Port)
			}
		}
	}
	for name, s := range selectors {
		selector, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			t.Fatal(err)
		}
		if !selector.Matches(pod) || selector.Matches(agent) {
			t.Errorf("%s selects the controller: %t, the agent: %t", name, selector.Matches(pod), selector.Matches(agent))
		}
	}
}

func TestPrometheusFindsTheMetrics(t *testing.T) {
	all := objects(t, combinations["everything"]...)
	monitor := into[monitoringv1.ServiceMonitor](t, all, "ServiceMonitor")
	service := into[corev1.Service](t, all, "Service")
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	if !selector.Matches(labels.Set(service.Labels)) || service.Spec.Ports[0].Name != monitor.Spec.Endpoints[0].Port ||
		service.Spec.Ports[0].TargetPort.StrVal != into[appsv1.Deployment](t, all, "Deployment").Spec.Template.Spec.Containers[0].Ports[0].Name {
		t.Errorf("the ServiceMonitor %v does not find %v", monitor.Spec, service.Spec)
	}
	pods := into[monitoringv1.PodMonitor](t, all, "PodMonitor")
	agent := into[appsv1.DaemonSet](t, all, "DaemonSet").Spec.Template
	selector, err = metav1.LabelSelectorAsSelector(&pods.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	if !selector.Matches(labels.Set(agent.Labels)) || agent.Spec.Containers[0].Ports[0].Name != *pods.Spec.PodMetricsEndpoints[0].Port {
		t.Errorf("the PodMonitor %v does not find %v", pods.Spec, agent)
	}
	if all := objects(t, clusterName); len(all.Kind("ServiceMonitor"))+len(all.Kind("PodMonitor"))+len(all.Kind("Service")) > 0 {
		t.Error("kinds of the Prometheus Operator are made where nobody asked for them")
	}
}

func TestTheAgentRunsOnTheNodesOfKarvesPoolsOnly(t *testing.T) {
	pod := corev1.Pod{Spec: into[appsv1.DaemonSet](t, objects(t, clusterName), "DaemonSet").Spec.Template.Spec}
	for label, want := range map[string]bool{"karve.sh/gpunodeclass=shared": true, "nvidia.com/gpu.present=true": false, "karpenter.k8s.aws/instance-gpu-manufacturer=nvidia": false} {
		if got := runsOn(t, &pod, label); got != want {
			t.Errorf("on a node with %s: %t", label, got)
		}
	}
}

// TestAPackedChartIsWhole packs the charts, whose CRDs and rules are links, as a release would.
func TestAPackedChartIsWhole(t *testing.T) {
	for _, c := range []chart.Chart{controller, {Name: "karve-crd", Release: "karve-crd", Namespace: karve.Namespace}} {
		path, err := c.Package(t.Context(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		packed := chart.Chart{Name: path, Release: c.Release, Namespace: c.Namespace}
		made, err := packed.Template(t.Context(), "--include-crds", clusterName)
		if err != nil {
			t.Fatal(err)
		}
		root, err := cluster.Root()
		if err != nil {
			t.Fatal(err)
		}
		generated, err := filepath.Glob(filepath.Join(root, "pkg", "apis", "crds", "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, file := range generated {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, canonical(t, text))
		}
		var got []string
		for _, o := range made.Kind("CustomResourceDefinition") {
			text, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, canonical(t, text))
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the CRDs in %s: %s", filepath.Base(path), diff)
		}
		if c.Name == controller.Name && (len(made.Kind("DaemonSet")) != 1 || len(made.Kind("ClusterRole")) != 2) {
			t.Errorf("%d DaemonSets, %d ClusterRoles", len(made.Kind("DaemonSet")), len(made.Kind("ClusterRole")))
		}
	}
}

func canonical(t *testing.T, text []byte) string {
	t.Helper()
	text, err := yaml.ToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	var o unstructured.Unstructured
	if err := o.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	text, err = o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestValuesOfTheControllerThatCannotBeMeantAreRefused(t *testing.T) {
	for option, why := range map[string]string{
		"":                               "settings.clusterName is needed",
		"--set=settings.clustername=a":   "clustername",
		"--set=settings.clusterName=a b": "clusterName",
		"--set=settings.vmMemoryOverheadPercent=75": "vmMemoryOverheadPercent",
		"--set=settings.launchTimeout=60":           "launchTimeout",
		"--set=settings.maxUnlaunchedClaims=0":      "maxUnlaunchedClaims",
		"--set=settings.reservedENIs=some":          "reservedENIs",
		"--set=settings.isolatedVPC=perhaps":        "isolatedVPC",
		"--set=replicas=0":                          "replicas",
		"--set=controller.image.digest=sha256:abc":  "digest",
		"--set=logLevel=trace":                      "logLevel",
		"--set=scheduler.name=default-scheduler":    "scheduler",
		"--set=scheduler.replicas=0":                "replicas",
		"--set=node.logLevel=loud":                  "logLevel",
		"--set=serviceAccount.create=false":         "serviceAccount.name is needed",
		"--kube-version=1.29.0":                     "kubeVersion",
	} {
		options := []string{clusterName, option}
		if option == "" || strings.Contains(option, "lusterName") {
			options = options[1:]
		}
		if option == "" {
			options = nil
		}
		if _, err := controller.Template(t.Context(), options...); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want something about %q", option, err, why)
		}
	}
}

func TestTheReadmesHaveEveryValue(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{controller.Name, node.Name} {
		read := func(file string) string {
			text, err := os.ReadFile(filepath.Join(root, "charts", name, file))
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		var values map[string]any
		if err := sigsyaml.Unmarshal([]byte(read("values.yaml")), &values); err != nil {
			t.Fatal(err)
		}
		readme := read("README.md")
		var walk func(path string, value any)
		walk = func(path string, value any) {
			if strings.Contains(readme, "\n| "+path+" | ") {
				return
			}
			fields, _ := value.(map[string]any)
			if len(fields) == 0 {
				t.Errorf("%s: README.md says nothing of %s; run make generate", name, path)
			}
			for key, field := range fields {
				walk(path+"."+key, field)
			}
		}
		for key, value := range values {
			walk(key, value)
		}
	}
}
