// Package operator wires the controllers and runs them.
package operator

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"
)

// Options are the settings of the controller.
type Options struct {
	InstanceTypesFile       string
	ClusterName             string
	VMMemoryOverheadPercent float64
	ReservedENIs            int
	IsolatedVPC             bool
	BatchIdle               time.Duration
	BatchMax                time.Duration
	PlanBudget              time.Duration
	LaunchTimeout           time.Duration
	MaxUnlaunched           int
	ReplicasTimeout         time.Duration
	NotReadyTimeout         time.Duration
	GPUFaultTimeout         time.Duration
	BreakerRetry            time.Duration
	Settle                  time.Duration
	Nominations             bool
	CapacityBuffers         bool
	ImageRollouts           bool
	GPUCheckImage           string
	GPUCheckNamespace       string
	ImageRefresh            time.Duration
	MetricsAddress          string
	MetricsSecure           bool
	ProbeAddress            string
	LeaderElect             bool
	LeaderElectionNamespace string
	LogLevel                string

	// environment is what is wrong with the variables that stand for flags.
	environment []error
}

// environment are the variables that set flags which are not given. They are Karpenter's, whose AWS provider has to be told the same.
var environment = map[string]string{
	"cluster-name":               "CLUSTER_NAME",
	"vm-memory-overhead-percent": "VM_MEMORY_OVERHEAD_PERCENT",
	"reserved-enis":              "RESERVED_ENIS",
	"isolated-vpc":               "ISOLATED_VPC",
}

// AddFlags binds the options to flags and sets their defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.InstanceTypesFile, "instance-types-file", "", "JSON file of instance types, in the schema of Karpenter's kwok provider, for node classes that are not EC2NodeClasses")
	fs.StringVar(&o.ClusterName, "cluster-name", "", "name of the EKS cluster, as Karpenter is told it (CLUSTER_NAME)")
	fs.Float64Var(&o.VMMemoryOverheadPercent, "vm-memory-overhead-percent", 0.075,
		"part of a machine's memory that its operating system never sees, as Karpenter is told it (VM_MEMORY_OVERHEAD_PERCENT)")
	fs.IntVar(&o.ReservedENIs, "reserved-enis", 0, "network interfaces of a machine that are not for pods, as Karpenter is told it (RESERVED_ENIS)")
	fs.BoolVar(&o.IsolatedVPC, "isolated-vpc", false, "the Pricing API cannot be reached, as Karpenter is told it (ISOLATED_VPC)")
	fs.DurationVar(&o.BatchIdle, "batch-idle-duration", time.Second, "plan once no new pod has come for this long")
	fs.DurationVar(&o.BatchMax, "batch-max-duration", 10*time.Second, "plan at the latest this long after the first new pod")
	fs.DurationVar(&o.PlanBudget, "plan-budget", 200*time.Millisecond, "look this long for a better plan, where the search does not end before")
	fs.DurationVar(&o.LaunchTimeout, "launch-timeout", time.Minute, "give a NodeClaim up that has no machine after this long; stock Karpenter waits for it meanwhile")
	fs.IntVar(&o.MaxUnlaunched, "max-unlaunched-claims", 10, "NodeClaims that may be without a machine at once")
	fs.DurationVar(&o.ReplicasTimeout, "replicas-timeout", 10*time.Minute, "take a registered node for broken that does not expose its replicas after this long, and replace one that has lost some for as long")
	fs.DurationVar(&o.NotReadyTimeout, "not-ready-timeout", 30*time.Minute, "replace a node that has not been ready for this long, or whose storage, network, kernel or container runtime has not")
	fs.DurationVar(&o.GPUFaultTimeout, "gpu-fault-timeout", 10*time.Minute, "replace a node with GPUs that have been out of service for this long")
	fs.DurationVar(&o.BreakerRetry, "breaker-retry", 10*time.Minute, "launch one node again this long after nodes of a pool were found broken")
	fs.DurationVar(&o.Settle, "settle-duration", 10*time.Second, "watch a tainted idle node for this long before it is given back")
	fs.BoolVar(&o.Nominations, "nominations", true, "nominate the nodes on which waiting pods are planned, in their status; otherwise the scheduler picks among the nodes that fit")
	fs.BoolVar(&o.CapacityBuffers, "capacity-buffers", true, "keep capacity free for CapacityBuffers, where the API server serves them")
	fs.BoolVar(&o.ImageRollouts, "image-rollouts", false, "act on GPUImageRollouts: create canary nodes and change EC2NodeClasses")
	fs.StringVar(&o.GPUCheckImage, "gpu-check-image", "", "container image that checks the GPU of a canary node with the argument check, as karve-node's does, where a GPUImageRollout names none")
	fs.StringVar(&o.GPUCheckNamespace, "gpu-check-namespace", "karve-checks", "namespace of the pods that check GPUs")
	fs.DurationVar(&o.ImageRefresh, "image-refresh-interval", 15*time.Minute, "ask AWS this often whether there is a newer GPU image")
	fs.StringVar(&o.MetricsAddress, "metrics-bind-address", ":8080", "where Prometheus metrics are served; 0 for nowhere")
	fs.BoolVar(&o.MetricsSecure, "metrics-secure", false,
		"serve metrics with TLS and a self-signed certificate, to clients that the API server authenticates and allows to get /metrics")
	fs.StringVar(&o.ProbeAddress, "health-probe-bind-address", ":8081", "where /healthz and /readyz are served")
	fs.BoolVar(&o.LeaderElect, "leader-elect", true, "let only one replica of the controller act")
	fs.StringVar(&o.LeaderElectionNamespace, "leader-election-namespace", "", "namespace of the leader election lease; the pod's own by default")
	fs.StringVar(&o.LogLevel, "log-level", "info", "info, or debug to see why decisions fall")
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		if value := os.Getenv(environment[name]); value != "" {
			if err := fs.Set(name, value); err != nil {
				o.environment = append(o.environment, fmt.Errorf("%s stands for --%s: %w", environment[name], name, err))
			}
		}
	}
}

