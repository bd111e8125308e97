package waste_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/waste"
)

var at = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func class() *v1alpha1.GPUNodeClass {
	return &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu-shared"}, Status: v1alpha1.GPUNodeClassStatus{Waste: &v1alpha1.Waste{
		USD: "0.400", USDPerHour: "0.600", AsOf: metav1.NewTime(at.Add(-time.Minute)), Steps: []v1alpha1.WasteStep{
			{NodeClaims: []string{"a"}, Pods: 10, RestartUSD: "0.500", USDPerHour: "0.400"},
			{NodeClaims: []string{"b", "c"}, Pods: 1, RestartUSD: "0.050", USDPerHour: "0.020"},
		},
	}}}
}

func TestStepsInWords(t *testing.T) {
	t.Parallel()
	steps := waste.Steps(class(), at)
	if len(steps) != 2 {
		t.Fatalf("steps %+v", steps)
	}
	for i, want := range []string{
		"wasted $0.41 of the $0.50 that moving 10 pods costs",
		"wasted $0.41 of the $0.55 that this step and the 1 before it cost",
	} {
		if got := steps[i].String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if first := steps[0]; first.Covered == nil || first.Covered.Sub(at).Round(time.Second) != 9*time.Minute || first.Saving != 400_000 || first.GPUNodeClass != "gpu-shared" {
		t.Errorf("the first step is %+v", first)
	}
	if got := steps[1].NodeClaims; len(got) != 2 || got[0] != "b" {
		t.Errorf("the second step removes %s", got)
	}
}

func TestWasteDoesNotExceedWhatIsNeeded(t *testing.T) {
	t.Parallel()
	if got := waste.Steps(class(), at.Add(1000*time.Hour)); got[0].Wasted != 500_000 || got[1].Wasted != 550_000 {
		t.Errorf("steps %+v", got)
	}
}

func TestStepThatSavesNothingIsNeverCovered(t *testing.T) {
	t.Parallel()
	c := class()
	c.Status.Waste.USDPerHour = "0"
	if got := waste.Steps(c, at); got[0].Covered != nil || got[0].Wasted != 400_000 {
		t.Errorf("the first step is %+v", got[0])
	}
}

func TestThereAreNoStepsWithoutValidStatus(t *testing.T) {
	t.Parallel()
	if steps := waste.Steps(&v1alpha1.GPUNodeClass{}, at); steps != nil {
		t.Errorf("steps %+v without a status", steps)
	}
	for name, spoil := range map[string]func(*v1alpha1.Waste){
		"the amount":           func(w *v1alpha1.Waste) { w.USD = strings.Repeat("9", 32) },
		"the saving":           func(w *v1alpha1.Waste) { w.USDPerHour = "-" },
		"a step's restarts":    func(w *v1alpha1.Waste) { w.Steps[1].RestartUSD = "x" },
		"a step's NodeClaims":  func(w *v1alpha1.Waste) { w.Steps[0].NodeClaims = nil },
		"the saving of a step": func(w *v1alpha1.Waste) { w.Steps[0].USDPerHour = "" },
	} {
		c := class()
		spoil(c.Status.Waste)
		if steps := waste.Steps(c, at); steps != nil {
			t.Errorf("%s is not valid, and there are steps %+v", name, steps)
		}
	}
}
