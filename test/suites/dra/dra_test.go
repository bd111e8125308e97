package dra

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/node/dra"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/test/harness/await"
	"karve.sh/karve/test/harness/cluster"
)

const namespace = "default"

// world is a cluster in which nodes have the agent's driver.
type world struct {
	t      *testing.T
	client kubernetes.Interface
	config *rest.Config
}

// node is a Node with GPUs, and its driver.
type node struct {
	*world
	name    string
	driver  *dra.Driver
	dir     string
	gpus    []gpu.Device
	promise sharing.Promise
}

// newWorld starts a cluster with DeviceClasses of the chart.
func newWorld(t *testing.T) *world {
	t.Helper()
	var classes []resourcev1.DeviceClass
	for _, name := range []string{nodecontract.ResourceGPUShared, nodecontract.ResourceGPU, smallInstance} {
		classes = append(classes, claims.DeviceClass(name))
	}
	return newWorldWith(t, classes...)
}

// newWorldWith starts a cluster with DeviceClasses.
func newWorldWith(t *testing.T, classes ...resourcev1.DeviceClass) *world {
	t.Helper()
	c := cluster.ForTest(t, cluster.Config{Components: []cluster.Component{cluster.Scheduler, cluster.ControllerManager}})
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, client: client, config: c.RESTConfig()}
	for i := range classes {
		_, err = client.ResourceV1().DeviceClasses().Create(t.Context(), &classes[i], metav1.CreateOptions{})
		w.must(err)
	}
	w.eventually(func() error {
		_, err := client.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) eventually(check func() error) {
	w.t.Helper()
	await.Nil(w.t, time.Minute, check)
}

// node creates a Node with a number of T4s, each with ten replicas, and waits until they are published.
func (w *world) node(name string, count int) *node {
	w.t.Helper()
	var gpus []gpu.Device
	for i := range count {
		gpus = append(gpus, gpu.Device{UUID: fmt.Sprintf("GPU-%s-%d", name, i), Index: i, Minor: i, Product: "Tesla T4", MemoryMiB: 15360, ComputeMajor: 7, ComputeMinor: 5, NUMANode: -1, PCIeRoot: "pci0000:00"})
	}
	return w.nodeWith(name, gpus, sharing.Promise{Resource: nodecontract.ResourceGPUShared, Replicas: 10, Backend: nodecontract.BackendDRA})
}

// nodeWith creates a Node with GPUs, and waits until the promised replicas are published.
func (w *world) nodeWith(name string, gpus []gpu.Device, promise sharing.Promise) *node {
	w.t.Helper()
	w.bareNode(name)
	dir, err := os.MkdirTemp("", "dra") //nolint:usetesting // t.TempDir is too long for a socket's name.
	w.must(err)
	w.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{world: w, name: name, dir: dir, gpus: gpus, promise: promise}
	n.start()
	return n
}

// bareNode creates a Node that is ready and has no driver.
func (w *world) bareNode(name string) {
	w.t.Helper()
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("110")}
	_, err := w.client.CoreV1().Nodes().Create(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}, metav1.CreateOptions{})
	w.must(err)
	w.must(retry.RetryOnConflict(retry.DefaultBackoff, func() error { // The controller-manager changes new nodes too.
		created, err := w.client.CoreV1().Nodes().Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err //nolint:wrapcheck // It is looked at.
		}
		created.Status = corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}}
		_, err = w.client.CoreV1().Nodes().UpdateStatus(w.t.Context(), created, metav1.UpdateOptions{})
		return err //nolint:wrapcheck // It is looked at.
	}))
}

// start starts the driver and registers it, as an agent and a kubelet do.
func (n *node) start() {
	n.t.Helper()
	web, err := rest.HTTPClientFor(n.config)
	n.must(err)
	n.driver, err = dra.New(dra.Config{
		API: &nodeapi.Client{Server: n.config.Host, Name: n.name, HTTP: web}, Registry: n.dir, State: filepath.Join(n.dir, "state"), Specs: filepath.Join(n.dir, "cdi"),
		CDIMissing: func([]string) error { return nil },
	})
	n.must(err)
	ctx, stop := context.WithCancel(n.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.driver.Run(ctx) }()
	n.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			n.t.Error(err)
		}
	})
	c, err := sharing.FromPromise(n.promise)
	n.must(err)
	n.must(n.driver.Apply(c, gpu.Driver{Version: "580.65.06", CUDAMajor: 13}, n.gpus))
	client := registration.NewRegistrationClient(n.dial())
	n.eventually(func() error {
		_, err := client.NotifyRegistrationStatus(n.t.Context(), &registration.RegistrationStatus{PluginRegistered: true})
		return err
	})
	n.publishes(n.promise.Replicas * len(n.gpus))
}

func (n *node) dial() *grpc.ClientConn {
	n.t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(n.dir, nodecontract.DRADriver+"-reg.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	n.must(err)
	n.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// publishes waits until the controller would see as many replicas on the node.
func (n *node) publishes(replicas int) {
	n.t.Helper()
	n.eventually(func() error {
		all, err := n.client.ResourceV1().ResourceSlices().List(n.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		rules, err := n.client.ResourceV1().DeviceTaintRules().List(n.t.Context(), metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if got := facts.PublishedOf(all.Items, rules.Items)[facts.Offer{Node: n.name, Driver: nodecontract.DRADriver, Resource: n.promise.Resource}].Replicas; got != int64(replicas) {
			return fmt.Errorf("%s publishes %d replicas, want %d", n.name, got, replicas)
		}
		return nil
	})
}

// ask creates a pod with a container for each number of replicas, for a node.
func (n *node) ask(name string, replicas ...int64) {
	n.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelHostname: n.name}}}
	for i, count := range replicas {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "none", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceName(n.promise.Resource): *resource.NewQuantity(count, resource.DecimalSI)},
		}})
	}
	_, err := n.client.CoreV1().Pods(namespace).Create(n.t.Context(), pod, metav1.CreateOptions{})
	n.must(err)
}

