package snapshot_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// imageFor returns an image for the architecture, for machines with or without GPUs.
func imageFor(id, arch string, gpus corev1.NodeSelectorOperator) facts.Image {
	return facts.Image{ID: id, Requirements: []corev1.NodeSelectorRequirement{
		{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{arch}},
		{Key: "karpenter.k8s.aws/instance-gpu-count", Operator: gpus},
	}}
}

func TestPreflightRefusesLaunchesThatCannotSucceed(t *testing.T) {
	t.Parallel()
	const exists, not = corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist
	for name, tc := range map[string]struct {
		state facts.NodeClassState
		// open is how many of the offerings of g4dn.xlarge, in two zones, may be launched.
		open    int
		message string
		problem string
	}{
		"a node class without status":        {facts.NodeClassState{}, 2, "", ""},
		"subnets in all zones":               {facts.NodeClassState{Subnets: map[string]string{"subnet-a": "us-east-1a", "subnet-b": "us-east-1b"}}, 2, "", ""},
		"a zone without a subnet":            {facts.NodeClassState{Subnets: map[string]string{"subnet-a": "us-east-1a"}}, 1, `EC2NodeClass "gpu" has no subnet in zone us-east-1b: add one`, ""},
		"no zone has a subnet":               {facts.NodeClassState{Subnets: map[string]string{"subnet-c": "us-east-1c"}}, 0, `EC2NodeClass "gpu" has no subnet in zone us-east-1`, "NoSubnet"},
		"an image for them among others":     {facts.NodeClassState{Images: []facts.Image{imageFor("ami-1", "arm64", exists), imageFor("ami-2", "amd64", exists)}}, 2, "", ""},
		"an image of another architecture":   {facts.NodeClassState{Images: []facts.Image{imageFor("ami-1", "arm64", exists)}}, 0, `EC2NodeClass "gpu" has no image for g4dn.xlarge (amd64, with GPUs)`, "NoImage"},
		"an image for machines without GPUs": {facts.NodeClassState{Images: []facts.Image{imageFor("ami-1", "amd64", not)}}, 0, `has no image for g4dn.xlarge`, "NoImage"},
		"an image for anything":              {facts.NodeClassState{Images: []facts.Image{{ID: "ami-1"}}}, 2, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge")(&c.NodePools[0])
			tc.state.Ready, tc.state.InstanceTypes = true, Types()
			c.NodeClasses[NodeClassRef] = tc.state
			c.Pods = Pods("web", 1)
			view := snapshot.Build(c)
			open := 0
			for _, o := range view.Snapshot.Offerings {
				switch {
				case o.Unavailable == nil:
					open++
				case o.Unavailable.Reason != planner.ReasonUnavailable || !strings.Contains(o.Unavailable.Message, tc.message):
					t.Errorf("%s is refused: %+v, want %q", o.Zone, o.Unavailable, tc.message)
				}
			}
			if open != tc.open {
				t.Errorf("%d offerings may be launched, want %d", open, tc.open)
			}
			i := slices.IndexFunc(view.Pools[0].Problems, func(p snapshot.Problem) bool { return p.Condition == karpv1.ConditionTypeNodeClassReady })
			if got := i >= 0; got != (tc.problem != "") || got && (view.Pools[0].Problems[i].Reason != tc.problem || !strings.Contains(view.Pools[0].Problems[i].Message, tc.message)) {
				t.Errorf("problems: %+v, want %q", view.Pools[0].Problems, tc.problem)
			}
			plan := solve.Plan(view.Snapshot)
			if got := len(plan.Launches); got != min(1, tc.open) {
				t.Errorf("%d launches", got)
			}
			if tc.open == 0 && !strings.Contains(plan.Unplaced[0].Message, tc.message) {
				t.Errorf("the pod is told %q", plan.Unplaced[0].Message)
			}
		})
	}
}
