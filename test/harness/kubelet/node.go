package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet/cgroup"
)

// readyTimeout applies to one step of the start on a machine that also compiles. On an idle machine a step takes seconds.
const readyTimeout = 2 * time.Minute

// Config configures the node. The zero value is a node called "node".
type Config struct {
	Name string
	// Labels are put on the node when it registers.
	Labels map[string]string
	// StatusInterval is how often the kubelet reports the node's status to the API server; a second when zero. The kubelet's own default is ten seconds.
	StatusInterval time.Duration
	// MaxPods is 110 when zero, the kubelet's default.
	MaxPods int
}

// Node is a running node.
type Node struct {
	config     Config
	cluster    *cluster.Cluster
	client     kubernetes.Interface
	root       string // of the repository
	dir        string
	keep       bool
	port       int
	health     int
	network    int       // the number of its subnet
	networkEnd io.Closer // releases the subnet
	kubeconfig string
	init       *exec.Cmd
	life       io.Closer // init ends when this is closed
	containerd *Process
	kubelet    *Process
}

// Start adds a node, and a namespace for its pods, to a cluster that has a scheduler and a controller-manager. It returns when pods can be scheduled to the node.
// The caller must call Stop before it stops the cluster. On an error nothing keeps running, and the folder with the logs stays.
func Start(ctx context.Context, c *cluster.Cluster, config Config) (*Node, error) {
	n, err := prepare(ctx, c, config)
	if err != nil {
		return nil, err
	}
	if err := n.start(ctx); err != nil {
		n.keep = true
		return nil, errors.Join(err, n.Stop())
	}
	return n, nil
}

func prepare(ctx context.Context, c *cluster.Cluster, config Config) (*Node, error) {
	if config.Name == "" {
		config.Name = "node"
	}
	if config.StatusInterval == 0 {
		config.StatusInterval = time.Second
	}
	if config.MaxPods == 0 {
		config.MaxPods = 110
	}
	n := &Node{config: config, cluster: c, keep: os.Getenv("KARVE_KEEP_CLUSTER") == "1"}
	var err error
	if n.root, err = cluster.Root(); err != nil {
		return nil, err
	}
	if n.client, err = kubernetes.NewForConfig(c.RESTConfig()); err != nil {
		return nil, fmt.Errorf("starting a node: %w", err)
	}
	for _, port := range []*int{&n.port, &n.health} {
		if *port, err = c.FreePort(ctx); err != nil {
			return nil, err
		}
	}
	if err := n.reserveNetwork(ctx); err != nil {
		return nil, err
	}
	// A node needs fewer permissions, but gets them only from the node authorizer, which this API server does not run. So the kubelet is in
	// system:masters.
	if n.kubeconfig, err = c.KubeconfigFor("system:node:"+config.Name, "system:nodes", "system:masters"); err != nil {
		return nil, err
	}
	// Keep the path short: the path of a socket is limited to 107 bytes.
	if n.dir, err = os.MkdirTemp("", "karve-node-"); err != nil {
		return nil, fmt.Errorf("making the node's folder: %w", err)
	}
	return n, nil
}

// networks is the number of subnets for nodes: the /24 subnets of the range that is reserved for network benchmarks.
const networks = 512

// reserveNetwork reserves a subnet that no other node on this machine has.
func (n *Node) reserveNetwork(ctx context.Context) (err error) {
	for range 100 {
		n.network = rand.IntN(networks)
		if n.networkEnd, err = cluster.Reserve(ctx, fmt.Sprintf("subnet/%d", n.network)); err == nil {
			return nil
		}
	}
	return fmt.Errorf("finding a subnet for a node: %w", err)
}

// Subnet returns the subnet of the node's pods.
func (n *Node) Subnet() string { return fmt.Sprintf("198.%d.%d.0/24", 18+n.network/256, n.network%256) }

func (n *Node) start(ctx context.Context) error {
	if err := cgroup.Make(n.cgroup()); err != nil {
		return err
	}
	for _, dir := range []string{"kubelet", "cni", "plugins"} {
		if err := os.Mkdir(filepath.Join(n.dir, dir), 0o755); err != nil { //nolint:gosec // As the kubelet's is.
			return fmt.Errorf("making the node's folder: %w", err)
		}
	}
	for name, content := range n.files() {
		if err := os.WriteFile(filepath.Join(n.dir, name), content, 0o600); err != nil {
			return fmt.Errorf("configuring the node: %w", err)
		}
	}
	bin, err := program(ctx, n.root, "init")
	if err != nil {
		return err
	}
	if n.init, n.life, err = startInit(bin, n.dir, n.cgroup()); err != nil {
		return err
	}
	if err := n.startContainerd(ctx); err != nil {
		return err
	}
	if err := n.StartKubelet(ctx); err != nil {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Namespace()}}
	if _, err := n.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making the namespace of the node's pods: %w", err)
	}
	return n.wait(ctx, "the node is ready", n.kubelet, func(ctx context.Context) error {
		if _, err := n.client.CoreV1().ServiceAccounts(n.Namespace()).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		node, err := n.client.CoreV1().Nodes().Get(ctx, n.config.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("it has the taint %s", node.Spec.Taints[0].Key)
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return errors.New(c.Message)
			}
		}
		return nil
	})
}

func (n *Node) startContainerd(ctx context.Context) error {
	if _, err := program(ctx, n.root, "runc"); err != nil {
		return err
	}
	if err := n.runContainerd(); err != nil {
		return err
	}
	pod, err := program(ctx, n.root, "pod")
	if err != nil {
		return err
	}
	return n.AddImage(ctx, Image, "/pod", map[string]string{"pod": pod})
}

