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

	// readyTimeout is for one component on a machine that is also compiling; alone they take seconds.
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
	AWS               Component = "aws"       // the local AWS, see package aws
	Karpenter         Component = "karpenter" // its AWS controller; needs AWS
	Machines          Component = "machines"  // makes nodes of AWS's instances, see package machines; needs AWS
	KWOK              Component = "kwok"      // keeps nodes ready and runs pods
	Simulator         Component = "simulator" // plays the node agent, see package simulator
)

// Everything is all components that are not always there.
func Everything() []Component {
	return []Component{Scheduler, ControllerManager, AWS, Karpenter, Machines, KWOK, Simulator}
}

// Config says what to start. Its zero value is an API server with the CRDs installed.
type Config struct {
	// Dir is the folder of the cluster's keys, data and logs. When empty it is a temporary folder, which Stop removes.
	Dir string
	// Components are started beside etcd and kube-apiserver.
	Components []Component
	// FeatureGates are Karpenter's, for instance "NodeOverlay=true". What is not named keeps Karpenter's default.
	FeatureGates string
	// KarpenterEnv is more of Karpenter's environment, for instance "BATCH_IDLE_DURATION=200ms".
	KarpenterEnv []string
	// AWS is what the local AWS looks like. Its address and the cluster's endpoint are the cluster's to say.
	AWS aws.Config
	// NodeDelay is how long a machine takes from running to registering as a node; machines.DefaultDelay when 0.
	NodeDelay time.Duration
	// CRDs are files and folders of CRDs to install beside those of Karpenter and Karve.
	CRDs []string
	// OnExit is called when a component ends that was not asked to.
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
	admin     *rest.Config
	parts     []*part
	ports     []int
	aws       *aws.Server
	machines  *machines.Fleet
	gates     string

	mu sync.Mutex // guards running of the parts, aws, machines and gates
}

// Start starts a cluster and returns when all of it is ready. The caller must call Stop; should the process die before,
// the cluster dies with it. On an error nothing is left running, and the folder with the logs stays.
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

// start starts etcd and the API server one after the other, for each needs the one before, and the rest together.
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

// Stop ends all components at once and removes the folder if Start made it. There is nothing to save, so nothing is asked
// to end in order. KARVE_KEEP_CLUSTER=1 keeps the folder for a look at the logs.
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
	// What stays, after a failure, stays for its logs. The data is large, and nothing can start from it: the next start
	// makes new keys.
	_ = os.RemoveAll(filepath.Join(c.dir, "etcd"))
	releasePorts(c.ports)
	c.ports = nil
}

// AWS is the local AWS of a cluster that has it.
func (c *Cluster) AWS() *aws.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.aws
}

// Machines are the machines of a cluster that has them.
func (c *Cluster) Machines() *machines.Fleet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machines
}

// SetFeatureGates is for a Karpenter that was stopped: with these, and no others, it comes back.
func (c *Cluster) SetFeatureGates(gates string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gates = gates
}

// Dir is the folder of the cluster's logs.
func (c *Cluster) Dir() string { return c.dir }

// Log is the path of a component's log.
func (c *Cluster) Log(name Component) string { return filepath.Join(c.dir, string(name)+".log") }

// Kubectl is the path of a kubectl of the API server's version.
func (c *Cluster) Kubectl() string { return c.bin("kubectl") }

func (c *Cluster) bin(name string) string { return filepath.Join(c.root, binDir, name) }
