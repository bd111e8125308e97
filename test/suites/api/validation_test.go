package api

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
)

var server *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(cluster.RunWithAPIServer(m, &server)) }

// edits are changes to a valid object, by path; nil removes the field.
type edits map[string]any

// pair is a rule of the schema with an object that it accepts and one that it rejects. Both objects satisfy all other rules. The message of a CEL rule is part of
// its name.
type pair struct {
	rule    string
	accept  edits
	reject  edits
	message string
}

// pairs are all rules of the schema. TestEveryRuleHasPair compares the list with the schema.
var pairs = slices.Concat(specPairs, sharingPairs, statusPairs)

// specPairs are the rules of the spec, without those of sharing.
var specPairs = []pair{
	{rule: "spec required", reject: edits{"spec": nil}, message: "Required value"},

	{rule: "spec.nodeClassRef required", reject: edits{"spec.nodeClassRef": nil}, message: "Required value"},
	{
		rule:   "spec.nodeClassRef rule: nodeClassRef must name the cloud provider's own node class, such as karpenter.k8s.aws EC2NodeClass, not a GPUNodeClass",
		accept: edits{"spec.nodeClassRef.group": "karpenter.azure.com", "spec.nodeClassRef.kind": "AKSNodeClass"},
		reject: edits{"spec.nodeClassRef.group": v1alpha1.Group, "spec.nodeClassRef.kind": v1alpha1.Kind},
	},
	{rule: "spec.nodeClassRef.group required", reject: edits{"spec.nodeClassRef.group": nil}, message: "Required value"},
	{rule: "spec.nodeClassRef.group minLength", accept: edits{"spec.nodeClassRef.group": "g"}, reject: edits{"spec.nodeClassRef.group": ""}, message: "at least 1 chars"},
	{
		rule:    "spec.nodeClassRef.group maxLength",
		accept:  edits{"spec.nodeClassRef.group": long(253)},
		reject:  edits{"spec.nodeClassRef.group": long(254)},
		message: "may not be more than 253",
	},
	{
		rule:   "spec.nodeClassRef.group rule: group is the part of apiVersion before the slash, for instance karpenter.k8s.aws",
		reject: edits{"spec.nodeClassRef.group": "karpenter.k8s.aws/v1"},
	},
	{rule: "spec.nodeClassRef.kind required", reject: edits{"spec.nodeClassRef.kind": nil}, message: "Required value"},
	{rule: "spec.nodeClassRef.kind minLength", accept: edits{"spec.nodeClassRef.kind": "K"}, reject: edits{"spec.nodeClassRef.kind": ""}, message: "at least 1 chars"},
	{
		rule:    "spec.nodeClassRef.kind maxLength",
		accept:  edits{"spec.nodeClassRef.kind": long(63)},
		reject:  edits{"spec.nodeClassRef.kind": long(64)},
		message: "may not be more than 63",
	},
	{rule: "spec.nodeClassRef.name required", reject: edits{"spec.nodeClassRef.name": nil}, message: "Required value"},
	{rule: "spec.nodeClassRef.name minLength", accept: edits{"spec.nodeClassRef.name": "n"}, reject: edits{"spec.nodeClassRef.name": ""}, message: "at least 1 chars"},
	{
		rule:    "spec.nodeClassRef.name maxLength",
		accept:  edits{"spec.nodeClassRef.name": long(253)},
		reject:  edits{"spec.nodeClassRef.name": long(254)},
		message: "may not be more than 253",
	},
	{rule: "spec.launch.maxPremiumPercent minimum", accept: premium(0), reject: premium(-1), message: "greater than or equal to 0"},
	{rule: "spec.launch.maxPremiumPercent maximum", accept: premium(100), reject: premium(101), message: "less than or equal to 100"},

	{
		rule:    "spec.consolidation.idleAfter maxLength",
		accept:  idleAfter(strings.Repeat("1s", 16)),
		reject:  idleAfter(strings.Repeat("1s", 16) + "s"),
		message: "may not be more than 32",
	},
	{rule: idleRule, accept: idleAfter("30s"), reject: idleAfter("30")},
	{rule: idleRule, accept: idleAfter("1h30m"), reject: idleAfter("1h 30m")},
	{rule: idleRule, accept: idleAfter("0s"), reject: idleAfter("-1s")},
	{rule: idleRule, accept: idleAfter("Never"), reject: idleAfter("never")},
	{rule: idleRule, accept: idleAfter("720h"), reject: idleAfter("720h1s")},
	{rule: idleRule, accept: idleAfter("43200m"), reject: idleAfter("43201m")},
	{rule: idleRule, accept: idleAfter("2592000s"), reject: idleAfter("2592001s")},
	{rule: idleRule, accept: idleAfter("5m"), reject: idleAfter("")},
	{rule: idleRule, accept: idleAfter("24h"), reject: idleAfter("1d")},
	{rule: idleRule, accept: idleAfter("1s"), reject: idleAfter("500ms")},
	{rule: idleRule, accept: idleAfter("1h"), reject: idleAfter("9999999999999h")}, // too long for CEL's duration

	{
		rule:    "spec.terminationGracePeriod maxLength",
		accept:  grace(strings.Repeat("1s", 16)),
		reject:  grace(strings.Repeat("1s", 16) + "s"),
		message: "may not be more than 32",
	},
	{rule: graceRule, accept: grace("30m"), reject: grace("30")},
	{rule: graceRule, accept: grace("Never"), reject: grace("never")},
	{rule: graceRule, accept: grace("720h"), reject: grace("720h1s")},
	{rule: graceRule, accept: grace("0s"), reject: grace("")},
	{
		rule:    "spec.consolidation.policy enum",
		accept:  consolidation("policy", "WhenIdle"),
		reject:  consolidation("policy", "WhenEmpty"),
		message: `supported values: "WhenCheaper", "WhenIdle"`,
	},
	{
		rule:    "spec.consolidation.policy enum",
		accept:  consolidation("policy", "WhenCheaper"),
		reject:  consolidation("policy", ""),
		message: `supported values: "WhenCheaper", "WhenIdle"`,
	},
	{
		rule:    "spec.consolidation.restartCost maxLength",
		accept:  consolidation("restartCost", "999999.999999"),
		reject:  consolidation("restartCost", "0.0000000000000001"),
		message: "may not be more than 16",
	},
	{rule: costRule, accept: consolidation("restartCost", "0"), reject: consolidation("restartCost", "-0.02"), message: "should match"},
	{rule: costRule, accept: consolidation("restartCost", "0.000001"), reject: consolidation("restartCost", "0.0000001"), message: "should match"},
	{rule: costRule, accept: consolidation("restartCost", "0.02"), reject: consolidation("restartCost", ".02"), message: "should match"},
	{rule: costRule, accept: consolidation("restartCost", "2"), reject: consolidation("restartCost", "$2"), message: "should match"},

	{
		rule:    "spec.headroom maxItems",
		accept:  edits{"spec.headroom": slices.Repeat([]any{warm(nil)}, 16)},
		reject:  edits{"spec.headroom": slices.Repeat([]any{warm(nil)}, 17)},
		message: "must have at most 16 items",
	},
	{rule: "spec.headroom[].replicas required", accept: headroom(nil), reject: headroom(edits{"replicas": nil}), message: "Required value"},
	{rule: "spec.headroom[].replicas minimum", accept: headroom(edits{"replicas": 1}), reject: headroom(edits{"replicas": 0}), message: "greater than or equal to 1"},
	{
		rule:    "spec.headroom[].replicas maximum",
		accept:  headroom(edits{"replicas": 10000}),
		reject:  headroom(edits{"replicas": 10001}),
		message: "less than or equal to 10000",
	},
	{rule: headroomRule, accept: headroom(nil), reject: headroom(edits{"schedule": "0 7 * * mon-fri"})},
	{rule: headroomRule, accept: headroom(edits{"schedule": "0 7 * * mon-fri", "duration": "10h"}), reject: headroom(edits{"duration": "10h"})},
	{rule: "spec.headroom[].schedule minLength", accept: scheduled("@daily", "1h"), reject: scheduled("", "1h"), message: "at least 1 chars"},
	{
		rule:    "spec.headroom[].schedule maxLength",
		accept:  scheduled("0 7 * * "+strings.Repeat("1", 120), "1h"),
		reject:  scheduled("0 7 * * "+strings.Repeat("1", 121), "1h"),
		message: "may not be more than 128",
	},
	{rule: "spec.headroom[].schedule pattern", accept: scheduled("@weekly", "1h"), reject: scheduled("@reboot", "1h"), message: "should match"},
	{rule: "spec.headroom[].schedule pattern", accept: scheduled("0 7 * * *", "1h"), reject: scheduled("7 o'clock", "1h"), message: "should match"},
	{
		rule:    "spec.headroom[].duration maxLength",
		accept:  scheduled("@daily", strings.Repeat("1m", 16)),
		reject:  scheduled("@daily", strings.Repeat("1m", 16)+"m"),
		message: "may not be more than 32",
	},
	{rule: headroomFor, accept: scheduled("@daily", "30m"), reject: scheduled("@daily", "30s")},
	{rule: headroomFor, accept: scheduled("@daily", "1h30m"), reject: scheduled("@daily", "1.5h")},
	{rule: headroomFor, accept: scheduled("@daily", "720h"), reject: scheduled("@daily", "720h1m")},
	{rule: headroomFor, accept: scheduled("@daily", "43200m"), reject: scheduled("@daily", "")},
	{
		rule:    "spec.consolidation.unusedAfter maxLength",
		accept:  unusedAfter(strings.Repeat("1s", 16)),
		reject:  unusedAfter(strings.Repeat("1s", 16) + "s"),
		message: "may not be more than 32",
	},
	{rule: unusedRule, accept: unusedAfter("30m"), reject: unusedAfter("30")},
	{rule: unusedRule, accept: unusedAfter("Never"), reject: unusedAfter("never")},
	{rule: unusedRule, accept: unusedAfter("720h"), reject: unusedAfter("720h1s")},
	{rule: unusedRule, accept: unusedAfter("0s"), reject: unusedAfter("-1h")},
	{rule: unusedRule, accept: unusedAfter("2h"), reject: unusedAfter("")},
}

