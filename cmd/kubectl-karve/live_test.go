package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// apiServer starts an API server that serves the API groups but no objects. It returns the path of its kubeconfig.
func apiServer(t *testing.T, groups ...string) string {
	t.Helper()
	var list []string
	resources := map[string]string{
		"karpenter.sh/v1":   `{"name": "nodepools", "kind": "NodePool"}`,
		"karve.sh/v1alpha1": `{"name": "gpunodeclasses", "kind": "GPUNodeClass"}`,
	}
	mux := http.NewServeMux()
	answer := func(path, text string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, text)
		})
	}
	for _, group := range groups {
		name, version, _ := strings.Cut(group, "/")
		list = append(list, fmt.Sprintf(`{"name": %q, "versions": [{"groupVersion": %q, "version": %q}], "preferredVersion": {"groupVersion": %q, "version": %q}}`, name, group, version, group, version))
		answer("/apis/"+group, fmt.Sprintf(`{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": %q, "resources": [%s]}`, group, resources[group]))
	}
	answer("/api", `{"kind": "APIVersions", "versions": ["v1"]}`)
	answer("/api/v1", `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": []}`)
	answer("/apis", `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [`+strings.Join(list, ",")+`]}`)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return kubeconfigFor(t, server.URL)
}

func kubeconfigFor(t testing.TB, url string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\ncurrent-context: c\n", url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestPlanReportsUnusableCluster(t *testing.T) {
	for name, c := range map[string]struct{ kubeconfig, want string }{
		"without Karpenter": {apiServer(t, "karve.sh/v1alpha1"), "error: the cluster has no kind NodePool.karpenter.sh: install Karpenter, or name manifests with -f\n"},
		"without Karve":     {apiServer(t, "karpenter.sh/v1"), "error: the cluster has no kind GPUNodeClass.karve.sh: install Karve's CRD, or name manifests with -f\n"},
		"unreachable":       {kubeconfigFor(t, "http://127.0.0.1:1"), "connection refused"},
		"forbidden":         {apiServer(t, "karpenter.sh/v1", "karve.sh/v1alpha1"), "error: reading ConfigMap karve-system/karve-catalog: "},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			status := run(t.Context(), []string{"plan", "--kubeconfig", c.kubeconfig}, streams{strings.NewReader(""), &out, &errOut})
			if status != 1 || out.Len() > 0 || !strings.Contains(errOut.String(), c.want) {
				t.Errorf("status %d, %s%s, want %q", status, &out, &errOut, c.want)
			}
		})
	}
}

func TestParseReplicas(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "[]", "7": "[7]", "2,4,8": "[2 4 8]", "1..4": "[1 2 3 4]", "128": "[128]", "8,2..4,3": "[8 2 3 4]", "5..5": "[5]",
	} {
		if got, err := parseReplicas(text); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "129", "-1", "4..2", "1..", "..4", "1...4", "a", "1,,2", " 1", "1..200", "9999999999999999999"} {
		if got, err := parseReplicas(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestManifestsComeFromAURL(t *testing.T) {
	pool, err := os.ReadFile("../../examples/two-pools/shared.yaml")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/shared.yaml" {
			http.NotFound(w, r)
			return
		}
		w.Write(pool)
	}))
	defer server.Close()
	for path, want := range map[string]struct {
		status      int
		out, errOut string
	}{
		"/shared.yaml": {0, "default/test-gpu-shared (10)", ""},
		"/other.yaml":  {1, "", "error: reading " + server.URL + "/other.yaml: the server answered 404 Not Found\n"},
	} {
		var out, errOut bytes.Buffer
		status := run(t.Context(), []string{"plan", "-f", server.URL + path}, streams{strings.NewReader(""), &out, &errOut})
		if status != want.status || !strings.Contains(out.String(), want.out) || want.errOut != "" && errOut.String() != want.errOut {
			t.Errorf("%s: status %d, %s%s", path, status, &out, &errOut)
		}
	}
	server.Close()
	var out, errOut bytes.Buffer
	if status := run(t.Context(), []string{"plan", "-f", server.URL}, streams{strings.NewReader(""), &out, &errOut}); status != 1 || strings.Count(errOut.String(), server.URL) != 1 {
		t.Errorf("a server that is not there: status %d, %s%s", status, &out, &errOut)
	}
}

func TestTheShellCompletesNoNameThatItWouldRun(t *testing.T) {
	t.Parallel()
	got := completable([]string{"b-1.x", "$(reboot)", "a`id`", "arn:aws:eks:us-east-1:123:cluster/a", "a b", "x\n", "u@c", ";", ""})
	if diff := cmp.Diff([]string{"arn:aws:eks:us-east-1:123:cluster/a", "b-1.x", "u@c"}, got); diff != "" {
		t.Error(diff)
	}
}

