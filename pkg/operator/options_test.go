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

func TestTheDefaultsAreValidWithAFileOfInstanceTypes(t *testing.T) {
	t.Parallel()
	o := parsed(t, "--instance-types-file=types.json")
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
	if o.LaunchTimeout != time.Minute || !o.LeaderElect {
		t.Errorf("launch timeout %s, leader election %t: stock Karpenter waits for a claim of ours, so it is given up within a minute; and only one replica may act",
			o.LaunchTimeout, o.LeaderElect)
	}
}

func TestValidateNamesEachOptionThatIsWrong(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                                   "--instance-types-file is required",
		"--batch-idle-duration=0":            "--batch-idle-duration must be above zero",
		"--batch-max-duration=-1s":           "--batch-max-duration must be above zero",
		"--plan-budget=0s":                   "--plan-budget must be above zero",
		"--launch-timeout=0s":                "--launch-timeout must be above zero",
		"--replicas-timeout=0s":              "--replicas-timeout must be above zero",
		"--breaker-retry=0s":                 "--breaker-retry must be above zero",
		"--settle-duration=0s":               "--settle-duration must be above zero",
		"--batch-max-duration=1ms":           "must not be below --batch-idle-duration",
		"--max-unlaunched-claims=0":          "--max-unlaunched-claims must be at least 1",
		"--log-level=trace":                  `--log-level must be info or debug, not "trace"`,
		"--log-level= --settle-duration=-1s": "--settle-duration must be above zero",
	} {
		o := parsed(t, strings.Fields(args)...)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", args, err, want)
		}
	}
}

func TestValidateTellsAllAtOnce(t *testing.T) {
	t.Parallel()
	err := (&Options{}).Validate()
	for _, name := range []string{"instance-types-file", "batch-idle", "batch-max", "plan-budget", "launch-timeout", "replicas-timeout", "breaker-retry", "settle", "max-unlaunched", "log-level"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not told: %v", name, err)
		}
	}
}

func TestManyMayAskForTheKindsAtOnce(t *testing.T) {
	t.Parallel()
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			if _, err := Scheme(); err != nil {
				t.Error(err)
			}
		})
	}
}
