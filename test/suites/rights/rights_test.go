package rights_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
	"karve.sh/karve/test/suites/rights"
)

// unseen are the rights that the tests may not use in every run, with the reasons why they are needed.
var unseen = map[string]string{
	"ClusterRole karve: patch events.events.k8s.io": "an event that occurs again within six minutes is patched, and which ones do is up to chance",
	"ClusterRole karve: update nodepools/finalizers.karpenter.sh": "the admission plugin OwnerReferencesPermissionEnforcement, which the test clusters have, asks for it " +
		"before it lets a NodeClaim in, and asks the authorizer rather than the API",
	"ClusterRole karve-ui: get nodeclaims.karpenter.sh": "a NodeClaim is read from the API server only while the informer does not show it, as after a start",
	"Role karve: update configmaps. karve-system":       "the catalog is written again when a price or a zone has changed, which none does while the tests run (pkg/controllers/publish has tests)",
	"Role karve-node: create events. default":           "the agent tells of GPUs that fail and of configurations that it refuses, for which its own tests play the API server (pkg/node)",
}

// folderVariable is the environment variable for the directory with the calls recorded in a complete run of the cluster tests.
const folderVariable = "KARVE_RIGHTS"

// TestRightsMatchRecordedCalls reads the calls that the clusters of all tests have recorded.
func TestRightsMatchRecordedCalls(t *testing.T) {
	folder := os.Getenv(folderVariable)
	if folder == "" {
		t.Skip("set " + folderVariable + " to the folder that " + cluster.CallsVariable + " named in a run of the cluster tests; make test-e2e does")
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no calls in %s: %v", folder, err)
	}
	var all cluster.Calls
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var calls cluster.Calls
		if err := json.Unmarshal(text, &calls); err != nil {
			t.Fatal(err)
		}
		all.Allowed, all.Denied = append(all.Allowed, calls.Allowed...), append(all.Denied, calls.Denied...)
	}
	granted, reasons := ofTheChart(t), unseen
	if testing.Short() {
		reasons = map[string]string{}
		for _, r := range granted {
			reasons[r.String()] = "a test that needs it may not have run"
		}
	}
	for _, wrong := range rights.Wrong(granted, all, reasons) {
		t.Error(wrong)
	}
}

// ofTheChart returns the rights of all service accounts of the chart, with all features enabled.
func ofTheChart(t *testing.T) []rights.Right {
	t.Helper()
	objects, err := chart.Chart{Name: "karve", Release: "karve", Namespace: karve.Namespace}.Template(t.Context(),
		"--set=controller.image.repository=registry.example.com/karve/controller,node.image.repository=registry.example.com/karve/node,imageRollouts.enabled=true,controller.metrics.secure=true,scheduler.enabled=true,ui.enabled=true,memoryAliases.gpuNodeClass=gpu-memory",
		"--kube-version=1.34.0") // Before 1.36, a webhook does what policies do later.
	if err != nil {
		t.Fatal(err)
	}
	all, err := rights.Of(objects)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestNoRightLeadsToRootOnNode checks what a stolen token could do with pods, secrets and RBAC objects.
func TestNoRightLeadsToRootOnNode(t *testing.T) {
	risky := []string{
		"*", "secrets", "serviceaccounts/token", "pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers", "nodes/proxy", "daemonsets", "deployments", "replicasets",
		"statefulsets", "jobs", "cronjobs", "mutatingwebhookconfigurations", "roles", "rolebindings", "clusterroles", "clusterrolebindings", "validatingadmissionpolicies", "validatingadmissionpolicybindings",
	}
	readOnly := []string{"get", "list", "watch"}
	for _, r := range ofTheChart(t) {
		writes := !slices.Contains(readOnly, r.Verb)
		if slices.Equal(r.Names, []string{"karve-memory-aliases"}) && (r.Resource == "secrets" || r.Resource == "mutatingwebhookconfigurations") {
			continue // The certificate of the webhook. A policy allows only a new CA, see TestWebhookDoesWhatPoliciesDo.
		}
		switch {
		case r.Verb == "*" || r.Group == "*", slices.Contains(risky, r.Resource) && (writes || r.Resource == "secrets"):
			t.Errorf("there is the right %q", r)
		case r.Resource == "pods" && writes && r.Namespace != karve.Checks:
			t.Errorf("pods may be changed where the pod security standard need not be restricted: %q", r)
		case r.Resource == "namespaces" && writes:
			t.Errorf("the pod security standard of a namespace may be changed: %q", r)
		}
	}
}

func TestUnneededAndMissingRightsAreFound(t *testing.T) {
	const user = "system:serviceaccount:karve-system:karve"
	all := []rights.Right{
		{Call: cluster.Call{User: user, Verb: "patch", Group: "karpenter.sh", Resource: "nodepools/status"}, Role: "ClusterRole karve"},
		{Call: cluster.Call{User: user, Verb: "list", Resource: "pods"}, Role: "ClusterRole karve"},
		{Call: cluster.Call{User: user, Verb: "create", Resource: "pods", Namespace: "checks"}, Role: "Role karve"},
		{Call: cluster.Call{User: user, Verb: "delete", Resource: "pods", Namespace: "checks"}, Role: "Role karve"},
	}
	calls := cluster.Calls{
		Allowed: []cluster.Call{
			{User: user, Verb: "list", Resource: "pods"},
			{User: user, Verb: "create", Resource: "pods", Namespace: "checks"},
			{User: user, Verb: "delete", Resource: "pods", Namespace: "default"},
			{User: "somebody", Verb: "patch", Group: "karpenter.sh", Resource: "nodepools/status"},
		},
		Denied: []cluster.Call{
			{User: user, Verb: "list", Resource: "secrets", Namespace: "default"},
			{User: "somebody", Verb: "list", Resource: "nodes"},
		},
	}
	want := []string{
		`nothing needs the right "ClusterRole karve: patch nodepools/status.karpenter.sh"`,
		`nothing needs the right "Role karve: delete pods. checks"`,
		`there is a reason for the right "Role karve: get leases. checks", which nobody has`,
		`there is no right to "system:serviceaccount:karve-system:karve: list secrets. default"`,
	}
	if diff := cmp.Diff(want, rights.Wrong(all, calls, map[string]string{"Role karve: get leases. checks": "words"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if wrong := rights.Wrong(all[1:3], calls, nil); len(wrong) != 1 {
		t.Errorf("%q", wrong)
	}
	if diff := cmp.Diff(want[2:3], rights.Wrong(all[1:3], cluster.Calls{Allowed: calls.Allowed}, map[string]string{"Role karve: get leases. checks": "words"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
