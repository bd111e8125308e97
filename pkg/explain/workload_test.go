package explain

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func TestTheBriefStateIsThatOfTheAnswer(t *testing.T) {
	t.Parallel()
	c := with(limited(v1alpha1.ResourceGPU, "2"), machine("a", 3), pods(Pods("w", 12)...), pods(Pod("large", Asking("cpu", "300m", v1alpha1.ResourceGPUShared, "99")), Pod("other", Asking("cpu", "1")),
		Pod("untried", func(p *corev1.Pod) { p.Status.Conditions = nil }), Pod("ended", Running("a"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })))
	x := explainer(c)
	now := x.planned()
	for i := range c.Pods {
		got, err := x.Pod(c.Pods[i].Namespace, c.Pods[i].Name)
		if state, reason := briefState(&now, &c.Pods[i]); err != nil || state != got.State || reason != got.Reason {
			t.Errorf("%s is briefly %s for %q, and %s for %q, %v", got.Pod, state, reason, got.State, got.Reason, err)
		}
	}
}

func TestAWorkloadIsExplainedByItsPods(t *testing.T) {
	t.Parallel()
	of := func(kind, name string) func(*corev1.Pod) { return OwnedBy("apps/v1", kind, name) }
	c := with(limited(v1alpha1.ResourceGPU, "1"), machine("a", 4, of("ReplicaSet", "web-5d4f8c")), pods(Pods("b", 9, of("ReplicaSet", "web-5d4f8c"))...),
		pods(Pod("c", of("ReplicaSet", "web-api-5d4f8c")), Pod("d", of("Job", "web")), Pod("e", of("Job", "web-29384756")), Pod("f", of("Job", "web-29384757")), Pod("g", of("PyTorchJob", "web"))))
	got, err := explainer(c).Workload("Deployment", "default", "web")
	if err != nil || got.Pods != 13 || len(got.Groups) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	if g := got.Groups[0]; g.State != PodWaits || g.Reason != planner.ReasonLimitReached || g.Example.Reason != g.Reason || len(g.Example.Pools) != 1 {
		t.Errorf("first %+v", g)
	}
	if n := got.Groups[0].Count + got.Groups[1].Count; got.Groups[1].State != PodFits || got.Groups[2].State != PodRuns || got.Groups[2].Count != 4 || n != 9 {
		t.Errorf("%+v", got.Groups)
	}
	if text := got.Text(c.Now, false); !strings.HasPrefix(text, "Deployment default/web   13 pods: 3 Waiting (LimitReached), 6 HasRoom, 4 Running\n\ndefault/b-") {
		t.Errorf("%s", text)
	}
	if job, err := explainer(c).Workload("Job", "default", "web"); err != nil || job.Pods != 1 {
		t.Errorf("the Job is %+v, %v", job, err)
	}
	for kind, want := range map[string]int{"CronJob": 2, "PyTorchJob": 1} {
		if got, err := explainer(c).Workload(kind, "default", "web"); err != nil || got.Pods != want {
			t.Errorf("the %s is %+v, %v", kind, got, err)
		}
	}
	x := explainer(c)
	if n := len(x.OwnersIn("default")); n != 6 || len(x.OwnersIn("other")) != 0 {
		t.Errorf("%d owners", n)
	}
	if set, err := x.Workload("JobSet", "default", "sweep", Owner{"apps/v1", "Job", "web"}, Owner{"apps/v1", "Job", "web-29384756"}); err != nil || set.Pods != 2 || set.Kind != "JobSet" {
		t.Errorf("the JobSet is %+v, %v", set, err)
	}
	if _, err := explainer(c).Workload("StatefulSet", "default", "web"); err == nil || !strings.Contains(err.Error(), "no pods of StatefulSet default/web exist") {
		t.Error(err)
	}
}
