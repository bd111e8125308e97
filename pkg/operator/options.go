// Package operator wires the controllers and runs them.
package operator

import (
	"errors"
	"flag"
	"fmt"
	"time"
)

// Options are the settings of the controller.
type Options struct {
	InstanceTypesFile       string
	BatchIdle               time.Duration
	BatchMax                time.Duration
	PlanBudget              time.Duration
	LaunchTimeout           time.Duration
	MaxUnlaunched           int
	ReplicasTimeout         time.Duration
	BreakerRetry            time.Duration
	Settle                  time.Duration
	MetricsAddress          string
	ProbeAddress            string
	LeaderElect             bool
	LeaderElectionNamespace string
	LogLevel                string
}

// AddFlags binds the options to flags and sets their defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.InstanceTypesFile, "instance-types-file", "", "JSON file of instance types, in the schema of Karpenter's kwok provider (required)")
	fs.DurationVar(&o.BatchIdle, "batch-idle-duration", time.Second, "plan once no new pod has come for this long")
	fs.DurationVar(&o.BatchMax, "batch-max-duration", 10*time.Second, "plan at the latest this long after the first new pod")
	fs.DurationVar(&o.PlanBudget, "plan-budget", 200*time.Millisecond, "look this long for a better plan, where the search does not end before")
	fs.DurationVar(&o.LaunchTimeout, "launch-timeout", time.Minute, "give a NodeClaim up that has no machine after this long; stock Karpenter waits for it meanwhile")
	fs.IntVar(&o.MaxUnlaunched, "max-unlaunched-claims", 10, "NodeClaims that may be without a machine at once")
	fs.DurationVar(&o.ReplicasTimeout, "replicas-timeout", 10*time.Minute, "take a registered node for broken that does not expose its replicas after this long")
	fs.DurationVar(&o.BreakerRetry, "breaker-retry", 10*time.Minute, "launch one node again this long after nodes of a pool were found broken")
	fs.DurationVar(&o.Settle, "settle-duration", 10*time.Second, "watch a tainted idle node for this long before it is given back")
	fs.StringVar(&o.MetricsAddress, "metrics-bind-address", ":8080", "where Prometheus metrics are served; 0 for nowhere")
	fs.StringVar(&o.ProbeAddress, "health-probe-bind-address", ":8081", "where /healthz and /readyz are served")
	fs.BoolVar(&o.LeaderElect, "leader-elect", true, "let only one replica of the controller act")
	fs.StringVar(&o.LeaderElectionNamespace, "leader-election-namespace", "", "namespace of the leader election lease; the pod's own by default")
	fs.StringVar(&o.LogLevel, "log-level", "info", "info, or debug to see why decisions fall")
}

// Validate tells all that is wrong with the options.
func (o *Options) Validate() error {
	var errs []error
	positive := func(name string, d time.Duration) {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("--%s must be above zero, not %s", name, d))
		}
	}
	if o.InstanceTypesFile == "" {
		errs = append(errs, errors.New("--instance-types-file is required"))
	}
	positive("batch-idle-duration", o.BatchIdle)
	positive("batch-max-duration", o.BatchMax)
	positive("plan-budget", o.PlanBudget)
	positive("launch-timeout", o.LaunchTimeout)
	positive("replicas-timeout", o.ReplicasTimeout)
	positive("breaker-retry", o.BreakerRetry)
	positive("settle-duration", o.Settle)
	if o.BatchMax < o.BatchIdle {
		errs = append(errs, fmt.Errorf("--batch-max-duration (%s) must not be below --batch-idle-duration (%s)", o.BatchMax, o.BatchIdle))
	}
	if o.MaxUnlaunched < 1 {
		errs = append(errs, fmt.Errorf("--max-unlaunched-claims must be at least 1, not %d", o.MaxUnlaunched))
	}
	if o.LogLevel != "info" && o.LogLevel != "debug" {
		errs = append(errs, fmt.Errorf("--log-level must be info or debug, not %q", o.LogLevel))
	}
	return errors.Join(errs...)
}
