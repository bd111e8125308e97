// Package karve installs and runs the controller on a local cluster as its chart does on EKS: with the arguments and environment of the chart's
// Deployment, and with the permissions of its service account only.
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
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
)

const (
	// Namespace is the controller's namespace. It enforces the pod security standard restricted.
	Namespace = "karve-system"
	// Agents is the namespace of the agents.
	Agents = "karve-node"
	// Checks is the namespace of the pods that check GPUs.
	Checks = "karve-checks"
	// Component is the name of the chart's release, and the controller's component name for StopComponent, KillComponent, StartComponent and Log.
	Component cluster.Component = "karve"
)

// Options configure the controller. Zero durations keep its defaults.
type Options struct {
	LaunchTimeout, ReplicasTimeout   time.Duration
	NotReadyTimeout, GPUFaultTimeout time.Duration
	Settle                           time.Duration
	BatchIdle, BatchMax              time.Duration
	// Values are further values of the chart, as for --set. All features are enabled unless Values disable them.
	Values []string
	// Replica is the suffix of the component name of a second controller that runs beside the first.
	Replica string
	// DRA enables backend DRA, with the DeviceClass of the agents' chart.
	DRA bool
	// KubeVersion is the version of Kubernetes for which the chart is rendered. If it is empty, that is Helm's default.
	KubeVersion string
	// InstanceTypesFile is the file with the machines of node classes that are not AWS's.
	InstanceTypesFile string
	// APIServer is the URL at which the controller reaches the API server. If it is empty, that is the cluster's own.
	APIServer string
	// Alone disables leader election. A controller that crashed then need not wait for a lease to expire.
	Alone bool
	// Release is the folder of an earlier release, as tools/old-release makes it. If it is empty, the controller and its chart are those of the repository.
	Release string
}

// Controller is a controller on a cluster.
type Controller struct {
	// Name is its component name.
	Name cluster.Component
	// User is its user name at the API server.
	User string
	// MetricsURL is the URL of its metrics.
	MetricsURL string
	// HealthURL and ReadyURL are the URLs of its probes.
	HealthURL, ReadyURL string
	// WebhookPort is the port of its webhook, or 0 if the chart does not enable it.
	WebhookPort int

	path, probes string
}

// Scheme returns the scheme with all kinds that the controller reads and writes. It is created once, because a scheme must not change while it is read.
var Scheme = sync.OnceValues(gather.Scheme)

// Client returns a client with administrator permissions that knows Karve's and Karpenter's kinds.
func Client(c *cluster.Cluster) (client.Client, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	return client.New(c.RESTConfig(), client.Options{Scheme: scheme})
}

// Build builds the controller and returns its path.
func Build(ctx context.Context) (string, error) {
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "_output", "bin", "karve-controller")
	return path, builder.Alone(root, func() error {
		cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", path, "./cmd/controller")
		cmd.Dir, cmd.Env = root, builder.Environment()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building the controller: %w\n%s", err, out)
		}
		return nil
	})
}

// Start builds the controller and installs its chart. Instead of the chart's pods it runs one process until the cluster stops.
func Start(ctx context.Context, c *cluster.Cluster, o Options) (*Controller, error) {
	path, err := o.binary(ctx, c)
	if err != nil {
		return nil, err
	}
	pod, err := install(ctx, c, o)
	if err != nil {
		return nil, err
	}
	user := "system:serviceaccount:" + Namespace + ":" + pod.ServiceAccountName
	kubeconfig, err := c.KubeconfigFor(user)
	if err != nil {
		return nil, err
	}
	if o.APIServer != "" {
		if err := redirect(kubeconfig, o.APIServer); err != nil {
			return nil, err
		}
	}
	env, err := environment(c, pod.Containers[0])
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
	args, webhook, err := withOwnPort(ctx, c, pod.Containers[0].Args)
	if err != nil {
		return nil, err
	}
	name := Component + cluster.Component(o.Replica)
	err = c.StartProgram(ctx, cluster.Program{
		Name: name, Path: path, ReadyURL: "http://" + probes + "/readyz",
		Env: env,
		// If a flag is repeated the last one counts. The addresses are those of this machine.
		Args: append(args, append([]string{
			"--kubeconfig=" + kubeconfig, "--metrics-bind-address=" + metrics, probesFlag + probes,
		}, o.flags()...)...),
	})
	if err != nil {
		return nil, err
	}
	return &Controller{
		Name: name, User: user, MetricsURL: scheme(pod) + metrics + "/metrics", HealthURL: "http://" + probes + "/healthz", ReadyURL: "http://" + probes + "/readyz",
		WebhookPort: webhook, path: path, probes: probes,
	}, nil
}

// withOwnPort returns the arguments of the chart with another port of the webhook, because replicas share this machine, and the port.
func withOwnPort(ctx context.Context, c *cluster.Cluster, args []string) ([]string, int, error) {
	own := slices.Clone(args)
	at := slices.IndexFunc(own, func(arg string) bool { return strings.HasPrefix(arg, "--memory-aliases=") })
	if at < 0 {
		return own, 0, nil
	}
	port, err := c.FreePort(ctx)
	own[at] = strings.Replace(own[at], "port=9443", "port="+strconv.Itoa(port), 1)
	return own, port, err
}

