// Package operator sets up the controllers and runs them.
package operator

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/cloud/aws/instancetype"
	"karve.sh/karve/pkg/memoryalias/webhook"
	"karve.sh/karve/pkg/prices"
)

// Options are the settings of the controller.
type Options struct {
	InstanceTypesFile       string
	BatchIdle               time.Duration
	BatchMax                time.Duration
	ReadAhead               bool
	PriorityCutoff          *int32
	PlanBudget              time.Duration
	LaunchTimeout           time.Duration
	ReplicasTimeout         time.Duration
	NotReadyTimeout         time.Duration
	Prices                  []prices.Rule
	CostLabels              []string
	GPUFaultTimeout         time.Duration
	Settle                  time.Duration
	Nominations             bool
	CapacityBuffers         bool
	ProvisioningRequests    bool
	DRA                     bool
	ImageRollouts           bool
	GPUCheckImage           string
	GPUCheckNamespace       string
	MemoryAliases           webhook.Options
	MetricsAddress          string
	MetricsSecure           bool
	ProbeAddress            string
	LeaderElect             bool
	LeaderElectionNamespace string
	LogLevel                string

	// ofKarpenter are flags that take precedence over Karpenter's own.
	ofKarpenter map[string]string
}

// AddFlags binds the options to flags and sets their defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	standard := published.DefaultSettings()
	fs.StringVar(&o.InstanceTypesFile, "instance-types-file", "", "JSON file of instance types in the schema of Karpenter's kwok provider, used for node classes other than EC2NodeClass")
	o.ofKarpenter = map[string]string{}
	for name, meaning := range map[string]string{
		"vm-memory-overhead-percent": "fraction of a machine's memory that its operating system cannot use",
		"reserved-enis":              "number of network interfaces of a machine that pods cannot use",
		"isolated-vpc":               "do not call the Pricing API, which an isolated VPC cannot reach",
	} {
		fs.Func(name, meaning+" (default: as in Karpenter's Deployment)", func(value string) error {
			o.ofKarpenter[name] = value
			return new(instancetype.Options).Set(name, value)
		})
	}
	fs.Func("prices", "rules for the prices that you pay, as a list in JSON or YAML: name, requirements, and price or priceAdjustment as in a NodeOverlay, and upTo", func(text string) (err error) {
		o.Prices, err = prices.Parse([]byte(text))
		return err
	})
	fs.Func("cost-labels", "labels of pods by whose values the metrics divide costs, separated by commas, such as team,app.kubernetes.io/part-of", o.addCostLabels)
	fs.DurationVar(&o.BatchIdle, "batch-idle-duration", time.Second, "plan when no new pod has arrived for this long")
	fs.DurationVar(&o.BatchMax, "batch-max-duration", 10*time.Second, "plan no later than this long after the first new pod")
	fs.BoolVar(&o.ReadAhead, "read-ahead", true, "plan for the pods that the default scheduler has not tried yet together with those that it has; turn it off if a plugin of that scheduler holds pods back")
	fs.Func("priority-cutoff", "lowest priority of pods for which machines are launched, such as -10; those below it use free room only (default: launch for all)", o.setPriorityCutoff)
	fs.DurationVar(&o.PlanBudget, "plan-budget", 200*time.Millisecond, "longest time to search for a better plan; up to twenty times as long for pods with more than 60 different requests")
	fs.DurationVar(&o.LaunchTimeout, "launch-timeout", time.Minute, "delete a NodeClaim that the cloud has not launched after this long, because Karpenter waits for it")
	fs.DurationVar(&o.ReplicasTimeout, "replicas-timeout", standard.ReplicasTimeout.Duration, "treat a node as broken if it takes longer than this to join the cluster, then to expose its replicas, or then to be initialized; try one node of its NodePool again after as long, and replace a node whose replicas have been missing for this long")
	fs.DurationVar(&o.NotReadyTimeout, "not-ready-timeout", standard.NotReadyTimeout.Duration, "replace a node if it, its storage, network, kernel or container runtime has not been ready for this long")
	fs.DurationVar(&o.GPUFaultTimeout, "gpu-fault-timeout", standard.GPUFaultTimeout.Duration, "replace a node with GPUs that have been unhealthy for this long")
	fs.DurationVar(&o.Settle, "settle-duration", standard.SettleDuration.Duration, "delete an idle node this long after it was tainted, if it is still idle")
	fs.BoolVar(&o.Nominations, "nominations", true, "write the planned node of each waiting pod to status.nominatedNodeName; otherwise the scheduler chooses among all nodes that fit")
	fs.BoolVar(&o.CapacityBuffers, "capacity-buffers", true, "keep capacity free for CapacityBuffers if the API server has that resource")
	fs.BoolVar(&o.ProvisioningRequests, "provisioning-requests", true, "serve ProvisioningRequests of Karve's classes if the API server has that resource")
	fs.BoolVar(&o.DRA, "dra", false, "serve GPUNodeClasses with backend DRA or NVIDIADRA: read ResourceSlices, DeviceClasses, ResourceClaims and ResourceClaimTemplates")
	fs.BoolVar(&o.ImageRollouts, "image-rollouts", false, "reconcile GPUImageRollouts: create canary nodes and update EC2NodeClasses")
	fs.StringVar(&o.GPUCheckImage, "gpu-check-image", "", "default image of the pod that checks the GPUs of a canary node; it runs with the argument check, as karve-node does")
	fs.StringVar(&o.GPUCheckNamespace, "gpu-check-namespace", "karve-checks", "namespace of the pods that check the GPUs of canary nodes")
	fs.Var(&o.MemoryAliases, "memory-aliases", "serve the admission webhook that gives pods of gpushare and HAMi slots of device memory, for clusters without MutatingAdmissionPolicies: "+
		"gpuNodeClass=NAME,gpushareUnit=GiB|MiB,hamiGPUMemoryMiB=N,taintKey=KEY,port=N")
	fs.StringVar(&o.MetricsAddress, "metrics-bind-address", ":8080", "address that serves Prometheus metrics; 0 disables them")
	fs.BoolVar(&o.MetricsSecure, "metrics-secure", false,
		"serve metrics with TLS and a self-signed certificate, to clients that the API server authenticates and authorizes to get /metrics")
	fs.StringVar(&o.ProbeAddress, "health-probe-bind-address", ":8081", "address that serves /healthz and /readyz")
	fs.BoolVar(&o.LeaderElect, "leader-elect", true, "use leader election, so that only one replica of the controller is active")
	fs.StringVar(&o.LeaderElectionNamespace, "leader-election-namespace", "", "namespace of the leader election lease (default: the namespace of the pod)")
	fs.StringVar(&o.LogLevel, "log-level", "info", "info, or debug to also log the reasons for decisions")
}

