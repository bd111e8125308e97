package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster/machines"
)

const (
	loopback = "127.0.0.1"

	// readyTimeout applies to one component on a machine that also compiles. On an idle machine a component takes seconds.
	readyTimeout = 2 * time.Minute
	stopGrace    = 10 * time.Second
)

// Component is a part of the cluster. Its log is <folder>/<name>.log.
type Component string

// The components.
const (
	Etcd              Component = "etcd"
	APIServer         Component = "kube-apiserver"
	Scheduler         Component = "kube-scheduler"
	ControllerManager Component = "kube-controller-manager"
	AWS               Component = "aws"       // the local AWS; see package aws
	Karpenter         Component = "karpenter" // Karpenter's AWS controller; needs AWS
	Machines          Component = "machines"  // creates Nodes for AWS instances; see package machines; needs AWS
	KWOK              Component = "kwok"      // keeps nodes ready and runs pods
	Simulator         Component = "simulator" // plays the GPU device plugin; see package simulator
)

// Everything returns all optional components.
func Everything() []Component {
	return []Component{Scheduler, ControllerManager, AWS, Karpenter, Machines, KWOK, Simulator}
}

// Config configures a cluster. The zero value is an API server with the CRDs installed.
type Config struct {
	// Dir is the folder for the cluster's keys, data and logs. When empty, Start creates a temporary folder, which Stop removes.
	Dir string
	// Components are started in addition to etcd and kube-apiserver.
	Components []Component
	// FeatureGates are Karpenter's feature gates, such as "NodeOverlay=true". Other gates keep Karpenter's default.
	FeatureGates string
	// KubernetesGates are feature gates of the API server, the scheduler and the controller manager, and APIs are the versions of APIs that the API server serves in addition to its
	// default, such as "scheduling.k8s.io/v1beta1=true".
	KubernetesGates, APIs string
	// SchedulerQPS is how many requests per second the scheduler may send. When 0, it is 500.
	SchedulerQPS int
	// KarpenterEnv adds variables to Karpenter's environment, such as "BATCH_IDLE_DURATION=200ms".
	KarpenterEnv []string
	// AWS configures the local AWS. The cluster sets its address and the cluster endpoint.
	AWS aws.Config
	// NodeDelay is the time from a running machine to the registration of its node; machines.DefaultDelay when 0.
	NodeDelay time.Duration
	// CRDs are files and folders of CRDs to install in addition to those of Karpenter and Karve.
	CRDs []string
	// OnExit is called when a component ends unexpectedly.
	OnExit func(Component, error)
}

// Cluster is a running cluster.
type Cluster struct {
	config    Config
	root      string
	dir       string
	temporary bool
	authority *authority
	pki       pkiFiles
	url       string
	etcdURL   string
	admin     *rest.Config
	parts     []*part
	ports     []int
	aws       *aws.Server
	machines  *machines.Fleet
	gates     string

	mu sync.Mutex // guards parts[].current, aws, machines and gates
}

// Start starts a cluster and returns when all of it is ready. The caller must call Stop. If the process dies first, the cluster dies with it. On an
// error nothing keeps running, and the folder with the logs stays.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	c, err := prepare(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		c.stopAll()
		return nil, err
	}
	return c, nil
}

func prepare(ctx context.Context, config Config) (*Cluster, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	c := &Cluster{config: config, root: root, dir: config.Dir, gates: config.FeatureGates}
	if c.dir == "" {
		c.temporary = true
		if c.dir, err = os.MkdirTemp("", "karve-cluster-"); err != nil {
			return nil, fmt.Errorf("making the cluster's folder: %w", err)
		}
	}
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return nil, fmt.Errorf("making the cluster's folder: %w", err)
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the cluster's folder: %w", err)
	}
	if c.authority, err = newAuthority(); err != nil {
		return nil, err
	}
	if c.pki, err = c.authority.write(c.dir); err != nil {
		return nil, err
	}
	if c.parts, err = c.layout(ctx); err != nil {
		return nil, err
	}
	if err := os.WriteFile(c.auditPolicy(), []byte(auditPolicy), 0o600); err != nil {
		return nil, fmt.Errorf("writing the audit policy: %w", err)
	}
	return c, c.writeAdmin()
}

// start starts etcd and the API server one after the other, because each needs the previous one. It then starts the rest in parallel.
func (c *Cluster) start(ctx context.Context) error {
	for _, name := range []Component{Etcd, APIServer} {
		if err := c.StartComponent(ctx, name); err != nil {
			return err
		}
	}
	if err := c.installCRDs(ctx); err != nil {
		return err
	}
	rest := slices.Clone(c.config.Components)
	if slices.Contains(rest, AWS) {
		if err := c.StartComponent(ctx, AWS); err != nil {
			return err
		}
		rest = slices.DeleteFunc(rest, func(name Component) bool { return name == AWS })
	}
	errs := make([]error, len(rest))
	var wg sync.WaitGroup
	for i, name := range rest {
		wg.Go(func() { errs[i] = c.StartComponent(ctx, name) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Stop kills all components and removes the folder if Start created it. There is no state to save, so nothing is shut down in order.
// KARVE_KEEP_CLUSTER=1 keeps the folder for its logs.
func (c *Cluster) Stop() error {
	c.stopAll()
	if err := c.recordCalls(); err != nil {
		return err
	}
	if !c.temporary || os.Getenv("KARVE_KEEP_CLUSTER") == "1" {
		return nil
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("removing the cluster's folder: %w", err)
	}
	return nil
}

func (c *Cluster) stopAll() {
	for _, p := range slices.Backward(c.parts) {
		if r := c.take(p); r != nil {
			r.kill()
		}
	}
	// After a failure the folder stays for its logs. Remove the data: it is large, and nothing can start from it, because the next start creates new
	// keys.
	_ = os.RemoveAll(filepath.Join(c.dir, "etcd"))
	releasePorts(c.ports)
	c.ports = nil
}

// AWS returns the local AWS of the cluster, or nil without one.
func (c *Cluster) AWS() *aws.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.aws
}

// Machines returns the machines of the cluster, or nil without any.
func (c *Cluster) Machines() *machines.Fleet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machines
}

// SetFeatureGates sets the feature gates with which Karpenter starts the next time. They replace the earlier ones.
func (c *Cluster) SetFeatureGates(gates string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gates = gates
}

// EtcdURL returns the address at which etcd serves clients, for objects that the API server would take too long to write.
func (c *Cluster) EtcdURL() string { return c.etcdURL }

// Dir returns the folder of the cluster's logs.
func (c *Cluster) Dir() string { return c.dir }

// Log returns the path of a component's log.
func (c *Cluster) Log(name Component) string { return filepath.Join(c.dir, string(name)+".log") }

// Kubectl returns the path of a kubectl of the API server's version.
func (c *Cluster) Kubectl() string { return c.bin("kubectl") }

func (c *Cluster) bin(name string) string { return filepath.Join(c.root, binDir, name) }
