package gather

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

func TestUnknownFieldsAreReportedByPath(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec  string
		typed any
		want  []string
	}{
		"all fields of a NodePool are known": {`{
			"weight": 3, "replicas": 1, "limits": {"cpu": "1", "nvidia.com/gpu": 3},
			"disruption": {"consolidateAfter": "30s", "consolidationPolicy": "WhenEmpty", "budgets": [{"nodes": "1", "reasons": ["Empty"], "schedule": "@daily", "duration": "1h"}]},
			"template": {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": {
				"expireAfter": "Never", "terminationGracePeriod": "1h", "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
				"requirements": [{"key": "a", "operator": "In", "values": ["b"], "minValues": 1}],
				"taints": [{"key": "a", "value": "b", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}], "startupTaints": [{"key": "a", "effect": "NoSchedule"}]
			}}}`, &karpv1.NodePoolSpec{}, nil},
		"some fields of a NodePool are unknown": {
			`{
			"priority": 3, "disruption": {"consolidateAfter": "30s", "replaceFirst": {"spot": true}, "budgets": [{"nodes": "1"}, {"nodes": "1", "zone": "a"}]},
			"template": {"metadata": {"finalizers": []}, "spec": {"kubelet": {"maxPods": 3}, "requirements": [{"key": "a", "operator": "In", "weight": 1}]}}}`,
			&karpv1.NodePoolSpec{},
			[]string{
				"spec.disruption.budgets[1].zone", "spec.disruption.replaceFirst", "spec.priority", "spec.template.metadata.finalizers", "spec.template.spec.kubelet",
				"spec.template.spec.requirements[0].weight",
			},
		},
		"fields of a GPUNodeClass": {
			`{"sharing": {"strategy": "TimeSlicing", "replicas": 3, "overrides": [{"gpuName": "t4", "replicas": 3, "memory": "1Gi"}]}, "queue": "a"}`,
			&v1alpha1.GPUNodeClassSpec{},
			[]string{"spec.queue", "spec.sharing.overrides[0].memory"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var spec any
			if err := json.Unmarshal([]byte(c.spec), &spec); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, unknownIn(spec, c.typed)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if got := unknownIn(nil, &karpv1.NodePoolSpec{}); got != nil {
		t.Errorf("a nil spec has the unknown fields %v", got)
	}
}