// redirect sets the URL of the API server in a kubeconfig.
func redirect(kubeconfig, url string) error {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return fmt.Errorf("reading a kubeconfig: %w", err)
	}
	for _, c := range config.Clusters {
		c.Server = url
	}
	return clientcmd.WriteToFile(*config, kubeconfig)
}

// scheme returns the scheme of the URL of the container's metrics.
func scheme(pod *corev1.PodSpec) string {
	if slices.Contains(pod.Containers[0].Args, "--metrics-secure=true") {
		return "https://"
	}
	return "http://"
}

const probesFlag = "--health-probe-bind-address="

func (o *Options) binary(ctx context.Context, c *cluster.Cluster) (string, error) {
	if o.Release != "" {
		return filepath.Join(o.Release, "karve-controller"), nil
	}
	return ownBinary(ctx, c)
}

// ownBinary returns the path of the cluster's own copy of the controller. A controller that is restarted must run the same binary, whatever was built
// meanwhile.
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

// PID returns the process ID of a running controller, for signals that StopComponent and KillComponent do not send.
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

// values returns the options that set the chart's values.
func (o *Options) values() []string {
	values := []string{"--set=controller.image.repository=registry.example.com/karve/controller,logLevel=debug,node.enabled=false,imageRollouts.enabled=true"}
	for name, d := range map[string]time.Duration{
		"launchTimeout": o.LaunchTimeout, "replicasTimeout": o.ReplicasTimeout, "notReadyTimeout": o.NotReadyTimeout, "gpuFaultTimeout": o.GPUFaultTimeout,
		"settleDuration": o.Settle, "batchIdleDuration": o.BatchIdle, "batchMaxDuration": o.BatchMax,
	} {
		if d > 0 {
			values = append(values, fmt.Sprintf("--set=settings.%s=%s", name, d))
		}
	}
	if o.Release != "" {
		values = append(values, "--set=settings.clusterName=karve") // The first release requires it.
	}
	if o.DRA {
		values = append(values, "--set=node.dra.enabled=true")
	}
	if o.KubeVersion != "" {
		values = append(values, "--kube-version="+o.KubeVersion)
	}
	for _, v := range o.Values {
		values = append(values, "--set="+v)
	}
	return values
}

// flags returns the flags that the chart has no values for.
func (o *Options) flags() []string {
	var flags []string
	if o.Alone {
		flags = append(flags, "--leader-elect=false")
	}
	if o.InstanceTypesFile != "" {
		flags = append(flags, "--instance-types-file="+o.InstanceTypesFile)
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

// install creates the chart's objects except the Deployment, and returns the Deployment's pod spec.
func install(ctx context.Context, c *cluster.Cluster, o Options) (*corev1.PodSpec, error) {
	k, err := Client(c)
	if err != nil {
		return nil, err
	}
	charts := chart.Chart{Name: "karve", Release: string(Component), Namespace: Namespace}
	if o.Release != "" {
		charts.Name = filepath.Join(o.Release, "charts", "karve")
	}
	objects, err := charts.Template(ctx, o.values()...)
	if err != nil {
		return nil, err
	}
	if o.DRA { // Simulated agents need none of the other objects of their chart.
		all, err := charts.Template(ctx, append(o.values(), "--set=node.enabled=true,node.image.repository=registry.example.com/karve/node")...)
		if err != nil {
			return nil, err
		}
		objects = append(objects, all.Kind("DeviceClass")...)
	}
	if err := create(ctx, k, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: Namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}); err != nil {
		return nil, err
	}
	var deployment appsv1.Deployment
	if err := objects.Into("Deployment", &deployment); err != nil {
		return nil, err
	}
	for _, object := range objects {
		if object.GetKind() == "Deployment" {
			continue
		}
		if err := k.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("helm"), client.ForceOwnership); err != nil {
			return nil, fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return &deployment.Spec.Template.Spec, nil
}

// environment returns the container's environment and the variables that EKS sets for the role of its service account. Here they are those of the local
// AWS, if the cluster has one. It restricts the controller to the policy in examples/iam.
func environment(c *cluster.Cluster, container corev1.Container) ([]string, error) {
	env := []string{"AWS_EC2_METADATA_DISABLED=true"}
	if region := c.AWS(); region != nil {
		root, err := cluster.Root()
		if err != nil {
			return nil, err
		}
		policy, err := os.ReadFile(filepath.Join(root, "examples", "iam", "policy.json"))
		if err != nil {
			return nil, fmt.Errorf("reading the IAM policy that Karve ships: %w", err)
		}
		if env, err = region.EnvAs("karve", policy); err != nil {
			return nil, err
		}
	}
	for _, v := range container.Env {
		value := v.Value
		if v.ValueFrom != nil {
			if v.ValueFrom.ResourceFieldRef == nil || v.ValueFrom.ResourceFieldRef.Resource != "limits.memory" {
				return nil, fmt.Errorf("the chart's variable %s is %v, which only a kubelet knows", v.Name, v.ValueFrom)
			}
			value = strconv.FormatInt(container.Resources.Limits.Memory().Value(), 10)
		}
		env = append(env, v.Name+"="+value)
	}
	return env, nil
}

func create(ctx context.Context, k client.Client, o client.Object) error {
	if err := k.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
	}
	return nil
}
