package chart_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

var server *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(cluster.RunWithAPIServer(m, &server)) }

const nodeClaim = "authentication.kubernetes.io/node-name"

// as returns a client that acts as a pod of the service account on the node.
func as(t *testing.T, account, node string) kubernetes.Interface {
	t.Helper()
	config := server.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + account,
		Groups:   []string{"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:" + strings.Split(account, ":")[0]},
	}
	if node != "" {
		config.Impersonate.Extra = map[string][]string{nodeClaim: {node}}
	}
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func install(t *testing.T) kubernetes.Interface {
	t.Helper()
	cluster.Require(t)
	admin, err := kubernetes.NewForConfig(server.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: node.Namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	k, err := karve.Client(server)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range template(t, recipe) {
		if err := k.Create(t.Context(), o); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	return admin
}

type request struct {
	name  string
	what  func(ctx context.Context, k kubernetes.Interface, node string) error
	allow bool
}

func patchNode(patch string, subresources ...string) func(context.Context, kubernetes.Interface, string) error {
	return func(ctx context.Context, k kubernetes.Interface, node string) error {
		_, err := k.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
		return err
	}
}

func event(kind, about string) func(context.Context, kubernetes.Interface, string) error {
	return func(ctx context.Context, k kubernetes.Interface, node string) error {
		if about != "" {
			node = about
		}
		_, err := k.CoreV1().Events("default").Create(ctx, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "karve-"}, InvolvedObject: corev1.ObjectReference{Kind: kind, Name: node},
		}, metav1.CreateOptions{})
		return err
	}
}

var requests = []request{
	{"reads its Node", func(ctx context.Context, k kubernetes.Interface, node string) error {
		_, err := k.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		return err
	}, true},
	{"watches its Node", func(ctx context.Context, k kubernetes.Interface, node string) error {
		w, err := k.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node})
		if err == nil {
			w.Stop()
		}
		return err
	}, true},
	{"lists and watches ResourceSlices", func(ctx context.Context, k kubernetes.Interface, node string) error {
		of := metav1.ListOptions{FieldSelector: "spec.driver=gpu.nvidia.com,spec.nodeName=" + node}
		if _, err := k.ResourceV1().ResourceSlices().List(ctx, of); err != nil {
			return err
		}
		w, err := k.ResourceV1().ResourceSlices().Watch(ctx, of)
		if err == nil {
			w.Stop()
		}
		return err
	}, true},
	{"labels it", patchNode(`{"metadata":{"labels":{"nvidia.com/gpu.count":"4","nvidia.com/mig.capable":"false","nvidia.com/cuda.driver.major":"580","nvidia.com/gfd.timestamp":"1772366400"}}}`), true},
	{"labels it with its MIG instances", patchNode(`{"metadata":{"labels":{"nvidia.com/mig-1g.5gb.count":"7","nvidia.com/mig-1g.5gb.me.product":"A100","nvidia.com/mig.strategy":"mixed"}}}`), true},
	{"tells NVIDIA's MIG manager to divide its GPUs", patchNode(`{"metadata":{"labels":{"nvidia.com/mig.config":"all-disabled"}}}`), false},
	{"removes its own label", patchNode(`{"metadata":{"labels":{"nvidia.com/gpu.count":null}}}`), true},
	{"sets its conditions", patchNode(`{"status":{"conditions":[{"type":"KarveSharingReady","status":"True"},{"type":"AcceleratedHardwareReady","status":"False"},{"type":"KarveGPUsCordoned","status":"True"},{"type":"KarveGPUAccessRestricted","status":"True"}]}}`, "status"), true},
	{"removes GPUs from the reset annotation", patchNode(`{"metadata":{"annotations":{"karve.sh/gpu-reset":"GPU-a"}}}`), true},
	{"removes the reset annotation", patchNode(`{"metadata":{"annotations":{"karve.sh/gpu-reset":null}}}`), true},
	{"reports unused pods", patchNode(`{"metadata":{"annotations":{"karve.sh/unused-since":"{}"}}}`), true},
	{"reports other pods", patchNode(`{"metadata":{"annotations":{"karve.sh/unused-since":"{ }"}}}`), true},
	{"reports no pods", patchNode(`{"metadata":{"annotations":{"karve.sh/unused-since":null}}}`), true},
	{"says which pods hold replicas of its GPUs", patchNode(`{"metadata":{"annotations":{"karve.sh/gpu-holders":"{}"}}}`), true},
	{"says that others do", patchNode(`{"metadata":{"annotations":{"karve.sh/gpu-holders":"{ }"}}}`), true},
	{"writes an event about it", event("Node", ""), true},

	{"lists all Nodes", func(ctx context.Context, k kubernetes.Interface, _ string) error {
		_, err := k.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	}, false},
	{"deletes it", func(ctx context.Context, k kubernetes.Interface, node string) error {
		return k.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{})
	}, false},
	{"removes its taints", patchNode(`{"spec":{"taints":null}}`), false},
	{"cordons it", patchNode(`{"spec":{"unschedulable":true}}`), false},
	{"selects its own configuration", patchNode(`{"metadata":{"labels":{"nvidia.com/device-plugin.config":"shared_gpu"}}}`), false},
	{"tells the GPU Operator what to run", patchNode(`{"metadata":{"labels":{"nvidia.com/gpu.deploy.device-plugin":"true"}}}`), false},
	{"removes what the GPU Operator runs", patchNode(`{"metadata":{"labels":{"nvidia.com/gpu.deploy.operands":null}}}`), false},
	{"changes a foreign label", patchNode(`{"metadata":{"labels":{"karpenter.sh/nodepool":"mine"}}}`), false},
	{"removes a foreign label", patchNode(`{"metadata":{"labels":{"karpenter.sh/nodepool":null}}}`), false},
	{"adds the reset annotation", patchNode(`{"metadata":{"annotations":{"karve.sh/gpu-reset":"GPU-a"}}}`), false},
	{"cordons a GPU", patchNode(`{"metadata":{"annotations":{"karve.sh/gpu-cordon":"0,1"}}}`), false},
	{"uncordons a GPU", patchNode(`{"metadata":{"annotations":{"karve.sh/gpu-cordon":null}}}`), false},
	{"adds another annotation", patchNode(`{"metadata":{"annotations":{"karve.sh/unused":"yes"}}}`), false},
	{"removes the promise", patchNode(`{"metadata":{"annotations":{"karve.sh/replicas-per-gpu":null}}}`), false},
	{"changes the promise", patchNode(`{"metadata":{"annotations":{"karve.sh/replicas-per-gpu":"100"}}}`), false},
	{"adds a finalizer", patchNode(`{"metadata":{"finalizers":["karve.sh/mine"]}}`), false},
	{"sets Ready to False", patchNode(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "status"), false},
	{"adds resources", patchNode(`{"status":{"capacity":{"nvidia.com/gpu":"1k"},"allocatable":{"nvidia.com/gpu":"1k"}}}`, "status"), false},
	{"writes an event about something else", event("Pod", "one"), false},
	{"reads secrets", func(ctx context.Context, k kubernetes.Interface, _ string) error {
		_, err := k.CoreV1().Secrets(node.Namespace).List(ctx, metav1.ListOptions{})
		return err
	}, false},
}

