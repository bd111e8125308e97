package readiness

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/test/harness/await"
	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

const (
	name           = "machine-1" // the name of the NodeClaim and the Node
	gpus, replicas = 4, 10
	enough         = time.Minute
	library        = "gpus" // the file that configures the fake NVML library
)

var agentChart = chart.Chart{Name: "karve/charts/karve-node", Release: "karve-node", Namespace: karve.Agents}

// world is a cluster with Karve's controller, the agent's chart and one machine of Karve.
type world struct {
	t       *testing.T
	cluster *cluster.Cluster
	api     client.Client
	clients kubernetes.Interface
	agents  appsv1.DaemonSet
}

func newWorld(t *testing.T, components ...cluster.Component) *world {
	t.Helper()
	return newWorldWith(t, cluster.Config{Components: components}, karve.Options{})
}

func newWorldWith(t *testing.T, config cluster.Config, options karve.Options) *world {
	t.Helper()
	cluster.Require(t)
	nvmltest.Build(t)
	w := &world{t: t, cluster: cluster.ForTest(t, config)}
	var err error
	w.api, err = karve.Client(w.cluster)
	w.must(err)
	w.clients, err = kubernetes.NewForConfig(w.cluster.RESTConfig())
	w.must(err)
	options.Alone = true
	_, err = karve.Start(t.Context(), w.cluster, options)
	w.must(err)
	// The image does not exist and is never pulled.
	objects, err := agentChart.Template(t.Context(), "--set=image.repository=registry.example.com/karve/node,image.pullPolicy=Never", "--set=metrics.pods=true")
	w.must(err)
	w.must(objects.Into("DaemonSet", &w.agents))
	w.must(w.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agentChart.Namespace}}))
	for _, o := range objects {
		w.must(w.api.Create(t.Context(), o))
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// eventually calls check until it succeeds, and fails the test with its last error when that takes too long.
func (w *world) eventually(check func() error) {
	w.t.Helper()
	await.Nil(w.t, enough, check)
}

// claim creates the NodeClaim as the controller does, and sets its status as Karpenter does once the Node has registered. It can have more annotations.
func (w *world) claim(annotations map[string]string) *karpv1.NodeClaim {
	w.t.Helper()
	c := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				karpv1.NodePoolLabelKey: "shared", v1alpha1.GPUNodeClassLabel: "shared", corev1.LabelInstanceTypeStable: "g4dn.12xlarge",
			},
			Annotations: map[string]string{
				nodecontract.ResourceAnnotation: v1alpha1.ResourceGPUShared, nodecontract.GPUsAnnotation: fmt.Sprint(gpus),
				nodecontract.ReplicasPerGPUAnnotation: fmt.Sprint(replicas), v1alpha1.PriceAnnotation: "3912000",
			},
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "gpu"},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{
				{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"g4dn.12xlarge"}},
			},
			StartupTaints: []corev1.Taint{render.ReplicasNotReadyTaint()},
		},
	}
	maps.Copy(c.Annotations, annotations)
	w.must(w.api.Create(w.t.Context(), c))
	c.Status.NodeName, c.Status.ProviderID = name, "aws:///"+name
	for _, kind := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered} {
		c.Status.Conditions = append(c.Status.Conditions, status.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: kind, LastTransitionTime: metav1.Now(), ObservedGeneration: c.Generation,
		})
	}
	w.must(w.api.Status().Update(w.t.Context(), c))
	return c
}

// register sets what Karpenter sets on a Node: the labels, annotations and taints of its claim, and an owner.
func register(n *corev1.Node, c *karpv1.NodeClaim) {
	labels, annotations := map[string]string{karpv1.NodeRegisteredLabelKey: "true"}, map[string]string{}
	for _, from := range []*metav1.ObjectMeta{&n.ObjectMeta, &c.ObjectMeta} {
		maps.Copy(labels, from.Labels)
		maps.Copy(annotations, from.Annotations)
	}
	n.Labels, n.Annotations = labels, annotations
	n.Spec.Taints = append(n.Spec.Taints, c.Spec.StartupTaints...)
	n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: c.Name, UID: c.UID, BlockOwnerDeletion: new(true)}}
}

