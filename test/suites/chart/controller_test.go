package chart_test

import (
	"context"
	"encoding/json"
	"fmt"
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
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/sizing"
	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// needed are the values that the chart requires.
const needed = "--set=controller.image.repository=registry.example.com/karve/controller,node.image.repository=registry.example.com/karve/node"

// combinations are values that a user may want together.
var combinations = map[string][]string{
	"as it is": {needed},
	"everything": {
		needed, "--set=networkPolicy.enabled=true,serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboards.enabled=true,node.podMonitor.enabled=true,node.networkPolicy.enabled=true,node.metrics.pods=true",
		"--set=imageRollouts.enabled=true,controller.metrics.secure=true", "--set-json=networkPolicy.metricsFrom=" + prometheus, "--set-json=node.networkPolicy.metricsFrom=" + prometheus,
	},
	"the least":   {needed, "--set=nominations.enabled=false,capacityBuffers.enabled=false,provisioningRequests.enabled=false,node.enabled=false,podDisruptionBudget.enabled=false,rbac.create=false,serviceAccount.create=false,serviceAccount.name=mine,replicas=1,controller.resources=null,affinity=null,nodeSelector=null,priorityClassName="},
	"another way": {needed, "--values=testdata/values.yaml"},
	"additions":   {needed, withOptions},
	"production":  {needed, "--values=../../../examples/helm/production.yaml"},
	"a scheduler": {needed, "--set=scheduler.enabled=true,networkPolicy.enabled=true"},
	"a page":      {needed, "--set=ui.enabled=true,networkPolicy.enabled=true"},
	"a webhook":   {needed, "--set=memoryAliases.gpuNodeClass=gpu-memory,networkPolicy.enabled=true", older},
	// This is how it was before the agent had its own namespace.
	"one namespace": {needed, "--set=node.namespaceOverride=karve-system,imageRollouts.enabled=true,imageRollouts.namespace=karve-system"},
}

// prometheus is the client that may scrape metrics, as network policy peers.
const prometheus = `[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"monitoring"}}}]`

var controller = chart.Chart{Name: "karve", Release: "karve", Namespace: karve.Namespace}

func objects(t *testing.T, options ...string) chart.Objects {
	t.Helper()
	made, err := controller.Template(t.Context(), options...)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestControllerChartPassesLint(t *testing.T) {
	for name, options := range combinations {
		if err := controller.Lint(t.Context(), options...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (chart.Chart{Name: "karve-crd"}).Lint(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestAPIServerAcceptsRenderedChart creates the objects on a real API server, which rejects unknown fields.
func TestAPIServerAcceptsRenderedChart(t *testing.T) {
	k, namespace := restricted(t)
	for name, options := range combinations {
		for _, o := range objects(t, options...) {
			if strings.HasPrefix(o.GetAPIVersion(), "monitoring.coreos.com/") {
				continue // Its CRDs are not installed: see TestMonitorsSelectMetricsEndpoints.
			}
			if strings.HasPrefix(o.GetNamespace(), "karve-") {
				o.SetNamespace(namespace)
			}
			// Each object gets a unique name, because the objects are applied in this order and not kept.
			o.SetName(fmt.Sprintf("%s-%s", o.GetName(), strings.ReplaceAll(name, " ", "-")))
			if err := k.Create(t.Context(), o, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
				t.Errorf("%s: %s %s: %v", name, o.GetKind(), o.GetName(), err)
			}
		}
	}
}

// TestControllerRunsInRestrictedNamespace has the API server admit the pods, as when the ReplicaSet creates them.
func TestControllerRunsInRestrictedNamespace(t *testing.T) {
	k, namespace := restricted(t)
	for name, options := range combinations {
		for deployment, d := range named[appsv1.Deployment](t, objects(t, options...), "Deployment") {
			if err := admits(t, k, namespace, d.Spec.Template); err != nil {
				t.Errorf("%s: %s: %v", name, deployment, err)
			}
		}
	}
}

// TestOnlyAgentNamespaceAdmitsAgent creates the namespaces of the chart under other names.
func TestOnlyAgentNamespaceAdmitsAgent(t *testing.T) {
	k, own := restricted(t)
	all := objects(t, needed, "--set=imageRollouts.enabled=true")
	agent := into[appsv1.DaemonSet](t, all, "DaemonSet")
	if agent.Namespace == controller.Namespace {
		t.Errorf("the agent is in the controller's namespace")
	}
	namespaces := map[string]string{}
	for name, ns := range named[corev1.Namespace](t, all, "Namespace") {
		namespaces[name] = makeNamespace(t, k, ns.Labels)
	}
	if diff := cmp.Diff([]string{karve.Checks, agent.Namespace}, slices.Sorted(maps.Keys(namespaces))); diff != "" {
		t.Fatalf("the chart makes the namespaces (-want +got):\n%s", diff)
	}
	if err := admits(t, k, namespaces[agent.Namespace], agent.Spec.Template); err != nil {
		t.Errorf("the agent in its own namespace: %v", err)
	}
	for _, namespace := range []string{own, namespaces[karve.Checks]} {
		if err := admits(t, k, namespace, agent.Spec.Template); !apierrors.IsForbidden(err) {
			t.Errorf("another namespace admits the agent, which mounts host paths: %v", err)
		}
	}
}

func TestChartCreatesOnlyNeededNamespaces(t *testing.T) {
	for options, want := range map[string][]string{
		"":                   {"karve-node"},
		"node.enabled=false": nil,
		"node.enabled=false,imageRollouts.enabled=true":                                       {karve.Checks},
		"namespaces.create=false,imageRollouts.enabled=true":                                  nil,
		"node.namespaceOverride=karve-system":                                                 nil,
		"node.namespaceOverride=":                                                             nil,
		"imageRollouts.enabled=true,imageRollouts.namespace=karve-system":                     {"karve-node"},
		"imageRollouts.enabled=true,imageRollouts.namespace=gpus,node.namespaceOverride=gpus": {"gpus"},
	} {
		got := slices.Sorted(maps.Keys(named[corev1.Namespace](t, objects(t, needed, "--set="+options), "Namespace")))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: namespaces (-want +got):\n%s", options, diff)
		}
	}
}

// admits creates a pod of the template as a dry run.
func admits(t *testing.T, k client.Client, namespace string, template corev1.PodTemplateSpec) error {
	t.Helper()
	pod := corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.GenerateName = namespace, "admitted-"
	return k.Create(t.Context(), &pod, client.DryRunAll)
}

// restricted returns a namespace that admits only pods of the Pod Security Standard "restricted".
func restricted(t *testing.T) (client.Client, string) {
	t.Helper()
	cluster.Require(t)
	k, err := karve.Client(server)
	if err != nil {
		t.Fatal(err)
	}
	return k, makeNamespace(t, k, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
}

// makeNamespace creates a namespace that is deleted at the end of the test, and returns its name.
func makeNamespace(t *testing.T, k client.Client, labels map[string]string) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "made-", Labels: labels}}
	if err := k.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Delete(context.WithoutCancel(t.Context()), namespace); err != nil {
			t.Error(err)
		}
	})
	return namespace.Name
}

func TestControllerSelectorsDoNotMatchAgentPods(t *testing.T) {
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
			t.Errorf("the network policy %s selects both, or neither: %v", policy.Name, selector)
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

func TestMonitorsSelectMetricsEndpoints(t *testing.T) {
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
	if all := objects(t, needed); len(all.Kind("ServiceMonitor"))+len(all.Kind("PodMonitor"))+len(all.Kind("Service")) > 0 {
		t.Error("the chart renders kinds of the Prometheus Operator by default")
	}
}

func TestAgentRunsOnlyOnNodesOfKarvePools(t *testing.T) {
	pod := corev1.Pod{Spec: into[appsv1.DaemonSet](t, objects(t, needed), "DaemonSet").Spec.Template.Spec}
	for label, want := range map[string]bool{"karve.sh/gpunodeclass=shared": true, "nvidia.com/gpu.present=true": false, "karpenter.k8s.aws/instance-gpu-manufacturer=nvidia": false} {
		if got := runsOn(t, &pod, label); got != want {
			t.Errorf("on a node with %s: %t", label, got)
		}
	}
}

// TestPackagedChartIsComplete packages the charts as for a release. Their CRDs and RBAC rules are symbolic links.
func TestPackagedChartIsComplete(t *testing.T) {
	for _, c := range []chart.Chart{controller, {Name: "karve-crd", Release: "karve-crd", Namespace: karve.Namespace}} {
		path, err := c.Package(t.Context(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		packed := chart.Chart{Name: path, Release: c.Release, Namespace: c.Namespace}
		made, err := packed.Template(t.Context(), "--include-crds", needed)
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
		if c.Name == controller.Name && (len(made.Kind("DaemonSet")) != 1 || len(made.Kind("ClusterRole")) != 7) {
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

func TestInvalidControllerValuesAreRefused(t *testing.T) {
	for option, why := range map[string]string{
		"--set=controller.image.repository=":                                               "controller.image.repository is required, because Karve publishes no images yet",
		"--set=node.image.repository=":                                                     "node.image.repository",
		"--set=scheduler.enabled=true,scheduler.image.repository=":                         "scheduler.image.repository is required",
		"--set=controller.image.repository=karve/controller:v1":                            "repository",
		"--set=dnsPolicy=cluster":                                                          "dnsPolicy",
		"--set=extraVolumes[0].emptyDir=null":                                              "extraVolumes",
		"--set=controller.extraVolumeMounts[0].name=a":                                     "extraVolumeMounts",
		"--set=serviceMonitor.relabelings[0].target=a":                                     "relabelings",
		"--set=prometheusRule.runbooks=runbooks.md":                                        "runbooks",
		"--set=dashboards.folder=a":                                                        "dashboards",
		"--set=additionalClusterRoleRules[0].resources[0]=pods":                            "additionalClusterRoleRules",
		"--set=additionalAnnotations.a=1":                                                  "additionalAnnotations",
		"--set=node.env[0].value=a":                                                        "env",
		"--set=settings.clustername=a":                                                     "clustername",
		"--set=prices[0].name=a":                                                           "priceAdjustment",
		"--set=prices[0].name=a,prices[0].price=1":                                         "got number, want string",
		"--set=prices[0].name=a,prices[0].price=-1.5":                                      "does not match pattern",
		"--set=prices[0].name=a,prices[0].priceAdjustment=-1%,prices[0].upTo.machines=0":   "upTo",
		"--set=prices[0].name=a,prices[0].priceAdjustment=-1%,prices[0].upTo.usdPerHour=5": "got number, want string",
		"--set=settings.clusterName=a b":                                                   "clusterName",
		"--set=settings.vmMemoryOverheadPercent=75":                                        "vmMemoryOverheadPercent",
		"--set=settings.launchTimeout=60":                                                  "launchTimeout",
		"--set=settings.reservedENIs=some":                                                 "reservedENIs",
		"--set=settings.isolatedVPC=perhaps":                                               "isolatedVPC",
		"--set=replicas=0":                                                                 "replicas",
		"--set=imageRollouts.namespace=":                                                   "imageRollouts",
		"--set=nominations=false":                                                          "nominations",
		"--set=controller.image.digest=sha256:abc":                                         "digest",
		"--set=logLevel=trace":                                                             "logLevel",
		"--set=scheduler.name=default-scheduler":                                           "scheduler",
		"--set=scheduler.replicas=0":                                                       "replicas",
		"--set=node.logLevel=loud":                                                         "logLevel",
		"--set=serviceAccount.create=false":                                                "serviceAccount.name is needed",
		"--kube-version=1.29.0":                                                            "kubeVersion",
	} {
		if _, err := controller.Template(t.Context(), needed, option); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want something about %q", option, err, why)
		}
	}
}

func TestReadmesListEveryValue(t *testing.T) {
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

func TestTheDefaultResourcesAreALineOfTheSizingTable(t *testing.T) {
	want := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewMilliQuantity(sizing.Default.MilliCPU, resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(sizing.Default.RequestMiB<<20, resource.BinarySI),
		},
		Limits: corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(sizing.Default.LimitMiB<<20, resource.BinarySI)},
	}
	for name, d := range named[appsv1.Deployment](t, objects(t, needed), "Deployment") {
		if got := d.Spec.Template.Spec.Containers[0].Resources; !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s has the resources %v, want %v", name, got, want)
		}
	}
}
