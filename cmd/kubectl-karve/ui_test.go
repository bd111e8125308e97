package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestUIReportsUnusableCluster(t *testing.T) {
	away := kubeconfigFor(t, "http://127.0.0.1:1")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"without Karpenter": {[]string{"--kubeconfig", apiServer(t, "karve.sh/v1alpha1")}, "the cluster has no kind NodePool.karpenter.sh: install Karpenter"},
		"without Karve":     {[]string{"--kubeconfig", apiServer(t, "karpenter.sh/v1")}, "the cluster has no kind GPUNodeClass.karve.sh: install Karve's CRD"},
		"unreachable":       {[]string{"--kubeconfig", away}, "connection refused"},
		"unknown context":   {[]string{"--kubeconfig", away, "--context", "other"}, `no cluster is selected: context "other" does not exist: select one with --kubeconfig or --context`},
		"forbidden":         {[]string{"--kubeconfig", apiServer(t, "karpenter.sh/v1", "karve.sh/v1alpha1")}, "reading ConfigMap karve-system/karve-catalog: "},
		"impossible port":   {[]string{"--kubeconfig", away, "--port", "70000"}, "--port must be between 0 and 65535, but is 70000"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			status := run(t.Context(), append([]string{"ui"}, c.args...), streams{strings.NewReader(""), &out, &errOut})
			message := errOut.String()
			if status != 1 || out.Len() > 0 || !strings.HasPrefix(message, "error: ") || strings.Count(message, "\n") != 1 || !strings.Contains(message, c.want) {
				t.Errorf("status %d, %s%s, want %q", status, &out, message, c.want)
			}
		})
	}
}
