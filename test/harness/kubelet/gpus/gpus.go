// Package gpus adds GPUs to a node of package kubelet with a mock NVML library, and runs a device plugin for them: Karve's agent or NVIDIA's plugin.
package gpus

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
	"karve.sh/karve/test/harness/kubelet"
)

// Resource is the default resource name of both plugins.
const Resource = "nvidia.com/gpu"

// Plugin is a device plugin for NVIDIA's GPUs.
type Plugin struct {
	Name string
	Path string
	Args []string
	// Hangup is set if the plugin reloads its configuration only on SIGHUP.
	Hangup bool
}

// Karve builds Karve's agent.
func Karve(ctx context.Context) (Plugin, error) {
	root, err := cluster.Root()
	if err != nil {
		return Plugin{}, err
	}
	if err := builder.Alone(root, func() error {
		cmd := exec.CommandContext(ctx, filepath.Join(root, "tools", "build"), "node")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "TRIMPATH=no")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building karve-node: %w\n%s", err, out)
		}
		return nil
	}); err != nil {
		return Plugin{}, err
	}
	// A state directory would outlive the machine, and GPUs that failed in one test would be out of service in the next.
	args := []string{"--metrics-address=127.0.0.1:0", "--state-dir=none"}
	return Plugin{Name: "karve-node", Path: filepath.Join(root, "_output", "bin", "karve-node"), Args: args}, nil
}

// NVIDIA returns NVIDIA's device plugin, which is built with the node's other binaries. It reloads its configuration on SIGHUP, which on a real cluster
// its config-manager sends.
func NVIDIA(context.Context) (Plugin, error) {
	root, err := cluster.Root()
	return Plugin{Name: "nvidia-device-plugin", Path: filepath.Join(root, "_output", "bin", "nvidia-device-plugin"), Hangup: true}, err
}

// Machine is a node with GPUs.
type Machine struct {
	Node    *kubelet.Node
	library string

	mu    sync.Mutex
	state nvmltest.State
	// account are the variables with which programs find the API server.
	account []string
}

// New adds GPUs to a node, with a configuration that does not share them.
func New(ctx context.Context, n *kubelet.Node, state nvmltest.State) (*Machine, error) {
	root, err := cluster.Root()
	if err != nil {
		return nil, err
	}
	library, err := nvmltest.BuildIn(ctx, filepath.Join(root, "_output", "lib"))
	if err != nil {
		return nil, err
	}
	m := &Machine{Node: n, library: filepath.Dir(library), state: state}
	if err := m.Change(func(*nvmltest.State) {}); err != nil {
		return nil, err
	}
	// Usually the plugin itself runs in a pod, so the kubelet knows at least one pod except while it starts.
	pod := n.Pod("plugin", "", 0)
	pod.Spec.NodeName = n.Name()
	if _, err := n.Client().CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("making the plugin's pod: %w", err)
	}
	return m, replace(m.ConfigFile(), []byte("version: v1\n"))
}

// Change changes the GPUs, even while they are in use.
func (m *Machine) Change(change func(*nvmltest.State)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.state)
	return replace(m.stateFile(), []byte(m.state.String()))
}

// ConfigFile returns the path of the plugins' configuration.
func (m *Machine) ConfigFile() string { return filepath.Join(m.Node.Dir(), "config.yaml") }

// Share writes a configuration with the given number of replicas per GPU. Call Reload to tell a running plugin.
func (m *Machine) Share(replicas int) error {
	config := fmt.Sprintf("version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: %s\n      replicas: %d\n", Resource, replicas)
	return replace(m.ConfigFile(), []byte(config))
}

// ShareWithMPS writes a configuration with the given number of replicas per GPU, shared with MPS.
func (m *Machine) ShareWithMPS(replicas int) error {
	config := fmt.Sprintf("version: v1\nsharing:\n  mps:\n    resources:\n    - name: %s\n      replicas: %d\n", Resource, replicas)
	return replace(m.ConfigFile(), []byte(config))
}

// Start starts a plugin on the node.
func (m *Machine) Start(p Plugin) (*kubelet.Process, error) {
	return m.Node.Run(kubelet.Program{Name: p.Name, Path: p.Path, Args: p.Args, Env: append(m.environment(), "CONFIG_FILE="+m.ConfigFile())})
}

// StartUnconfigured starts Karve's agent without a configuration, so that it does what its Node says. It needs InCluster.
func (m *Machine) StartUnconfigured(p Plugin) (*kubelet.Process, error) {
	return m.Node.Run(kubelet.Program{Name: p.Name, Path: p.Path, Args: p.Args, Env: m.environment()})
}

func (m *Machine) environment() []string {
	return append([]string{"LD_LIBRARY_PATH=" + m.library, nvmltest.Env + "=" + m.stateFile(), "MPS_DIR=" + m.MPSDir()}, m.account...)
}

