package facts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/snapshot/facts"
)

func TestNodeClassIsReadyOnlyForCurrentGeneration(t *testing.T) {
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
		"ready":                           {status: condition("status", "True", "observedGeneration", int64(3))},
		"ready without a generation":      {status: condition("status", "True")},
		"ready for an earlier generation": {condition("status", "True", "observedGeneration", int64(2)), false, "NodeClassNotObserved", "was changed"},
		"not ready":                       {condition("status", "False", "reason", "NoSubnets", "message", "none found"), false, "NodeClassNotReady", "NoSubnets none found"},
		"no condition":                    {nil, false, "NodeClassNotReady", "has no Ready condition yet"},
		"conditions are no list":          {"x", false, "NodeClassNotReady", "has a status that cannot be read"},
		"deleted":                         {condition("status", "True"), true, "NodeClassTerminating", "is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			metadata := map[string]any{"name": "gpu", "generation": int64(3)}
			if tc.deleted {
				metadata["deletionTimestamp"] = "2026-03-01T12:00:00Z"
			}
			class := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": metadata}}
			switch status := tc.status.(type) {
			case nil:
			case map[string]any:
				class.Object["status"] = map[string]any{"conditions": []any{"odd", map[string]any{"type": "Other"}, status}}
			default:
				class.Object["status"] = map[string]any{"conditions": status}
			}
			got := facts.NodeClassStateOf(class)
			if got.Ready != (tc.reason == "") || got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Errorf("state: %+v", got)
			}
			if !got.Ready && !strings.HasPrefix(got.Message, `EC2NodeClass "gpu" `) {
				t.Errorf("message %q does not name the class", got.Message)
			}
		})
	}
}

func TestNodeClassWithoutKnownOfferingsIsNotReady(t *testing.T) {
	t.Parallel()
	offered := []catalog.InstanceType{{Name: "a"}, {Name: "b", Offerings: []catalog.Offering{{Zone: "z"}}}}
	for name, tc := range map[string]struct {
		listing catalog.Listing
		ready   bool
	}{
		"a complete catalog":          {catalog.Listing{InstanceTypes: offered}, true},
		"a partly stale catalog":      {catalog.Listing{InstanceTypes: offered, Reason: "AccessDenied", Message: "no"}, true},
		"an unknown catalog":          {catalog.Listing{Reason: "Throttled", Message: "no"}, false},
		"a catalog without offerings": {catalog.Listing{InstanceTypes: offered[:1], Reason: "WrongRegion", Message: "no"}, false},
		"an empty catalog":            {catalog.Listing{}, true}, // The pool then reports that no type meets its requirements.
	} {
		state := facts.NodeClassState{Ready: true}
		state.Learn(tc.listing)
		if state.Ready != tc.ready || len(state.InstanceTypes) != len(tc.listing.InstanceTypes) || state.CatalogReason != tc.listing.Reason || state.CatalogMessage != tc.listing.Message {
			t.Errorf("%s: %+v", name, state)
		}
		if !tc.ready && (state.Reason != "CatalogUnavailable" || state.Message != "no") {
			t.Errorf("%s: not Ready because of %s: %s", name, state.Reason, state.Message)
		}
		notReady := facts.NodeClassState{Reason: "NodeClassNotFound", Message: "gone"}
		notReady.Learn(tc.listing)
		if notReady.Ready || notReady.Reason != "NodeClassNotFound" {
			t.Errorf("%s: what is wrong with the class itself is told first, got %+v", name, notReady)
		}
	}
}

func TestNodeClassStateHoldsImagesAndHash(t *testing.T) {
	t.Parallel()
	class := func(amis any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass",
			"metadata": map[string]any{"name": "gpu", "annotations": map[string]any{
				"karpenter.k8s.aws/ec2nodeclass-hash": "17", "karpenter.k8s.aws/ec2nodeclass-hash-version": "v4",
			}},
			"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}, "amis": amis},
		}}
	}
	got := facts.NodeClassStateOf(class([]any{map[string]any{"id": "ami-1", "name": "x", "requirements": []any{
		map[string]any{"key": "kubernetes.io/arch", "operator": "In", "values": []any{"amd64"}},
	}}}))
	want := facts.NodeClassState{Ready: true, Hash: "17", HashVersion: "v4", Images: []facts.Image{{ID: "ami-1", Requirements: []corev1.NodeSelectorRequirement{
		{Key: "kubernetes.io/arch", Operator: corev1.NodeSelectorOpIn, Values: []string{"amd64"}},
	}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, amis := range map[string]any{"none": nil, "conditions are no list": "x", "invalid entries": []any{map[string]any{"id": int64(7)}}} {
		if got := facts.NodeClassStateOf(class(amis)); !got.Ready || len(got.Images) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
