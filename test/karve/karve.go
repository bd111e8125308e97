// Package karve installs and runs the controller on a local cluster as a chart would on EKS: under a service account that has the generated role and
// nothing else.
package karve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/operator"
	"karve.sh/karve/test/cluster"
)

const (
	// Namespace is where the controller runs.
	Namespace = "karve-system"
	// Component is the controller's name on the cluster, for StopComponent, KillComponent, StartComponent and Log.
	Component cluster.Component = "karve"

	serviceAccount = "karve"
	user           = "system:serviceaccount:" + Namespace + ":" + serviceAccount
)

// Options are how the controller runs. Zero durations keep the controller's defaults.
type Options struct {
	// InstanceTypes is the catalogue; that of the local cluster when empty.
	InstanceTypes                                string
	LaunchTimeout, ReplicasTimeout, BreakerRetry time.Duration
	Settle                                       time.Duration
	BatchIdle, BatchMax                          time.Duration
	// Replica is for a second controller beside the first: its name on the cluster ends with it.
	Replica string
	// Alone says that no other controller will run, so that after a crash nobody waits for a lease to end.
	Alone bool
}

// Controller is a controller that runs on a cluster.
type Controller struct {
	// Name is its component name.
	Name cluster.Component
	// MetricsURL is where its metrics are.
	MetricsURL string
	// HealthURL and ReadyURL are where its probes are.
	HealthURL, ReadyURL string

	path, probes string
}

// Scheme knows all kinds that the controller reads and writes. It is made once: a scheme may not be changed while it is read.
var Scheme = sync.OnceValues(operator.Scheme)

// Client is a client with the administrator's rights that knows Karve's and Karpenter's kinds.
func Client(c *cluster.Cluster) (client.Client, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	return client.New(c.RESTConfig(), client.Options{Scheme: scheme})
}

// building lets one build at a time write the binary.
var building sync.Mutex

// Build builds the controller and returns its path.
func Build(ctx context.Context) (string, error) {
	building.Lock()
	defer building.Unlock()
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "_output", "bin", "karve-controller")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "./cmd/controller") //nolint:gosec // The path is our own.
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the controller: %w\n%s", err, out)
	}
	return path, nil
}

// Start builds the controller, installs its role, and runs it until the cluster stops.
func Start(ctx context.Context, c *cluster.Cluster, o Options) (*Controller, error) {
	path, err := ownBinary(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := install(ctx, c); err != nil {
		return nil, err
	}
	kubeconfig, err := c.KubeconfigFor(user)
	if err != nil {
		return nil, err
	}
	metrics, err := address(ctx, c)
	if err != nil {
		return nil, err
	}
	probes, err := address(ctx, c)
	if err != nil {
		return nil, err
	}
	if o.InstanceTypes == "" {
		root, err := cluster.Root()
		if err != nil {
			return nil, err
		}
		o.InstanceTypes = filepath.Join(root, "test", "cluster", "instance-types.json")
	}
	name := Component + cluster.Component(o.Replica)
	err = c.StartProgram(ctx, cluster.Program{
		Name: name, Path: path, ReadyURL: "http://" + probes + "/readyz",
		Args: append([]string{
			"--kubeconfig=" + kubeconfig, "--instance-types-file=" + o.InstanceTypes, "--leader-election-namespace=" + Namespace,
			"--metrics-bind-address=" + metrics, probesFlag + probes, "--log-level=debug",
		}, o.flags()...),
	})
	if err != nil {
		return nil, err
	}
	return &Controller{
		Name: name, MetricsURL: "http://" + metrics + "/metrics", HealthURL: "http://" + probes + "/healthz", ReadyURL: "http://" + probes + "/readyz",
		path: path, probes: probes,
	}, nil
}

const probesFlag = "--health-probe-bind-address="

// ownBinary is a controller of the cluster's own: one that is killed and started again must come back as what it was, whatever was built meanwhile.
func ownBinary(ctx context.Context, c *cluster.Cluster) (string, error) {
	own := filepath.Join(c.Dir(), "karve-controller")
	if _, err := os.Stat(own); err == nil {
		return own, nil
	}
	built, err := Build(ctx)
	if err != nil {
		return "", err
	}
	return own, copyFile(own, built)
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copying the controller: %w", err)
	}
	defer in.Close()                                                      //nolint:errcheck // It was only read.
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700) //nolint:gosec // It is run.
	if err != nil {
		return fmt.Errorf("copying the controller: %w", err)
	}
	if _, err = io.Copy(out, in); err != nil {
		err = fmt.Errorf("copying the controller: %w", err)
	}
	return errors.Join(err, out.Close())
}

// PID is the process of a controller that runs, for signals that StopComponent and KillComponent do not send.
func (k *Controller) PID() (int, error) {
	executables, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return 0, err
	}
	for _, link := range executables {
		if path, err := os.Readlink(link); err != nil || path != k.path {
			continue
		}
		process := filepath.Dir(link)
		arguments, err := os.ReadFile(filepath.Join(process, "cmdline"))
		if err == nil && bytes.Contains(arguments, []byte(probesFlag+k.probes+"\x00")) {
			return strconv.Atoi(filepath.Base(process))
		}
	}
	return 0, fmt.Errorf("the controller %s does not run", k.Name)
}

func (o *Options) flags() []string {
	var flags []string
	for name, d := range map[string]time.Duration{
		"launch-timeout": o.LaunchTimeout, "replicas-timeout": o.ReplicasTimeout, "breaker-retry": o.BreakerRetry,
		"settle-duration": o.Settle, "batch-idle-duration": o.BatchIdle, "batch-max-duration": o.BatchMax,
	} {
		if d > 0 {
			flags = append(flags, fmt.Sprintf("--%s=%s", name, d))
		}
	}
	if o.Alone {
		flags = append(flags, "--leader-elect=false")
	}
	return flags
}

func address(ctx context.Context, c *cluster.Cluster) (string, error) {
	port, err := c.FreePort(ctx)
	if err != nil {
		return "", err
	}
	return "127.0.0.1:" + strconv.Itoa(port), nil
}

// install makes the namespace and binds the generated roles to the controller's service account.
func install(ctx context.Context, c *cluster.Cluster) error {
	k, err := Client(c)
	if err != nil {
		return err
	}
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	role, err := os.ReadFile(filepath.Join(root, "config", "rbac", "role.yaml"))
	if err != nil {
		return fmt.Errorf("reading the generated role: %w", err)
	}
	subject := rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: serviceAccount}, Subjects: []rbacv1.Subject{subject},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: serviceAccount},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: serviceAccount, Namespace: Namespace}, Subjects: []rbacv1.Subject{subject},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: serviceAccount},
		},
	}
	if err := create(ctx, k, objects[0]); err != nil {
		return err
	}
	if err := Apply(ctx, k, role); err != nil {
		return err
	}
	for _, o := range objects[1:] {
		if err := create(ctx, k, o); err != nil {
			return err
		}
	}
	return nil
}

func create(ctx context.Context, k client.Client, o client.Object) error {
	if err := k.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
	}
	return nil
}

// Apply creates every object of a YAML file, those that exist already aside.
func Apply(ctx context.Context, k client.Client, manifests []byte) error {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(o)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading a manifest: %w", err)
		}
		if len(o.Object) == 0 {
			continue
		}
		if err := create(ctx, k, o); err != nil {
			return err
		}
	}
}
