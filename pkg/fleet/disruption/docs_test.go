package disruption

import (
	"os"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"
)

func TestDocumentedBudgetsAllowOnlyWeekdayNights(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/disruption.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```yaml\ndisruption:\n")
	block, _, found := strings.Cut("disruption:\n"+block, "```")
	var np karpv1.NodePool
	if err := yaml.UnmarshalStrict([]byte(block), &np.Spec); err != nil || !found || len(np.Spec.Disruption.Budgets) != 3 {
		t.Fatalf("%v: %s", err, block)
	}
	for when, want := range map[string]int{
		"2026-03-03T12:00:00Z": 0, // Tuesday
		"2026-03-03T23:30:00Z": 2,
		"2026-03-06T05:00:00Z": 2, // Friday
		"2026-03-06T23:30:00Z": 0,
		"2026-03-08T23:30:00Z": 0, // Sunday
		"2026-03-09T22:00:00Z": 2, // Monday
	} {
		at, err := time.Parse(time.RFC3339, when)
		if err != nil {
			t.Fatal(err)
		}
		if got := np.MustGetAllowedDisruptions(clocktesting.NewFakeClock(at), 20, karpv1.DisruptionReasonDrifted); got != want {
			t.Errorf("at %s %d may be replaced, want %d", when, got, want)
		}
		if got := np.MustGetAllowedDisruptions(clocktesting.NewFakeClock(at), 20, karpv1.DisruptionReasonEmpty); got != 2 {
			t.Errorf("at %s %d idle ones may go, want 2", when, got)
		}
	}
}
