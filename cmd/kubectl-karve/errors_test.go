package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// forbidding starts an API server that serves all kinds that the verbs read, to nobody. It returns the path of its kubeconfig.
func forbidding(t *testing.T) string {
	t.Helper()
	return serving(t, func(w http.ResponseWriter, r *http.Request) {
		path := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // apis/GROUP/VERSION/RESOURCE/NAME, or api/VERSION/…
		group := ""
		if path[0] == "apis" {
			group, path = path[1], path[1:]
		}
		verb, scope, rest := "list", "at the cluster scope", path[2:]
		if rest[0] == "namespaces" && len(rest) > 1 {
			scope, rest = fmt.Sprintf("in the namespace %q", rest[1]), rest[2:]
		}
		if len(rest) > 1 {
			verb = "get"
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden,
			Message: fmt.Sprintf("%s is forbidden: User \"jane\" cannot %s resource %q in API group %q %s", rest[0], verb, rest[0], group, scope),
		})
	})
}

// serving starts an API server that says that it serves all kinds that the verbs read, and answers requests for objects with objects. It returns the path
// of its kubeconfig.
func serving(t *testing.T, objects http.HandlerFunc) string {
	t.Helper()
	resources := map[string]string{
		"/apis/karpenter.sh/v1":   `{"name": "nodepools", "kind": "NodePool"}, {"name": "nodeclaims", "kind": "NodeClaim"}`,
		"/apis/karve.sh/v1alpha1": `{"name": "gpunodeclasses", "kind": "GPUNodeClass"}, {"name": "gpuimagerollouts", "kind": "GPUImageRollout"}`,
		"/apis/apps/v1":           `{"name": "deployments", "kind": "Deployment", "namespaced": true}, {"name": "daemonsets", "kind": "DaemonSet", "namespaced": true}`,
		"/apis/storage.k8s.io/v1": `{"name": "storageclasses", "kind": "StorageClass"}, {"name": "csinodes", "kind": "CSINode"}`,
		"/api/v1": `{"name": "namespaces", "kind": "Namespace"}, {"name": "persistentvolumeclaims", "kind": "PersistentVolumeClaim", "namespaced": true}, {"name": "persistentvolumes", "kind": "PersistentVolume"}, ` +
			`{"name": "nodes", "kind": "Node"}, {"name": "pods", "kind": "Pod", "namespaced": true}, {"name": "configmaps", "kind": "ConfigMap", "namespaced": true}`,
	}
	mux := http.NewServeMux()
	answer := func(path, text string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, text)
		})
	}
	var groups []string
	for path, list := range resources {
		group := strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/")
		answer(path, fmt.Sprintf(`{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": %q, "resources": [%s]}`, group, list))
		if name, version, ok := strings.Cut(group, "/"); ok {
			groups = append(groups, fmt.Sprintf(`{"name": %q, "versions": [{"groupVersion": %q, "version": %q}], "preferredVersion": {"groupVersion": %q, "version": %q}}`, name, group, version, group, version))
		}
	}
	answer("/api", `{"kind": "APIVersions", "versions": ["v1"]}`)
	answer("/apis", `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [`+strings.Join(groups, ",")+`]}`)
	mux.HandleFunc("/", objects)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return kubeconfigFor(t, server.URL)
}

func TestEachVerbSaysInASentenceWhatIsMissing(t *testing.T) {
	forbidden, empty, gone := "--kubeconfig="+forbidding(t), "--kubeconfig="+apiServer(t), "--kubeconfig="+kubeconfigFor(t, "http://127.0.0.1:1")
	const (
		rights   = ": see docs/cli.md#permissions\n"
		overview = "error: forbidden: you may not list gpunodeclasses.karve.sh, nodeclaims.karpenter.sh, nodepools.karpenter.sh, nodes and pods" + rights
		plans    = "error: forbidden: you may not list csinodes.storage.k8s.io, daemonsets.apps, gpunodeclasses.karve.sh, namespaces, nodeclaims.karpenter.sh, nodepools.karpenter.sh, nodes, persistentvolumeclaims, persistentvolumes, pods and storageclasses.storage.k8s.io" + rights
	)
	for verb, want := range map[string]string{
		"plan": plans, "explain pod/a": plans, "explain node/a": plans,
		"inspect": overview, "inspect node-1": overview, "top nodes": overview, "top pods": overview, "pods": overview, "pods -n team": overview, "nodes --watch=false": overview,
		"rollout status":   "error: forbidden: you may not list gpuimagerollouts.karve.sh" + rights,
		"rollout status a": "error: forbidden: you may not get gpuimagerollouts.karve.sh" + rights,
		"rollout pause a":  "error: forbidden: you may not get gpuimagerollouts.karve.sh" + rights,
		"rollout undo a":   "error: forbidden: you may not get gpuimagerollouts.karve.sh" + rights,
	} {
		instead := ""
		if verb == "plan" {
			instead = ", or name manifests with -f"
		}
		for flags, want := range map[string]string{
			forbidden:                  want,
			empty:                      "error: the cluster has no kind NodePool.karpenter.sh: install Karpenter" + instead + "\n",
			gone:                       "error: the cluster at http://127.0.0.1:1 cannot be reached: dial tcp 127.0.0.1:1: connect: connection refused: select another one with --kubeconfig or --context" + instead + "\n",
			empty + " --context=other": "error: no cluster is selected: context \"other\" does not exist: select one with --kubeconfig or --context" + instead + "\n",
			"--kubeconfig=/none":       "error: no cluster is selected: stat /none: no such file or directory: select one with --kubeconfig or --context" + instead + "\n",
		} {
			var out, errOut bytes.Buffer
			status := run(t.Context(), append(strings.Fields(verb), strings.Fields(flags)...), streams{strings.NewReader(""), &out, &errOut})
			if status != 1 || out.Len() > 0 || errOut.String() != want {
				t.Errorf("%s %s: status %d\n%s%swant\n%s", verb, flags, status, &out, &errOut, want)
			}
		}
	}
	for flags, want := range map[string]string{
		forbidden:                  "you may not get ConfigMap karve-system/karve-catalog",
		gone:                       "the cluster at http://127.0.0.1:1 cannot be reached: dial tcp 127.0.0.1:1: connect: connection refused: select another one with --kubeconfig or --context",
		empty + " --context=other": `context "other" does not exist`,
	} {
		var out, errOut bytes.Buffer
		status := run(t.Context(), append([]string{"version"}, strings.Fields(flags)...), streams{strings.NewReader(""), &out, &errOut})
		if status != 0 || errOut.Len() > 0 || !strings.HasSuffix(out.String(), "\nController: - ("+want+")\n") {
			t.Errorf("version %s: status %d\n%s%swant %s", flags, status, &out, &errOut, want)
		}
	}
}

func TestErrorsOfOtherCausesKeepTheirText(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		errors.New(`a file says: cannot list resource "nodes" in API group ""`),
		fmt.Errorf("reading: %w", errors.Join(errors.New("one"), errors.New("another"))),
	} {
		if got := missingRights(err); got != "" {
			t.Errorf("%v: %s", err, got)
		}
	}
}
