package plan

import (
	"strings"
	"testing"
)

// explain asks why pods wait that Karve's controller would launch nodes for.
func (w *world) explain(t *testing.T) {
	t.Parallel()
	pod, _, _ := strings.Cut(w.does(t, "get", "pods", "-o", "name"), "\n")
	out := w.does(t, "karve", "explain", pod, "--instance-types=test/harness/cluster/instance-types.json")
	for _, want := range []string{"default/" + strings.TrimPrefix(pod, "pod/") + "   Planned", "wants 1 nvidia.com/gpu.shared", "gpu-shared   g4dn.xlarge"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if _, errOut, ok := w.kubectl(t, w.cluster.Kubeconfig(), "karve", "explain", "pod/no-such-pod"); ok || !strings.HasPrefix(errOut, "error: pod default/no-such-pod does not exist") {
		t.Errorf("a pod that does not exist: %s", errOut)
	}
}

// doctor checks a cluster in which Karve's CRDs are installed and its controller is not.
func (w *world) doctor(t *testing.T) {
	t.Parallel()
	out, errOut, ok := w.kubectl(t, w.cluster.Kubeconfig(), "karve", "doctor")
	if ok || !strings.Contains(errOut, "must be fixed") || !strings.Contains(out, "no Deployment of Karve's controller was found") {
		t.Errorf("an administrator gets %s%s", out, errOut)
	}
	// The CRDs are those of this version, and an administrator may read everything.
	if strings.Contains(out, "CustomResourceDefinition") || strings.Contains(out, "unknown  ") {
		t.Errorf("an administrator gets\n%s", out)
	}
	unprivileged, err := w.cluster.KubeconfigFor("nobody-at-all")
	if err != nil {
		t.Fatal(err)
	}
	if out, errOut, ok := w.kubectl(t, unprivileged, "karve", "doctor"); ok || !strings.Contains(out, "needs permission to list deployments.apps in all namespaces") || !strings.Contains(errOut, "nothing could be checked") {
		t.Errorf("a user without rights gets %s%s", out, errOut)
	}
}