const unusedRule = "spec.consolidation.unusedAfter rule: unusedAfter is a time such as 30m or 2h, at most 720h, or Never to report nothing"

const costRule = "spec.consolidation.restartCost pattern"

const graceRule = "spec.terminationGracePeriod rule: terminationGracePeriod is a time such as 30m or 1h30m, at most 720h, or Never to wait for pods that cannot be evicted"

const idleRule = "spec.consolidation.idleAfter rule: idleAfter is a time such as 30s, 5m or 1h30m, at most 720h, or Never to keep idle machines"

const (
	headroomRule = "spec.headroom[] rule: a headroom with a schedule needs a duration, and the other way round"
	headroomFor  = "spec.headroom[].duration rule: duration is a time such as 30m or 10h, at most 720h"
)

func TestRules(t *testing.T) {
	t.Parallel()
	cluster.Require(t)
	classes := client(t)
	stored, err := classes.Create(t.Context(), object(t, "rules", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteClass(t, classes, "rules") })

	// send is a dry run: the API server validates the object and stores nothing.
	send := func(t *testing.T, name string, change edits) error {
		t.Helper()
		o := object(t, name, change)
		if _, ok := o.Object["status"]; ok {
			o.SetName(stored.GetName())
			o.SetResourceVersion(stored.GetResourceVersion())
			_, err := classes.UpdateStatus(t.Context(), o, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
		_, err := classes.Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for i, pair := range pairs {
		t.Run(pair.rule, func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("rule-%d", i)
			if err := send(t, name, pair.accept); err != nil {
				t.Errorf("accepting %v: %v", pair.accept, err)
			}
			err := send(t, name, pair.reject)
			if !apierrors.IsInvalid(err) {
				t.Fatalf("rejecting %v: got error %v, want Invalid", pair.reject, err)
			}
			field, message := expectedRejection(pair.rule, pair.message)
			if !strings.Contains(err.Error(), message) {
				t.Errorf("rejecting %v:\n got %v\nwant %s", pair.reject, err, message)
			}
			if !slices.ContainsFunc(causes(err), func(c metav1.StatusCause) bool { return withoutIndex(c.Field) == field }) {
				t.Errorf("rejecting %v: %v does not name the field %s", pair.reject, err, field)
			}
		})
	}
}

// expectedRejection returns the field and the message of a rejection by a rule.
func expectedRejection(rule, message string) (string, string) {
	if path, text, ok := strings.Cut(rule, " rule: "); ok {
		return path, text
	}
	field, _, _ := strings.Cut(rule, " ")
	if strings.Contains(rule, " unique ") {
		return field + "[]", message
	}
	return field, message
}

func causes(err error) []metav1.StatusCause {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	return status.Status().Details.Causes
}

var index = regexp.MustCompile(`\[[^\]]*\]`)

// withoutIndex turns overrides[3] into overrides[].
func withoutIndex(field string) string { return index.ReplaceAllString(field, "[]") }

func client(t *testing.T) dynamic.ResourceInterface {
	t.Helper()
	c, err := dynamic.NewForConfig(server.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return c.Resource(v1alpha1.GroupVersion.WithResource("gpunodeclasses"))
}
