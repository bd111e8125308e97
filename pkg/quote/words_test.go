package quote

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot/facts"
)

func TestProofDescribesGapToBound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		price, bound planner.MicroUSD
		want         string
	}{
		{4_208_000, 4_208_000, "optimal: nothing cheaper holds these pods"},
		{1_000_000, 999_999, "proven lower bound 0.999: within 0.1 %"},
		{1_010_000, 1_000_000, "proven lower bound 1.000: within 1.0 %"},
		{1_010_001, 1_000_000, "proven lower bound 1.000: within 1.1 %"},
		{3_000_000, 1_000_000, "proven lower bound 1.000: within 200.0 %"},
		{1, 0, ""},
	} {
		if got := proofText(c.price, c.bound); got != c.want {
			t.Errorf("%d over %d: %q, want %q", c.price, c.bound, got, c.want)
		}
	}
}

func TestBesideFormatsDifference(t *testing.T) {
	t.Parallel()
	q := Quote{Price: 1_000_000}
	for price, want := range map[planner.MicroUSD]string{
		1_000_000: "the same", 1_004_999: "slightly more", 995_001: "slightly less", 1_005_000: "+1 %", 995_000: "-1 %", 1_860_000: "+86 %", 0: "-100 %",
	} {
		if got := q.beside(price, 0); got != want {
			t.Errorf("%d beside 1000000: %q, want %q", price, got, want)
		}
	}
	if got := q.beside(1_000_000, 3); got != "the same, without a place for 3 of the pods" {
		t.Errorf("got %q", got)
	}
}

func TestWorkloadsAreAbbreviated(t *testing.T) {
	t.Parallel()
	q := Quote{pods: map[string]pod{}}
	var pods []string
	for _, name := range []string{"a", "b", "b2", "c", "d", "e"} {
		q.pods[name] = pod{workload: "n/" + name[:1]}
		pods = append(pods, name)
	}
	for n, want := range map[int]string{1: "n/a", 3: "n/b (2), n/a", 5: "n/b (2), n/a, n/c, n/d", 6: "n/b (2), n/a, n/c, n/d and 1 more"} {
		if got := q.workloads(pods[:n]); got != want {
			t.Errorf("%d pods: %q, want %q", n, got, want)
		}
	}
}

func TestQuoteShowsStepsToACheaperLayout(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	c := &facts.Cluster{Now: now, GPUNodeClasses: []v1alpha1.GPUNodeClass{{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu-shared"},
		Status: v1alpha1.GPUNodeClassStatus{Waste: &v1alpha1.Waste{USD: "0.400", USDPerHour: "0.240", AsOf: metav1.NewTime(now), Steps: []v1alpha1.WasteStep{
			{NodeClaims: []string{"a", "b"}, Pods: 10, RestartUSD: "0.400", USDPerHour: "0.226"},
			{NodeClaims: []string{"c"}, Pods: 2, RestartUSD: "0.100", USDPerHour: "0.014"},
		}}},
	}}}
	q, err := Of(c, func() solve.Solver { return solve.Solver{} })
	if err != nil {
		t.Fatal(err)
	}
	for wide, first := range map[bool]string{false: "a and 1 more", true: "a,b"} {
		text := q.Text(wide)
		for _, want := range []string{
			"NODES TO DELETE", first, "0.226", "wasted $0.40 of the $0.40 that moving 10 pods costs; due now", "0.014", "wasted $0.40 of the $0.50 that this step and the 1 before it cost; due in about 25m",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is missing:\n%s", want, text)
			}
		}
	}
}
