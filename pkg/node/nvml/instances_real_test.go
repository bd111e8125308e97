//go:build cgo && gpu

package nvml_test

import (
	"context"
	"os"
	"testing"

	"karve.sh/karve/pkg/node/mig"
	"karve.sh/karve/pkg/node/nvml"
	"karve.sh/karve/pkg/nodecontract"
	profiles "karve.sh/karve/pkg/nodecontract/mig"
)

// TestRealGPUsHaveTheModelOfThePlan needs a machine with an NVIDIA driver, and changes nothing: go test -tags gpu -run TestRealGPUs ./pkg/node/nvml. As root, it
// compares the places of instances too.
func TestRealGPUsHaveTheModelOfThePlan(t *testing.T) {
	l := nvml.New(nvml.Options{})
	for _, d := range start(t, l) {
		if !d.MIGCapable {
			t.Skipf("a %s cannot be divided", d.Product)
		}
		g, err := l.Geometry(d.UUID)
		if err != nil {
			t.Fatal(err)
		}
		if len(g.Kinds) == 0 {
			t.Skip("NVML tells the places of instances only to root")
		}
		known := false
		for _, name := range profiles.ModelNames() {
			for _, model := range profiles.Models(name, 0) {
				if g.Slices != model.Slices || g.Kind(model.Kinds[len(model.Kinds)-1].Profile) == nil {
					continue
				}
				known = true
				for _, want := range model.Kinds {
					if k := g.Kind(want.Profile); k == nil || g.Fit(want.Profile) != model.Fit(want.Profile) {
						t.Errorf("%s: of %s, %d instances fit, and the plan counts %d", d.Product, want.Profile, g.Fit(want.Profile), model.Fit(want.Profile))
					}
				}
			}
		}
		if !known {
			t.Errorf("no model is a %s: %s", d.Product, profiles.Names(g.Kinds))
		}
	}
}

// TestRealGPUsAreDivided divides the GPUs of the machine as KARVE_DIVIDE says, for instance 1g.10gb. It skips what a card cannot do.
func TestRealGPUsAreDivided(t *testing.T) {
	profile := os.Getenv("KARVE_DIVIDE")
	if profile == "" {
		t.Skip("KARVE_DIVIDE names no profile")
	}
	l := nvml.New(nvml.Options{})
	d := start(t, l)[0]
	if !d.MIGCapable {
		t.Skipf("a %s cannot be divided", d.Product)
	}
	g, err := l.Geometry(d.UUID)
	if err != nil {
		t.Fatal(err)
	}
	count := g.Fit(profile)
	if count == 0 {
		t.Skipf("a %s has no profile %s: %s", d.Product, profile, profiles.Names(g.Kinds))
	}
	wanted := nodecontract.MIG{Profile: profile, Count: count, Naming: nodecontract.MIGMixed}
	if err := mig.NewMachine(l, mig.Options{StateDir: t.TempDir(), Proc: "/proc", Pods: func(context.Context) (map[string]string, error) { return nil, nil }}).Divide(t.Context(), wanted); err != nil {
		t.Fatal(err)
	}
	for _, d := range start(t, l) {
		if err := mig.Check(d, wanted); err != nil {
			t.Error(err)
		}
	}
}