// Validate tells all that is wrong with the options.
func (o *Options) Validate() error {
	var errs []error
	positive := func(name string, d time.Duration) {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("--%s must be above zero, not %s", name, d))
		}
	}
	errs = append(errs, o.environment...)
	if o.VMMemoryOverheadPercent < 0 || o.VMMemoryOverheadPercent >= 1 {
		errs = append(errs, fmt.Errorf("--vm-memory-overhead-percent must be a part of 1, as 0.075, not %v", o.VMMemoryOverheadPercent))
	}
	if o.ReservedENIs < 0 {
		errs = append(errs, fmt.Errorf("--reserved-enis must not be below 0, and is %d", o.ReservedENIs))
	}
	positive("batch-idle-duration", o.BatchIdle)
	positive("batch-max-duration", o.BatchMax)
	positive("plan-budget", o.PlanBudget)
	positive("launch-timeout", o.LaunchTimeout)
	positive("replicas-timeout", o.ReplicasTimeout)
	positive("not-ready-timeout", o.NotReadyTimeout)
	positive("gpu-fault-timeout", o.GPUFaultTimeout)
	positive("breaker-retry", o.BreakerRetry)
	positive("settle-duration", o.Settle)
	positive("image-refresh-interval", o.ImageRefresh)
	if o.BatchMax < o.BatchIdle {
		errs = append(errs, fmt.Errorf("--batch-max-duration (%s) must not be below --batch-idle-duration (%s)", o.BatchMax, o.BatchIdle))
	}
	if o.MaxUnlaunched < 1 {
		errs = append(errs, fmt.Errorf("--max-unlaunched-claims must be at least 1, not %d", o.MaxUnlaunched))
	}
	if o.ImageRollouts && o.GPUCheckNamespace == "" {
		errs = append(errs, errors.New("--gpu-check-namespace must not be empty with --image-rollouts"))
	}
	if o.LogLevel != "info" && o.LogLevel != "debug" {
		errs = append(errs, fmt.Errorf("--log-level must be info or debug, not %q", o.LogLevel))
	}
	return errors.Join(errs...)
}
