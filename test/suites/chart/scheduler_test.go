package chart_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

const withScheduler = "--set=scheduler.enabled=true,node.enabled=false"

// named returns the objects of a kind, by name.
func named[T any](t *testing.T, all chart.Objects, kind string) map[string]T {
	t.Helper()
	found := map[string]T{}
	for _, o := range all.Kind(kind) {
		var into T
		if err := chart.Convert(o, &into); err != nil {
			t.Fatal(err)
		}
		found[o.GetName()] = into
	}
	return found
}

func TestSchedulerIsDisabledByDefault(t *testing.T) {
	for _, o := range objects(t, combinations["everything"]...) {
		if strings.Contains(o.GetName(), "scheduler") {
			t.Errorf("there is the %s %s", o.GetKind(), o.GetName())
		}
	}
}

func TestSchedulerSelectorsDoNotMatchControllerPods(t *testing.T) {
	all := objects(t, needed, withScheduler, "--set=networkPolicy.enabled=true")
	deployments := named[appsv1.Deployment](t, all, "Deployment")
	scheduler, controller := deployments["karve-scheduler"], deployments["karve"]
	budgets, policies := named[policyv1.PodDisruptionBudget](t, all, "PodDisruptionBudget"), named[networkingv1.NetworkPolicy](t, all, "NetworkPolicy")
	for name, s := range map[string]*metav1.LabelSelector{
		"Deployment": scheduler.Spec.Selector, "PodDisruptionBudget": budgets["karve-scheduler"].Spec.Selector,
		"NetworkPolicy": new(policies["karve-scheduler"].Spec.PodSelector), "spread": scheduler.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector,
	} {
		selector, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			t.Fatal(err)
		}
		if !selector.Matches(labels.Set(scheduler.Spec.Template.Labels)) || selector.Matches(labels.Set(controller.Spec.Template.Labels)) {
			t.Errorf("%s: %v", name, selector)
		}
	}
	if selector, err := metav1.LabelSelectorAsSelector(controller.Spec.Selector); err != nil || selector.Matches(labels.Set(scheduler.Spec.Template.Labels)) {
		t.Errorf("the controller's Deployment takes the scheduler's pods: %v, %v", selector, err)
	}
}

func TestSchedulerImageMatchesClusterVersion(t *testing.T) {
	for want, options := range map[string][]string{
		"registry.k8s.io/kube-scheduler:v1.35.3": {"--kube-version=v1.35.3-eks-1234567"},
		"registry.k8s.io/kube-scheduler:v1.34.9": {"--kube-version=v1.35.3", "--set=scheduler.image.tag=v1.34.9"},
		"mirror.example.com/kube-scheduler:own":  {"--set=scheduler.image.repository=mirror.example.com/kube-scheduler,scheduler.image.tag=own"},
	} {
		all := objects(t, append([]string{needed, withScheduler}, options...)...)
		if got := named[appsv1.Deployment](t, all, "Deployment")["karve-scheduler"].Spec.Template.Spec.Containers[0].Image; got != want {
			t.Errorf("%v: the image is %s, want %s", options, got, want)
		}
	}
}