// TestPolicyLimitsAgentToItsOwnNode uses a real API server.
func TestPolicyLimitsAgentToItsOwnNode(t *testing.T) {
	admin := install(t)
	for _, name := range []string{"a", "b"} {
		made, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{"karpenter.sh/nodepool": "pool", "nvidia.com/gpu.deploy.operands": "false"},
				Annotations: map[string]string{"karve.sh/replicas-per-gpu": "10", "karve.sh/gpu-reset": "GPU-a,GPU-b", "karve.sh/gpu-cordon": "0"},
			},
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "karve.sh/replicas-not-ready", Effect: corev1.TaintEffectNoSchedule}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := admin.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		made.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("10")}
		made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if _, err := admin.CoreV1().Nodes().UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	account := node.Namespace + ":karve-node"
	agent := as(t, account, "a")
	inForce(t, agent, "b")
	for _, r := range requests {
		err := r.what(t.Context(), agent, "a")
		if forbidden := apierrors.IsForbidden(err); forbidden == r.allow || err != nil && !forbidden {
			t.Errorf("the agent on a %s: %v", r.name, err)
		}
	}
	for _, other := range []struct{ who, token, node string }{{"the agent on a", "a", "b"}, {"a token without a node", "", "a"}} {
		for _, r := range requests {
			if strings.HasPrefix(r.name, "reads its") || strings.HasPrefix(r.name, "watches its") || strings.HasPrefix(r.name, "lists and watches") {
				continue // The API server cannot tell an agent's own objects from others' here.
			}
			if err := r.what(t.Context(), as(t, account, other.token), other.node); !apierrors.IsForbidden(err) {
				t.Errorf("%s, of %s: %s: %v", other.who, other.node, r.name, err)
			}
		}
	}
	// The policy only applies to the agent's service account.
	if err := patchNode(`{"spec":{"unschedulable":true}}`)(t.Context(), admin, "b"); err != nil {
		t.Error(err)
	}
}

// inForce waits until the API server enforces the policies.
func inForce(t *testing.T, agent kubernetes.Interface, node string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		// Neither request changes anything.
		label, about := patchNode(`{"metadata":{"labels":{"a":"b"}}}`)(t.Context(), agent, node), event("Pod", "none")(t.Context(), agent, node)
		if apierrors.IsForbidden(label) && apierrors.IsForbidden(about) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(fmt.Errorf("the policies are not in force: %w", errors.Join(label, about)))
		}
		time.Sleep(50 * time.Millisecond)
	}
}