func (w *world) node() *corev1.Node {
	w.t.Helper()
	n, err := w.clients.CoreV1().Nodes().Get(w.t.Context(), name, metav1.GetOptions{})
	w.must(err)
	return n
}

func tainted(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.ReplicasNotReadyTaintKey })
}

func allocatable(n *corev1.Node) int64 {
	q := n.Status.Allocatable[v1alpha1.ResourceGPUShared]
	return q.Value()
}

// agent builds the released program and returns it with the environment of the DaemonSet's pod. Only the directories are the test's own. A fake NVML library
// provides the GPUs. The agent authenticates to the API server as the pod.
func (w *world) agent(pod *corev1.Pod, dir string) (program string, env []string) {
	w.t.Helper()
	ctx := w.t.Context()
	root, err := cluster.Root()
	w.must(err)
	bin := w.t.TempDir()
	program = filepath.Join(bin, "karve-node")
	build := exec.CommandContext(ctx, filepath.Join(root, "tools", "build"), "node")
	build.Env = append(os.Environ(), "OUT="+bin, "TRIMPATH=no")
	if out, err := build.CombinedOutput(); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
	token, err := w.clients.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	w.must(err)
	config := w.cluster.RESTConfig()
	server, err := url.Parse(config.Host)
	w.must(err)
	account, state := filepath.Join(dir, "service-account"), filepath.Join(dir, library)
	w.must(os.MkdirAll(account, 0o700))
	for path, content := range map[string][]byte{
		filepath.Join(account, "token"): []byte(token.Status.Token), filepath.Join(account, "ca.crt"): config.CAData, state: []byte(nvmltest.T4(gpus).String()),
	} {
		w.must(os.WriteFile(path, content, 0o600))
	}
	for _, v := range pod.Spec.Containers[0].Env {
		if !strings.HasPrefix(v.Name, "NVIDIA_") && v.ValueFrom == nil {
			env = append(env, v.Name+"="+v.Value)
		}
	}
	return program, append(env,
		"NODE_NAME="+pod.Spec.NodeName, "METRICS_ADDRESS=127.0.0.1:0", "STATE_DIR="+filepath.Join(dir, "state"),
		"KUBERNETES_SERVICE_HOST="+server.Hostname(), "KUBERNETES_SERVICE_PORT="+server.Port(), "SERVICE_ACCOUNT_DIR="+account,
		"LD_LIBRARY_PATH="+filepath.Dir(nvmltest.Build(w.t)), nvmltest.Env+"="+state)
}

// waits checks that the node stays tainted without the agent.
func (w *world) waits() {
	w.t.Helper()
	for range 20 {
		if n := w.node(); !tainted(n) || allocatable(n) != 0 {
			w.t.Fatalf("without the agent the node has %d replicas, and taints %v", allocatable(n), n.Spec.Taints)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// opens checks that the controller removes the taint and that the Node has what the agent reports.
func (w *world) opens(log string) {
	w.t.Helper()
	defer func() {
		if text, err := os.ReadFile(log); w.t.Failed() {
			w.t.Logf("the agent said, %v:\n%s", err, text)
		}
	}()
	w.eventually(func() error {
		if n := w.node(); tainted(n) {
			return fmt.Errorf("the startup taint is still there; the node has %d replicas", allocatable(n))
		}
		return nil
	})
	if got := allocatable(w.node()); got != gpus*replicas {
		w.t.Errorf("the node has %d replicas", got)
	}
	w.eventually(func() error {
		n := w.node()
		for key, want := range map[string]string{
			"nvidia.com/gpu.count": "4", "nvidia.com/gpu.replicas": "10", "nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.present": "true",
			"nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.family": "turing",
		} {
			if n.Labels[key] != want {
				return fmt.Errorf("%s=%q, want %s", key, n.Labels[key], want)
			}
		}
		for _, kind := range []corev1.NodeConditionType{"KarveSharingReady", "AcceleratedHardwareReady"} {
			if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue }) {
				return fmt.Errorf("%s is not true: %v", kind, n.Status.Conditions)
			}
		}
		return nil
	})
	// The chart's policies allow everything that the agent does.
	text, err := os.ReadFile(log)
	w.must(err)
	if strings.Contains(string(text), "Forbidden") {
		w.t.Errorf("the agent is refused something:\n%s", text)
	}
}