// prepared waits until a pod is bound, prepares its claim as the kubelet does, and returns the GPUs by container that the CDI specs give it.
func (n *node) prepared(name string) map[string]string {
	n.t.Helper()
	var pod *corev1.Pod
	n.eventually(func() error {
		var err error
		if pod, err = n.client.CoreV1().Pods(namespace).Get(n.t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		if pod.Spec.NodeName != n.name || pod.Status.ExtendedResourceClaimStatus == nil {
			return fmt.Errorf("%s is not bound: %v", name, pod.Status.Conditions)
		}
		return nil
	})
	s := pod.Status.ExtendedResourceClaimStatus
	claim, err := n.client.ResourceV1().ResourceClaims(namespace).Get(n.t.Context(), s.ResourceClaimName, metav1.GetOptions{})
	n.must(err)
	r, err := drapb.NewDRAPluginClient(n.dial()).NodePrepareResources(n.t.Context(), &drapb.NodePrepareResourcesRequest{
		Claims: []*drapb.Claim{{Namespace: namespace, Name: claim.Name, Uid: string(claim.UID)}},
	})
	n.must(err)
	answer := r.GetClaims()[string(claim.UID)]
	if answer.GetError() != "" {
		n.t.Fatalf("%s: %s", name, answer.GetError())
	}
	gpus := map[string]string{}
	for _, m := range s.RequestMappings {
		for _, d := range answer.GetDevices() {
			if slices.Contains(d.GetRequestNames(), m.RequestName) {
				gpus[m.ContainerName] += " " + d.GetDeviceName()
			}
		}
	}
	return gpus
}

// waits checks that the scheduler finds no place for a pod.
func (n *node) waits(name string) {
	n.t.Helper()
	n.eventually(func() error {
		pod, err := n.client.CoreV1().Pods(namespace).Get(n.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Spec.NodeName != "" {
			n.t.Fatalf("%s is bound", name)
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return errors.New(name + " has not been looked at")
	})
}

// end deletes a pod and ends its claim, as the kubelet does.
func (n *node) end(name string) {
	n.t.Helper()
	pod, err := n.client.CoreV1().Pods(namespace).Get(n.t.Context(), name, metav1.GetOptions{})
	n.must(err)
	n.must(n.client.CoreV1().Pods(namespace).Delete(n.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	if pod.Status.ExtendedResourceClaimStatus == nil {
		return
	}
	claim, err := n.client.ResourceV1().ResourceClaims(namespace).Get(n.t.Context(), pod.Status.ExtendedResourceClaimStatus.ResourceClaimName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	n.must(err)
	_, err = drapb.NewDRAPluginClient(n.dial()).NodeUnprepareResources(n.t.Context(), &drapb.NodeUnprepareResourcesRequest{
		Claims: []*drapb.Claim{{Namespace: namespace, Name: claim.Name, Uid: string(claim.UID)}},
	})
	n.must(err)
}

func TestSchedulerGivesUnchangedPodsTheReplicasOfAGPU(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node("one", 1)
	gpu := " " + strings.ToLower(n.gpus[0].UUID)
	// One after another: kube-scheduler 1.36.3 counts an allocation twice for a moment, and a pod that needs the last replica in that moment waits for minutes.
	for i := range 10 {
		n.ask(fmt.Sprintf("pod-%d", i), 1)
		if got := n.prepared(fmt.Sprintf("pod-%d", i)); got["c0"] != gpu {
			t.Errorf("pod-%d has the GPUs %v", i, got)
		}
	}
	if share := n.driver.Shares()[n.gpus[0].UUID]; share.Allocated != 10 || share.Total != 10 {
		t.Errorf("the share is %+v", share)
	}
	n.ask("eleventh", 1)
	n.waits("eleventh")
	n.end("pod-4")
	if got := n.prepared("eleventh"); got["c0"] != gpu {
		t.Errorf("the eleventh pod has the GPUs %v", got)
	}
	n.driver.SetHealth(n.gpus[0].UUID, false)
	n.publishes(0)
	n.end("pod-5")
	n.ask("later", 1)
	n.waits("later")
	n.driver.SetHealth(n.gpus[0].UUID, true)
	n.publishes(10)
	n.prepared("later")
}

// This is what the planner has to know of the scheduler.
func TestReplicasOfAContainerAreOnDifferentGPUs(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	w := newWorld(t)
	four, one := w.node("four", 4), w.node("single", 1)
	four.ask("three-replicas", 3)
	if got := strings.Fields(four.prepared("three-replicas")["c0"]); len(got) != 3 || got[0] == got[1] || got[1] == got[2] || got[0] == got[2] {
		t.Errorf("a container that requests three replicas has the GPUs %v", got)
	}
	one.ask("three-of-one", 3)
	one.waits("three-of-one")
	four.ask("two-containers", 1, 1)
	if got := four.prepared("two-containers"); got["c0"] == "" || got["c0"] != got["c1"] {
		t.Errorf("two containers that request a replica each have %v, want one GPU", got)
	}
	// First fit, never spread.
	for i := range 5 {
		name := fmt.Sprintf("single-%d", i)
		four.ask(name, 1)
		if got := four.prepared(name)["c0"]; got != " "+strings.ToLower(four.gpus[0].UUID) {
			t.Errorf("%s has the GPUs %q, want the first of the slice", name, got)
		}
	}
}
