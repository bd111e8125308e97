package plan

import (
	"os"
	"path/filepath"
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

// explainsOwners asks for the pods of what owns a Job.
func (w *world) explainsOwners(t *testing.T) {
	const budget = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: sweep, namespace: default}\nspec: {minAvailable: 1, selector: {matchLabels: {app: none}}}\n"
	file := filepath.Join(t.TempDir(), "objects.yaml")
	apply := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		w.does(t, "apply", "-f", file)
	}
	apply(budget)
	uid := w.does(t, "get", "pdb", "sweep", "-o", "jsonpath={.metadata.uid}")
	apply("apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: sweep-workers\n  namespace: default\n  ownerReferences: [{apiVersion: policy/v1, kind: PodDisruptionBudget, name: sweep, controller: true, uid: " + uid + "}]\n" +
		"spec:\n  completions: 2\n  parallelism: 2\n  template:\n    spec:\n      restartPolicy: Never\n      nodeSelector: {never: there}\n" +
		"      containers: [{name: main, image: main, resources: {limits: {nvidia.com/gpu.shared: 1}}}]\n")
	w.untilWaiting(t, 2)
	const types = "--instance-types=test/harness/cluster/instance-types.json"
	if out := w.does(t, "karve", "explain", "poddisruptionbudget/sweep", types); !strings.HasPrefix(out, "PodDisruptionBudget default/sweep   2 pods: 2 Waiting") {
		t.Errorf("got %s", out)
	}
	if out := w.does(t, "karve", "explain", "job/sweep-workers", types); !strings.HasPrefix(out, "Job default/sweep-workers   2 pods: 2 Waiting") {
		t.Errorf("got %s", out)
	}
	if _, errOut, ok := w.kubectl(t, w.cluster.Kubeconfig(), "karve", "explain", "poddisruptionbudget/other", types); ok || !strings.Contains(errOut, "no pods of PodDisruptionBudget default/other exist") {
		t.Errorf("got %s", errOut)
	}
	w.does(t, "delete", "job", "sweep-workers", "--cascade=foreground")
}
