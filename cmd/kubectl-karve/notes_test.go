package main

import (
	"slices"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

func TestExplainTellsThatAPlanTookLonger(t *testing.T) {
	t.Parallel()
	const message = "a plan took 1.8s instead of 200ms, because its pods have 300 different requests"
	for name, c := range map[string]struct {
		is      metav1.ConditionStatus
		message string
		want    []string
	}{
		"a plan that took longer":        {metav1.ConditionTrue, message, []string{message}},
		"plans that took the usual time": {metav1.ConditionTrue, "", nil},
		"objects that were set aside":    {metav1.ConditionFalse, "step view took too long", nil},
	} {
		cluster := snapshottest.Shared()
		cluster.NodePools[0].Status.Conditions = []status.Condition{{Type: v1alpha1.ConditionPlanningHealthy, Status: c.is, Message: c.message}}
		if got := planningNotes(cluster); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
