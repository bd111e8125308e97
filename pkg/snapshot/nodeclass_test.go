package snapshot_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"karve.sh/karve/pkg/snapshot"
)

func TestANodeClassIsReadyWhenItsConditionIsTrueOfItsPresentGeneration(t *testing.T) {
	t.Parallel()
	condition := func(kv ...any) map[string]any {
		c := map[string]any{"type": "Ready"}
		for pair := range slices.Chunk(kv, 2) {
			c[fmt.Sprint(pair[0])] = pair[len(pair)-1]
		}
		return c
	}
	for name, tc := range map[string]struct {
		status  any
		deleted bool
		reason  string
		message string
	}{
		"ready":                  {status: condition("status", "True", "observedGeneration", int64(3))},
		"ready of no generation": {status: condition("status", "True")},
		"of a former generation": {condition("status", "True", "observedGeneration", int64(2)), false, "NodeClassNotObserved", "was changed"},
		"not ready":              {condition("status", "False", "reason", "NoSubnets", "message", "none found"), false, "NodeClassNotReady", "NoSubnets none found"},
		"no condition":           {nil, false, "NodeClassNotReady", "has no Ready condition yet"},
		"no list":                {"x", false, "NodeClassNotReady", "has a status that cannot be read"},
		"on its way out":         {condition("status", "True"), true, "NodeClassTerminating", "is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			metadata := map[string]any{"name": "gpu", "generation": int64(3)}
			if tc.deleted {
				metadata["deletionTimestamp"] = "2026-03-01T12:00:00Z"
			}
			class := &unstructured.Unstructured{Object: map[string]any{"kind": "EC2NodeClass", "metadata": metadata}}
			switch status := tc.status.(type) {
			case nil:
			case map[string]any:
				class.Object["status"] = map[string]any{"conditions": []any{"odd", map[string]any{"type": "Other"}, status}}
			default:
				class.Object["status"] = map[string]any{"conditions": status}
			}
			got := snapshot.NodeClassStateOf(class)
			if got.Ready != (tc.reason == "") || got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Errorf("state: %+v", got)
			}
			if !got.Ready && !strings.HasPrefix(got.Message, `EC2NodeClass "gpu" `) {
				t.Errorf("message %q does not name the class", got.Message)
			}
		})
	}
}
