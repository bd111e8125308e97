package facts_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
)

// stating returns a pod of an owner with a throughput and other annotations.
func stating(text, apiVersion, kind string, others ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "a", Annotations: map[string]string{v1alpha1.ThroughputAnnotation: text},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "o", Controller: new(true)}},
	}}
	for _, key := range others {
		pod.Annotations[key] = "true"
	}
	return pod
}

func TestThroughputOfJobs(t *testing.T) {
	t.Parallel()
	got, err := facts.ThroughputOf(stating("t4=1, a10g=2.4,l40s=5.125 ,*=0.001", "batch/v1", "Job"))
	if diff := cmp.Diff(facts.Throughput{"t4": 1000, "a10g": 2400, "l40s": 5125, "*": 1}, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	if got.On("T4") != 1000 || got.On("h100") != 1 || (facts.Throughput{"t4": 1}).On("h100") != 0 {
		t.Errorf("%v", got)
	}
}

func TestThroughputCountsWhereTheNumberOfPodsFollowsTheWork(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		pod   *corev1.Pod
		wrong string
	}{
		"Job":                          {stating("t4=1", "batch/v1", "Job"), ""},
		"ReplicaSet":                   {stating("t4=1", "apps/v1", "ReplicaSet"), "is ignored, because no Job owns the pod"},
		"ReplicaSet, scaled":           {stating("t4=1", "apps/v1", "ReplicaSet", v1alpha1.FollowsLoadAnnotation), ""},
		"another kind named Job":       {stating("t4=1", "example.com/v1", "Job"), "is ignored"},
		"no pair":                      {stating("t4", "batch/v1", "Job"), `"t4" is no throughput: write the name`},
		"nothing":                      {stating("", "batch/v1", "Job"), `"" is no throughput`},
		"too exact":                    {stating("t4=1.0001", "batch/v1", "Job"), "at most three decimals"},
		"negative":                     {stating("t4=-1", "batch/v1", "Job"), "is no throughput"},
		"zero":                         {stating("t4=0.000", "batch/v1", "Job"), "greater than 0"},
		"twice":                        {stating("t4=1,t4=2", "batch/v1", "Job"), "it names t4 twice"},
		"too long":                     {stating(strings.Repeat("t", 600)+"=1", "batch/v1", "Job"), "longer than 128"},
		"wrong, and would not count":   {stating("t4=x", "apps/v1", "ReplicaSet"), "the pod is planned without it"},
		"pod without such annotations": {&corev1.Pod{}, ""},
	} {
		got, err := facts.ThroughputOf(tc.pod)
		if tc.wrong == "" && err != nil || tc.wrong != "" && (err == nil || got != nil || !strings.Contains(err.Error(), tc.wrong)) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