// rolloutServer starts an API server with two GPUImageRollouts. It returns the path of its kubeconfig.
func rolloutServer(t *testing.T) string {
	t.Helper()
	answers := map[string]string{
		"/api":                         `{"kind": "APIVersions", "versions": ["v1"]}`,
		"/api/v1":                      `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": true}, {"name": "nodes", "kind": "Node"}, {"name": "pods", "kind": "Pod", "namespaced": true}]}`,
		"/api/v1/nodes":                `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": [{"metadata": {"name": "b"}}, {"metadata": {"name": "a"}}]}`,
		"/api/v1/namespaces/team/pods": `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": [{"metadata": {"name": "train-0"}}]}`,
		"/apis":                        `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "karve.sh", "versions": [{"groupVersion": "karve.sh/v1alpha1", "version": "v1alpha1"}], "preferredVersion": {"groupVersion": "karve.sh/v1alpha1", "version": "v1alpha1"}}]}`,
		"/apis/karve.sh/v1alpha1":      `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "karve.sh/v1alpha1", "resources": [{"name": "gpuimagerollouts", "kind": "GPUImageRollout"}]}`,
		"/apis/karve.sh/v1alpha1/gpuimagerollouts":                 `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": [{"metadata": {"name": "gpu"}}, {"metadata": {"name": "arm"}}]}`,
		"/api/v1/namespaces/karve-system/configmaps/karve-catalog": `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "karve-catalog", "namespace": "karve-system"}, "data": {"controller": "v0.1.0"}}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(server.Close)
	return kubeconfigFor(t, server.URL)
}

func TestTheShellCompletesNames(t *testing.T) {
	kubeconfig := rolloutServer(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"rollout", "undo", "--kubeconfig", kubeconfig, ""}, "arm\ngpu\n:4\n"},
		{[]string{"rollout", "undo", "--kubeconfig", kubeconfig, "gpu", ""}, ":4\n"},
		{[]string{"rollout", "pause", "--kubeconfig", kubeconfigFor(t, "http://127.0.0.1:1"), ""}, ":4\n"},
		{[]string{"explain", "--kubeconfig", kubeconfig, ""}, "pod/\ndeployment/\njob/\ncronjob/\nstatefulset/\nnode/\n:6\n"},
		{[]string{"explain", "--kubeconfig", kubeconfig, "node/"}, "node/a\nnode/b\n:4\n"},
		{[]string{"explain", "--kubeconfig", kubeconfig, "-n", "team", "pod/"}, "pod/train-0\n:4\n"},
		{[]string{"explain", "--kubeconfig", kubeconfig, "-n", "other", "pod/"}, ":4\n"},
		{[]string{"explain", "--kubeconfig", kubeconfig, "node/a", ""}, ":4\n"},
		{[]string{"plan", "--kubeconfig", kubeconfig, "--context", ""}, "c\n:4\n"},
		{[]string{"doctor", ""}, ":4\n"},
		{[]string{"replay", ""}, ":0\n"},
		{[]string{"plan", "-o", ""}, "wide\njson\nyaml\n:4\n"},
		{[]string{"plan", "-f", ""}, "json\nyaml\nyml\n:8\n"},
	} {
		var out, errOut bytes.Buffer
		if status := run(t.Context(), append([]string{"__completeNoDesc"}, c.args...), streams{strings.NewReader(""), &out, &errOut}); status != 0 || out.String() != c.want {
			t.Errorf("%v: status %d, %q, want %q; %s", c.args, status, &out, c.want, &errOut)
		}
	}
	var out, errOut bytes.Buffer
	if status := run(t.Context(), []string{"completion", "bash"}, streams{strings.NewReader(""), &out, &errOut}); status != 0 || !strings.Contains(out.String(), "__start_kubectl-karve") {
		t.Errorf("status %d, %s", status, &errOut)
	}
}

func TestTheVersionsAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"both":          {[]string{"--kubeconfig", rolloutServer(t)}, "Controller: v0.1.0\n"},
		"data":          {[]string{"--kubeconfig", rolloutServer(t), "-o", "yaml"}, "controller: v0.1.0\n"},
		"the client's":  {[]string{"--client", "-o", "wide"}, "  commit "},
		"no controller": {[]string{"--kubeconfig", rolloutServer(t), "--karve-namespace", "x"}, "Controller: - (ConfigMap x/karve-catalog does not exist)\n"},
		"no cluster":    {[]string{"--kubeconfig", kubeconfigFor(t, "http://127.0.0.1:1")}, "connection refused"},
	} {
		var out, errOut bytes.Buffer
		status := run(t.Context(), append([]string{"version"}, c.args...), streams{strings.NewReader(""), &out, &errOut})
		if status != 0 || !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), "(devel)") || errOut.Len() > 0 {
			t.Errorf("%s: status %d, %s, %s; want %q", name, status, &out, &errOut, c.want)
		}
	}
}
