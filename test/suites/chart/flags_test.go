package chart_test

import (
	"flag"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"

	"karve.sh/karve/pkg/operator"
)

// TestChartSetsValidControllerFlags parses the chart's arguments as the controller does, and checks that the chart's default values equal the
// controller's defaults.
func TestChartSetsValidControllerFlags(t *testing.T) {
	for name, options := range combinations {
		given, o := started(t, options...)
		if err := o.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if name != "as it is" {
			continue
		}
		flags(&operator.Options{}).VisitAll(func(f *flag.Flag) {
			value, ok := given[f.Name]
			switch f.Name {
			case "instance-types-file": // This file is for clouds other than AWS.
			case "memory-aliases": // Policies do this from Kubernetes 1.36 on.
				if ok {
					t.Errorf("--%s=%s", f.Name, value)
				}
			case "leader-elect": // The chart runs more than one replica.
				if ok && value != "true" {
					t.Errorf("--%s=%s", f.Name, value)
				}
			case "gpu-check-image": // Its default is the agent's image, which only the chart knows.
				if agent := into[appsv1.DaemonSet](t, objects(t, options...), "DaemonSet").Spec.Template.Spec.Containers[0].Image; value != agent {
					t.Errorf("a GPU is checked with %q, want the agent's %q", value, agent)
				}
			case "vm-memory-overhead-percent", "reserved-enis", "isolated-vpc", "prices", "cost-labels", "priority-cutoff": // The controller reads Karpenter's, and the price list, divides costs by no label, and has no cutoff.
				if ok {
					t.Errorf("--%s=%s", f.Name, value)
				}
			case "leader-election-namespace":
				if value == "" {
					t.Errorf("the chart does not set --%s", f.Name)
				}
			default:
				if !ok || canonicalFlag(t, f.Name, value) != f.DefValue {
					t.Errorf("the chart sets --%s to %q, and the controller's default is %q", f.Name, value, f.DefValue)
				}
			}
		})
	}
}

func TestValuesReachController(t *testing.T) {
	given, o := started(t, combinations["another way"]...)
	if o.BatchMax.Seconds() != 90 || o.ReadAhead || o.PriorityCutoff == nil || *o.PriorityCutoff != -10 || o.LogLevel != "debug" || !strings.HasSuffix(o.MetricsAddress, ":9090") {
		t.Errorf("the controller understands %+v", o)
	}
	if len(o.Prices) != 1 || o.Prices[0].PriceAdjustment != "-28%" || len(o.Prices[0].Requirements) != 1 {
		t.Errorf("the controller understands the prices %+v", o.Prices)
	}
	if diff := cmp.Diff([]string{"team", "app.kubernetes.io/part-of"}, o.CostLabels); diff != "" {
		t.Errorf("the labels of costs (-want +got):\n%s", diff)
	}
	if given["vm-memory-overhead-percent"] != "0" || given["reserved-enis"] != "1" || given["isolated-vpc"] != "true" {
		t.Errorf("the controller gets %v", given)
	}
}

func flags(o *operator.Options) *flag.FlagSet {
	fs := flag.NewFlagSet("controller", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o.AddFlags(fs)
	return fs
}

// started returns the flags in the chart's arguments, and the options that the controller parses from them.
func started(t *testing.T, options ...string) (map[string]string, *operator.Options) {
	t.Helper()
	var args []string
	for _, d := range named[appsv1.Deployment](t, objects(t, options...), "Deployment") {
		if c := d.Spec.Template.Spec.Containers[0]; c.Name == "controller" {
			args = c.Args
		}
	}
	var o operator.Options
	fs := flags(&o)
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 {
		t.Fatalf("the controller does not understand %q: %v", args, err)
	}
	given := map[string]string{}
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		given[name] = value
	}
	if len(given) != len(args) {
		t.Errorf("an argument is there twice: %q", slices.Sorted(slices.Values(args)))
	}
	return given, &o
}

// canonicalFlag returns a flag's value in the format in which defaults are printed.
func canonicalFlag(t *testing.T, name, value string) string {
	t.Helper()
	fs := flags(&operator.Options{})
	if err := fs.Set(name, value); err != nil {
		t.Errorf("--%s=%s: %v", name, value, err)
	}
	return fs.Lookup(name).Value.String()
}
