package facts_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/snapshot/facts"
)

func TestPodsBelongToTheWorkloadThatPeopleCreate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ kind, owner, hash, wantKind, wantName string }{
		"a pod without a controller":           {"", "", "", "Pod", "p"},
		"a Deployment":                         {"ReplicaSet", "serve-5d8f9b7c6", "5d8f9b7c6", "Deployment", "serve"},
		"a ReplicaSet":                         {"ReplicaSet", "serve", "", "ReplicaSet", "serve"},
		"a ReplicaSet with the hash of none":   {"ReplicaSet", "serve-x", "y", "ReplicaSet", "serve-x"},
		"a StatefulSet":                        {"StatefulSet", "db-28711230", "", "StatefulSet", "db-28711230"},
		"a CronJob":                            {"Job", "nightly-28711230", "", "CronJob", "nightly"},
		"a Job":                                {"Job", "train-7", "", "Job", "train-7"},
		"a Job with nothing before its digits": {"Job", "-28711230", "", "Job", "-28711230"},
		"a kind that Kubernetes does not know": {"PyTorchJob", "llm", "", "PyTorchJob", "llm"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"pod-template-hash": c.hash}}}
		if c.kind != "" {
			pod.OwnerReferences = []metav1.OwnerReference{{Kind: c.kind, Name: c.owner, Controller: new(true)}}
		}
		if kind, owner := facts.OwnerOf(pod); kind != c.wantKind || owner != c.wantName {
			t.Errorf("%s: %s/%s, want %s/%s", name, kind, owner, c.wantKind, c.wantName)
		}
	}
}