// AddImage adds an image of a plugin to the node, with what the dynamic loader needs. Containers find the GPUs with Environment, and their state in the node's folder.
func (m *Machine) AddImage(ctx context.Context, name string, p Plugin) error {
	files := map[string]string{"plugin": p.Path}
	out, err := exec.CommandContext(ctx, "ldd", p.Path).Output()
	if err != nil {
		return fmt.Errorf("finding the libraries of %s: %w", p.Name, err)
	}
	for word := range strings.FieldsSeq(string(out)) {
		if filepath.IsAbs(word) {
			files[strings.TrimPrefix(word, "/")] = word
		}
	}
	libraries, err := filepath.Glob(filepath.Join(m.library, "*.so*"))
	if err != nil || len(libraries) == 0 {
		return fmt.Errorf("%s has no library: %w", m.library, err)
	}
	for _, library := range libraries {
		files[strings.TrimPrefix(library, "/")] = library
	}
	return m.Node.AddImage(ctx, name, "/plugin", files)
}

// Environment returns the variables with which a plugin in a container finds the GPUs.
func (m *Machine) Environment() map[string]string {
	return map[string]string{"LD_LIBRARY_PATH": m.library, nvmltest.Env: m.stateFile()}
}

func (m *Machine) stateFile() string { return filepath.Join(m.Node.Dir(), "gpus") }

// MPSDir returns the directory that the agent, the MPS daemons and containers share.
func (m *Machine) MPSDir() string { return filepath.Join(m.Node.Dir(), "mps") }

// ComputeMode returns the compute mode of a GPU, with NVML's numbers.
func (m *Machine) ComputeMode(index int) string {
	content, err := os.ReadFile(nvmltest.ModeFile(m.stateFile(), index))
	if err != nil {
		return "0"
	}
	return strings.TrimSpace(string(content))
}

// StartMPS starts the program that runs MPS daemons, which are fake ones.
func (m *Machine) StartMPS(ctx context.Context, p Plugin) (*kubelet.Process, error) {
	root, err := cluster.Root()
	if err != nil {
		return nil, err
	}
	control, err := kubelet.MPSControl(ctx, root)
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(m.Node.Dir(), "driver")
	if err := os.MkdirAll(bin, 0o750); err != nil {
		return nil, fmt.Errorf("installing the fake MPS daemon: %w", err)
	}
	if err := os.Symlink(control, filepath.Join(bin, "nvidia-cuda-mps-control")); err != nil && !os.IsExist(err) {
		return nil, fmt.Errorf("installing the fake MPS daemon: %w", err)
	}
	return m.Node.Run(kubelet.Program{Name: "mps-daemon", Path: p.Path, Args: []string{"mps-daemon"}, Env: append(m.environment(), "MPS_SHM_MIB=64", "PATH="+bin+":"+os.Getenv("PATH"))})
}

// InCluster lets programs that start later talk to the API server, as in a pod whose service account may do everything.
func (m *Machine) InCluster(ctx context.Context) error {
	const name = "karve-node"
	clients, config := m.Node.Client(), m.Node.RESTConfig()
	if _, err := clients.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making a service account: %w", err)
	}
	if _, err := clients.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: name}},
	}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making a service account: %w", err)
	}
	token, err := clients.CoreV1().ServiceAccounts(metav1.NamespaceDefault).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making a token: %w", err)
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return fmt.Errorf("reading the address of the API server: %w", err)
	}
	dir := filepath.Join(m.Node.Dir(), "service-account")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("writing the service account: %w", err)
	}
	for file, content := range map[string][]byte{"token": []byte(token.Status.Token), "ca.crt": config.CAData} {
		if err := replace(filepath.Join(dir, file), content); err != nil {
			return err
		}
	}
	m.account = []string{
		"KUBERNETES_SERVICE_HOST=" + server.Hostname(), "KUBERNETES_SERVICE_PORT=" + server.Port(), "SERVICE_ACCOUNT_DIR=" + dir, "NODE_NAME=" + m.Node.Name(),
	}
	return nil
}

// StartMIG starts the program that divides the GPUs. It needs InCluster.
func (m *Machine) StartMIG(p Plugin) (*kubelet.Process, error) {
	return m.Node.Run(kubelet.Program{
		Name: "mig-apply", Path: p.Path, Env: m.environment(),
		Args: []string{
			"mig-apply", "--state-dir=" + filepath.Join(m.Node.Dir(), "state"), "--cdi-spec-dirs=" + filepath.Join(m.Node.Dir(), "cdi"),
			"--nvidia-caps-dir=" + filepath.Join(m.Node.Dir(), "nvidia-caps"), "--systemd-socket=none",
		},
	})
}

// Instances returns the MIG instances of a GPU, as the file of the fake driver.
func (m *Machine) Instances(index int) string {
	content, err := os.ReadFile(nvmltest.MIGFile(m.stateFile(), index))
	if err != nil {
		return ""
	}
	return string(content)
}

// Reload tells a plugin to reload its configuration, if it does not do so by itself.
func (p Plugin) Reload(process *kubelet.Process) error {
	if !p.Hangup {
		return nil
	}
	return process.Signal(syscall.SIGHUP)
}

// Stop stops a plugin as the kubelet stops a container, with a shorter grace period.
func (p Plugin) Stop(process *kubelet.Process) { process.Stop(5 * time.Second) }

// replace replaces a file atomically, because a plugin may be reading it.
func replace(path string, content []byte) error {
	next := path + ".next"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(path), err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(path), err)
	}
	return nil
}