// TestPackingSchedulerFillsOneNodeBeforeNext runs the real scheduler with the chart's configuration and rights, on nodes without kubelets.
func TestPackingSchedulerFillsOneNodeBeforeNext(t *testing.T) {
	cluster.Require(t)
	k, err := karve.Client(server)
	if err != nil {
		t.Fatal(err)
	}
	runScheduler(t, k)
	for _, name := range []string{"packed-1", "packed-2", "packed-3", "packed-4"} {
		simulatedNode(t, k, name)
	}
	// By default, a scheduler spreads the pods of a Service.
	create(t, k, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "packed"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "packed"}, Ports: []corev1.ServicePort{{Port: 80}},
	}})
	for i := range 25 {
		packedPod(t, k, fmt.Sprintf("first-%02d", i))
	}
	first := bound(t, k, 25)
	if diff := cmp.Diff([]int{5, 10, 10}, slices.Sorted(maps.Values(first))); diff != "" {
		t.Fatalf("pods by node (-want +got):\n%s", diff)
	}

	// The surplus machine gets no more pods, although it is half full.
	for name, n := range first {
		if n == 5 {
			patch := fmt.Sprintf(`{"spec":{"taints":[{"key":%q,"effect":"PreferNoSchedule"}]}}`, v1alpha1.SurplusTaintKey)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if err := k.Patch(t.Context(), node, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.Sleep(time.Second) // Until the scheduler has seen the taint.
	for i := range 3 {
		packedPod(t, k, fmt.Sprintf("then-%02d", i))
	}
	if diff := cmp.Diff([]int{3, 5, 10, 10}, slices.Sorted(maps.Values(bound(t, k, 28)))); diff != "" {
		t.Errorf("pods by node (-want +got):\n%s", diff)
	}
}

func create(t *testing.T, k client.Client, o client.Object) {
	t.Helper()
	if err := k.Create(t.Context(), o); err != nil {
		t.Fatalf("creating %T %s: %v", o, o.GetName(), err)
	}
}

// runScheduler runs the chart's scheduler until the test ends.
func runScheduler(t *testing.T, k client.Client) {
	t.Helper()
	all := objects(t, needed, withScheduler)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: controller.Namespace}}
	if err := client.IgnoreAlreadyExists(k.Create(t.Context(), namespace)); err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if strings.Contains(o.GetKind(), "Role") && strings.HasPrefix(o.GetName(), "karve-scheduler") {
			create(t, k, o)
		}
	}
	pod := named[appsv1.Deployment](t, all, "Deployment")["karve-scheduler"].Spec.Template.Spec
	kubeconfig, err := server.KubeconfigFor("system:serviceaccount:" + controller.Namespace + ":" + pod.ServiceAccountName)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := sigsyaml.Unmarshal([]byte(named[corev1.ConfigMap](t, all, "ConfigMap")["karve-scheduler"].Data["config.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	config["clientConnection"] = map[string]any{"kubeconfig": kubeconfig} // In a pod, the scheduler needs no kubeconfig.
	text, err := sigsyaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	file := filepath.Join(folder, "config.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(folder, "log"))
	if err != nil {
		t.Fatal(err)
	}
	port, err := server.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	args := append(slices.Clone(pod.Containers[0].Args), "--config="+file, fmt.Sprint("--secure-port=", port),
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "_output", "bin", pod.Containers[0].Command[0]), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Wait(); err == nil {
			t.Error("the scheduler ended by itself")
		}
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("the scheduler's log:\n%s", text[max(0, len(text)-8000):])
		}
	})
}

// simulatedNode creates a ready node with ten replicas and no kubelet.
func simulatedNode(t *testing.T, k client.Client, name string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	create(t, k, node)
	node.Spec.Taints = nil // This removes the not-ready taint of a new node.
	if err := k.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	node.Status.Allocatable = corev1.ResourceList{
		"cpu": resource.MustParse("4"), "memory": resource.MustParse("16Gi"), "pods": resource.MustParse("29"), v1alpha1.ResourceGPUShared: resource.MustParse("10"),
	}
	node.Status.Capacity = node.Status.Allocatable
	if err := k.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

func packedPod(t *testing.T, k client.Client, name string) {
	t.Helper()
	create(t, k, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "packed-" + name, Labels: map[string]string{"app": "packed"}},
		Spec: corev1.PodSpec{SchedulerName: "karve-packing", Containers: []corev1.Container{{Name: "main", Image: "app", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse("300m"), "memory": resource.MustParse("1Gi")},
			Limits:   corev1.ResourceList{v1alpha1.ResourceGPUShared: resource.MustParse("1")},
		}}}},
	})
}

// bound waits until n of the pods are bound, and returns the number of pods per node.
func bound(t *testing.T, k client.Client, n int) map[string]int {
	t.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		var pods corev1.PodList
		if err := k.List(t.Context(), &pods, client.MatchingLabels{"app": "packed"}); err != nil {
			t.Fatal(err)
		}
		on, some := map[string]int{}, 0
		for _, pod := range pods.Items {
			if pod.Spec.NodeName != "" {
				on[pod.Spec.NodeName]++
				some++
			}
		}
		if some == n {
			return on
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatalf("%d of %d pods are bound: %v", some, n, on)
		}
	}
}