func (o *Options) addCostLabels(text string) error {
	for key := range strings.SplitSeq(text, ",") {
		if wrong := content.IsLabelKey(key); len(wrong) > 0 {
			return fmt.Errorf("%q is no key of a label: %s", key, strings.Join(wrong, "; "))
		}
		if !slices.Contains(o.CostLabels, key) {
			o.CostLabels = append(o.CostLabels, key)
		}
	}
	return nil
}

func (o *Options) setPriorityCutoff(text string) error {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return fmt.Errorf("%q is no priority: state a whole number from -2147483648 to 2147483647", text)
	}
	o.PriorityCutoff = new(int32(n))
	return nil
}

// settings returns what the controller publishes of its settings.
func (o *Options) settings() published.Settings {
	of := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	return published.Settings{
		SettleDuration: of(o.Settle), ReplicasTimeout: of(o.ReplicasTimeout), NotReadyTimeout: of(o.NotReadyTimeout), GPUFaultTimeout: of(o.GPUFaultTimeout),
		PriorityCutoff: o.PriorityCutoff, Prices: o.Prices, Reads: published.Reads{DRA: o.DRA, CapacityBuffers: o.CapacityBuffers, ProvisioningRequests: o.ProvisioningRequests},
	}
}

// Validate returns all errors of the options, joined.
func (o *Options) Validate() error {
	var errs []error
	positive := func(name string, d time.Duration) {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("--%s must be greater than zero, not %s", name, d))
		}
	}
	positive("batch-idle-duration", o.BatchIdle)
	positive("batch-max-duration", o.BatchMax)
	positive("plan-budget", o.PlanBudget)
	positive("launch-timeout", o.LaunchTimeout)
	positive("replicas-timeout", o.ReplicasTimeout)
	positive("not-ready-timeout", o.NotReadyTimeout)
	positive("gpu-fault-timeout", o.GPUFaultTimeout)
	positive("settle-duration", o.Settle)
	if o.BatchMax < o.BatchIdle {
		errs = append(errs, fmt.Errorf("--batch-max-duration (%s) must not be less than --batch-idle-duration (%s)", o.BatchMax, o.BatchIdle))
	}
	if o.ImageRollouts && o.GPUCheckNamespace == "" {
		errs = append(errs, errors.New("--gpu-check-namespace must not be empty with --image-rollouts"))
	}
	if o.LogLevel != "info" && o.LogLevel != "debug" {
		errs = append(errs, fmt.Errorf("--log-level must be info or debug, not %q", o.LogLevel))
	}
	return errors.Join(errs...)
}