func (n *Node) runContainerd() (err error) {
	n.containerd, err = n.Run(Program{Name: "containerd", Path: n.bin("containerd"), Args: []string{"--config=" + n.path("containerd.toml")}})
	return err
}

// RestartContainerd restarts containerd. The containers keep running. It returns when containerd answers.
func (n *Node) RestartContainerd(ctx context.Context) error {
	n.containerd.Stop(10 * time.Second)
	if err := n.runContainerd(); err != nil {
		return err
	}
	return n.wait(ctx, "containerd answers", n.containerd, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if out, err := exec.CommandContext(ctx, n.bin("ctr"), "--address="+n.path("containerd.sock"), "version").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// SignalKubelet sends a signal to the kubelet, such as one that stops it for a moment.
func (n *Node) SignalKubelet(s syscall.Signal) error { return n.kubelet.Signal(s) }

// StartKubelet starts the kubelet after StopKubelet. It returns when the kubelet is healthy.
func (n *Node) StartKubelet(ctx context.Context) error {
	var err error
	n.kubelet, err = n.Run(Program{
		Name: "kubelet", Path: n.bin("kubelet"),
		Args: []string{
			"--config=" + n.path("kubelet.yaml"), "--kubeconfig=" + n.kubeconfig, "--root-dir=" + n.path("kubelet"),
			"--cert-dir=" + n.path("kubelet-pki"), "--hostname-override=" + n.config.Name, "--node-labels=" + joined(n.config.Labels), "--v=2",
		},
	})
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/healthz", n.health)
	return n.wait(ctx, "the kubelet is healthy", n.kubelet, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s", url, res.Status)
		}
		return nil
	})
}

// StopKubelet stops the kubelet as systemd does. The containers keep running.
func (n *Node) StopKubelet() { n.kubelet.Stop(10 * time.Second) }

// RestartKubelet restarts the kubelet with its stored state. It returns when the kubelet is healthy.
func (n *Node) RestartKubelet(ctx context.Context) error {
	n.StopKubelet()
	return n.StartKubelet(ctx)
}

// wait calls ready until it succeeds, the process ends or the timeout expires.
func (n *Node) wait(ctx context.Context, what string, p *Process, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-p.Done():
			return fmt.Errorf("waiting until %s: its process ended (%w); see %s", what, errors.Join(errEnded, p.err), p.Log())
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w: %w; see %s", what, ctx.Err(), errors.Join(last), p.Log())
		case <-tick.C:
		}
		if last = ready(ctx); last == nil {
			return nil
		}
	}
}

var errEnded = errors.New("unexpectedly")

// Stop kills everything on the node and removes its folder and cgroups. It does not call the API server, which may already be gone. KARVE_KEEP_CLUSTER=1
// keeps the folder for its logs.
func (n *Node) Stop() error {
	if n.init != nil {
		_ = n.life.Close()
		// It kills all other processes before it ends. If it hangs, kill it: the kernel then kills the others.
		timer := time.AfterFunc(20*time.Second, func() { _ = n.init.Process.Kill() })
		_ = n.init.Wait()
		timer.Stop()
	}
	if n.networkEnd != nil {
		_ = n.networkEnd.Close() // The process releases it at the latest.
	}
	err := cgroup.Remove(n.cgroup()) // If the node failed before init started.
	if !n.keep {
		err = errors.Join(err, os.RemoveAll(n.dir))
	}
	if err != nil {
		return fmt.Errorf("stopping the node: %w", err)
	}
	return nil
}

// Leave removes the stopped node and its pods from the cluster.
func (n *Node) Leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	err := errors.Join(
		n.client.CoreV1().Nodes().Delete(ctx, n.Name(), now),
		n.client.CoreV1().Pods(n.Namespace()).DeleteCollection(ctx, now, metav1.ListOptions{}),
		n.client.CoreV1().Namespaces().Delete(ctx, n.Namespace(), now),
	)
	if err != nil {
		return fmt.Errorf("removing node %s from the cluster: %w", n.Name(), err)
	}
	return nil
}

// Name returns the name of the Node.
func (n *Node) Name() string { return n.config.Name }

// Namespace returns the namespace of the node's pods, which has the node's name.
func (n *Node) Namespace() string { return n.config.Name }

// Dir returns the folder of the node's logs.
func (n *Node) Dir() string { return n.dir }

// Log returns the path of the log of a program on the node, including containerd and kubelet.
func (n *Node) Log(program string) string { return n.path(program + ".log") }

// PodResourcesSocket returns the path of the kubelet's pod resources socket.
func (n *Node) PodResourcesSocket() string { return n.path("kubelet/pod-resources/kubelet.sock") }

// Client returns a client with administrator permissions.
func (n *Node) Client() kubernetes.Interface { return n.client }

// RESTConfig returns how to reach the API server as an administrator.
func (n *Node) RESTConfig() *rest.Config { return n.cluster.RESTConfig() }

func (n *Node) path(name string) string { return filepath.Join(n.dir, name) }

// bin returns the path of a binary from the builder. Without a name it returns their folder.
func (n *Node) bin(name string) string { return filepath.Join(n.root, "_output", "bin", name) }

// cgroup returns the name of the node's cgroup. It is that of the folder, which is unique.
func (n *Node) cgroup() string { return filepath.Base(n.dir) }
