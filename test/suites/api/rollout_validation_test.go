package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
)

// rolloutPairs are the CEL rules of GPUImageRollouts and the patterns and enums of the spec, each with changes that it accepts and changes that it rejects.
var rolloutPairs = []struct {
	rule   string
	accept []edits
	reject []edits
}{
	{
		rule:   " rule: the name becomes the value of a label: make it at most 63 characters long",
		accept: []edits{{"metadata.name": long(63)}},
		reject: []edits{{"metadata.name": long(64)}},
	},
	{
		rule:   "spec.nodeClassRef rule: nodeClassRef must name an EC2NodeClass of the group karpenter.k8s.aws",
		reject: []edits{{"spec.nodeClassRef.group": "karpenter.azure.com"}, {"spec.nodeClassRef.kind": "AKSNodeClass"}},
	},
	{
		rule: "spec.image rule: image is Newest, a release such as v20261112 or 1.49.0, or the id of an image such as ami-0123456789abcdef0",
		accept: []edits{
			{"spec.image": "Newest"}, {"spec.image": "v20261112"}, {"spec.image": "1.49.0"}, {"spec.image": "v1.49.0"}, {"spec.image": "ami-0123456789abcdef0"},
		},
		reject: []edits{{"spec.image": "newest"}, {"spec.image": "al2023@latest"}, {"spec.image": "../etc"}, {"spec.image": "ami-"}, {"spec.image": ""}},
	},
	{
		rule:   "spec.soak rule: soak is a time such as 30m or 24h, at most 720h",
		accept: []edits{{"spec.soak": "0s"}, {"spec.soak": "24h"}, {"spec.soak": "720h"}},
		reject: []edits{{"spec.soak": "1d"}, {"spec.soak": "721h"}, {"spec.soak": "-1h"}},
	},
	{
		rule:   "spec.canaryTimeout rule: canaryTimeout is a time such as 10m, from 1m to 14m",
		accept: []edits{{"spec.canaryTimeout": "1m"}, {"spec.canaryTimeout": "14m"}, {"spec.canaryTimeout": "90s"}},
		reject: []edits{{"spec.canaryTimeout": "59s"}, {"spec.canaryTimeout": "15m"}, {"spec.canaryTimeout": "1h"}},
	},
	{
		rule:   "spec.windows[].schedule rule: schedule is cron syntax of five fields, such as '0 9 * * 1-4'; the time zone goes into timeZone",
		accept: []edits{withWindow(nil), withWindow(edits{"schedule": "@daily"}), withWindow(edits{"schedule": "*/5 9-17 1,15 * MON-FRI"})},
		reject: []edits{withWindow(edits{"schedule": "0 9 * *"}), withWindow(edits{"schedule": "CRON_TZ=Europe/Berlin 0 9 * * 1"}), withWindow(edits{"schedule": "@every 1h"})},
	},
	{
		rule:   "spec.windows[].duration rule: duration is a time such as 6h or 90m, from 1m to 168h",
		accept: []edits{withWindow(edits{"duration": "1m"}), withWindow(edits{"duration": "168h"})},
		reject: []edits{withWindow(edits{"duration": "0m"}), withWindow(edits{"duration": "169h"}), withWindow(edits{"duration": "30s"})},
	},
	{
		rule:   "spec.promotion enum",
		accept: []edits{{"spec.promotion": "Automatic"}, {"spec.promotion": "Paused"}},
		reject: []edits{{"spec.promotion": "Manual"}},
	},
}

// inherited is the prefix of the rules shared with GPUNodeClasses, which are tested there.
const inherited = "spec.nodeClassRef."

func withWindow(change edits) edits {
	return edits{"spec.windows": []any{with(map[string]any{"schedule": "0 9 * * 1-4", "duration": "6h"}, change)}}
}

// rolloutObject returns a valid GPUImageRollout with changes.
func rolloutObject(t *testing.T, name string, change edits) *unstructured.Unstructured {
	t.Helper()
	o := object(t, name, change)
	o.SetKind("GPUImageRollout")
	unstructured.RemoveNestedField(o.Object, "spec", "sharing")
	return o
}

func TestRolloutRules(t *testing.T) {
	t.Parallel()
	cluster.Require(t)
	c, err := dynamic.NewForConfig(server.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	rollouts := c.Resource(v1alpha1.GroupVersion.WithResource("gpuimagerollouts"))
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	for i, pair := range rolloutPairs {
		t.Run(pair.rule, func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("rollout-%d", i)
			for _, change := range append(pair.accept, nil) {
				if _, err := rollouts.Create(t.Context(), rolloutObject(t, name, change), dry); err != nil {
					t.Errorf("accepting %v: %v", change, err)
				}
			}
			field, message := expectedRejection(pair.rule, "")
			for _, change := range pair.reject {
				_, err := rollouts.Create(t.Context(), rolloutObject(t, name, change), dry)
				if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), message) {
					t.Errorf("rejecting %v: got %v, want %q", change, err, message)
					continue
				}
				if field != "" && !slices.ContainsFunc(causes(err), func(c metav1.StatusCause) bool { return strings.HasPrefix(withoutIndex(c.Field), field) }) {
					t.Errorf("rejecting %v: %v does not name the field %s", change, err, field)
				}
			}
		})
	}

	t.Run("the node class cannot be changed", func(t *testing.T) {
		t.Parallel()
		stored, err := rollouts.Create(t.Context(), rolloutObject(t, "immutable", nil), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := unstructured.SetNestedField(stored.Object, "other", "spec", "nodeClassRef", "name"); err != nil {
			t.Fatal(err)
		}
		if _, err = rollouts.Update(t.Context(), stored, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "create another GPUImageRollout") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("unset fields get defaults", func(t *testing.T) {
		t.Parallel()
		for want, change := range map[string]edits{
			"[map[duration:6h schedule:0 9 * * 1-4]]": nil,
			"[]": {"spec.windows": []any{}},
		} {
			got, err := rollouts.Create(t.Context(), rolloutObject(t, "defaults", change), dry)
			if err != nil {
				t.Fatal(err)
			}
			spec, _ := got.Object["spec"].(map[string]any)
			if fmt.Sprint(spec["windows"]) != want || spec["image"] != "Newest" || spec["promotion"] != "Automatic" || spec["soak"] != "1h" || spec["canaryTimeout"] != "10m" {
				t.Errorf("with %v the spec is %v, want windows %s", change, spec, want)
			}
		}
	})
}

func TestEveryCELRuleOfRolloutsHasPair(t *testing.T) {
	t.Parallel()
	tested := map[string]bool{
		"spec.nodeClassRef rule: nodeClassRef cannot be changed: create another GPUImageRollout for another EC2NodeClass": true,
		// A stricter rule rejects every reference to another group.
		"spec.nodeClassRef rule: nodeClassRef must name the cloud provider's own node class, such as karpenter.k8s.aws EC2NodeClass, not a GPUNodeClass": true,
	}
	rules := rulesOf(t, "karve.sh_gpuimagerollouts.yaml")
	for _, pair := range rolloutPairs {
		tested[pair.rule] = true
		if !slices.Contains(rules, pair.rule) {
			t.Errorf("a pair is for a rule that is not in the schema: %s", pair.rule)
		}
	}
	for _, rule := range rules {
		if (strings.Contains(rule, " rule: ") || strings.HasPrefix(rule, "spec.") && strings.HasSuffix(rule, " enum")) && !tested[rule] && !strings.HasPrefix(rule, inherited) {
			t.Errorf("add a pair to `rolloutPairs` for the rule: %s", rule)
		}
	}
}
