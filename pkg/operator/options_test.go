package operator

import (
	"flag"
	"io"
	"slices"
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
		"--batch-idle-duration=0":                 "--batch-idle-duration must be greater than zero",
		"--batch-max-duration=-1s":                "--batch-max-duration must be greater than zero",
		"--plan-budget=0s":                        "--plan-budget must be greater than zero",
		"--launch-timeout=0s":                     "--launch-timeout must be greater than zero",
		"--replicas-timeout=0s":                   "--replicas-timeout must be greater than zero",
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

func TestCostLabelsAreKeysOfLabels(t *testing.T) {
	t.Parallel()
	if o := parsed(t, "--cost-labels=team,app.kubernetes.io/part-of,team"); !slices.Equal(o.CostLabels, []string{"team", "app.kubernetes.io/part-of"}) {
		t.Errorf("%q", o.CostLabels)
	}
	for _, wrong := range []string{"", "team,", "a b", "team=red"} {
		var o Options
		fs := flag.NewFlagSet("controller", flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		o.AddFlags(fs)
		if err := fs.Parse([]string{"--cost-labels=" + wrong}); err == nil || !strings.Contains(err.Error(), "is no key of a label") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

func TestValidateReportsAllErrorsAtOnce(t *testing.T) {
	t.Parallel()
	err := (&Options{}).Validate()
	for _, name := range []string{"batch-idle", "batch-max", "plan-budget", "launch-timeout", "replicas-timeout", "settle", "log-level"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not told: %v", name, err)
		}
	}
}
