package operator

import (
	"flag"
	"io"
	"strings"
	"testing"
	"time"
)

func parsed(t *testing.T, args ...string) Options {
	t.Helper()
	var o Options
	fs := flag.NewFlagSet("controller", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestDefaultsAreValid(t *testing.T) {
	t.Parallel()
	o := parsed(t)
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
	if o.LaunchTimeout != time.Minute || !o.LeaderElect {
		t.Errorf("launch timeout %s, leader election %t: stock Karpenter waits for a claim of ours, so it is given up within a minute; and only one replica may act",
			o.LaunchTimeout, o.LeaderElect)
	}
}

func TestValidateNamesInvalidOption(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--vm-memory-overhead-percent=7.5":        "--vm-memory-overhead-percent must be a fraction of 1, such as 0.075, not 7.5",
		"--reserved-enis=-1":                      "--reserved-enis must not be less than 0, but is -1",
		"--batch-idle-duration=0":                 "--batch-idle-duration must be greater than zero",
		"--batch-max-duration=-1s":                "--batch-max-duration must be greater than zero",
		"--plan-budget=0s":                        "--plan-budget must be greater than zero",
		"--launch-timeout=0s":                     "--launch-timeout must be greater than zero",
		"--replicas-timeout=0s":                   "--replicas-timeout must be greater than zero",
		"--breaker-retry=0s":                      "--breaker-retry must be greater than zero",
		"--settle-duration=0s":                    "--settle-duration must be greater than zero",
		"--batch-max-duration=1ms":                "must not be less than --batch-idle-duration",
		"--image-rollouts --gpu-check-namespace=": "--gpu-check-namespace must not be empty",
		"--log-level=trace":                       `--log-level must be info or debug, not "trace"`,
		"--log-level= --settle-duration=-1s":      "--settle-duration must be greater than zero",
	} {
		o := parsed(t, strings.Fields(args)...)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", args, err, want)
		}
	}
}

func TestValidateReportsAllErrorsAtOnce(t *testing.T) {
	t.Parallel()
	err := (&Options{}).Validate()
	for _, name := range []string{"batch-idle", "batch-max", "plan-budget", "launch-timeout", "replicas-timeout", "breaker-retry", "settle", "log-level"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not told: %v", name, err)
		}
	}
}

// Karpenter's AWS provider reads the same values from the same variables.
func TestEnvironmentVariablesSetFlagDefaults(t *testing.T) {
	for name, value := range map[string]string{
		"CLUSTER_NAME": "prod", "VM_MEMORY_OVERHEAD_PERCENT": "0.06", "RESERVED_ENIS": "1", "ISOLATED_VPC": "true",
	} {
		t.Setenv(name, value)
	}
	o := parsed(t, "--reserved-enis=2")
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
	if o.ClusterName != "prod" || o.VMMemoryOverheadPercent != 0.06 || o.ReservedENIs != 2 || !o.IsolatedVPC {
		t.Errorf("options %+v", o)
	}
	t.Setenv("RESERVED_ENIS", "one")
	o = parsed(t)
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "invalid value of RESERVED_ENIS for --reserved-enis") {
		t.Errorf("a variable that is no number: %v", err)
	}
	t.Setenv("RESERVED_ENIS", "")
	o = parsed(t)
	if err := o.Validate(); err != nil || o.ReservedENIs != 0 {
		t.Errorf("an empty variable: %v, %+v", err, o)
	}
}
