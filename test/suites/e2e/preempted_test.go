package e2e

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"karve.sh/karve/test/harness/cluster"
)

// TestGroupPreemptsAnother has its own cluster because it stops what ends pods. A group of high priority preempts a running group, once in a pool without a limit, and once in
// a pool whose limit is reached.
func TestGroupPreemptsAnother(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	w := groupWorld(t)
	high := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}
	if err := w.api.Create(t.Context(), high); err != nil {
		t.Fatal(err)
	}
	open, full := w.groupScene(t, "preempted", 0), w.groupScene(t, "preempted-full", 2)
	both := []*scene{open, full}
	for _, s := range both {
		s.job("low", 20)
	}
	for _, s := range both {
		s.untilRunning(20)
	}
	if err := w.StopComponent(cluster.KWOK); err != nil {
		t.Fatal(err)
	}
	for _, s := range both {
		s.urgentJob("urgent", high.Name, 20)
	}
	for _, s := range both {
		s.until(enough, "the scheduler has preempted the group", func() (bool, string) {
			leaving, nominated := 0, 0
			for _, pod := range s.pods() {
				if pod.DeletionTimestamp != nil {
					leaving++
				}
				if pod.Labels["job"] == "urgent" && pod.Status.NominatedNodeName != "" {
					nominated++
				}
			}
			return leaving == 20 && nominated == 20, fmt.Sprintf("%d pods end, %d are nominated", leaving, nominated)
		})
	}
	open.stays(10*time.Second, "no machine is launched for the group that waits for others to end", func() (bool, string) {
		return len(open.claims()) == 2 && len(full.claims()) == 2, lines(open.claims()) + lines(full.claims())
	})
	if err := w.StartComponent(t.Context(), cluster.KWOK); err != nil {
		t.Fatal(err)
	}

	// A controller creates the preempted pods again.
	for _, s := range both {
		s.until(enough, "the preempted pods are gone", func() (bool, string) { return len(s.pods()) == 20, fmt.Sprint(len(s.pods())) })
		s.members("low", 20, 40)
	}
	for _, s := range both {
		s.until(enough, "the urgent job runs", func() (bool, string) { return s.runningOf("urgent") == 20, fmt.Sprint(s.runningOf("urgent")) })
		s.wantTogether("urgent")
	}
	open.untilRunning(40)
	if n := len(open.claims()); n != 4 {
		t.Errorf("%d machines for two jobs that fill two each:\n%s", n, lines(open.claims()))
	}
	full.untilEvent("Pod", "low-20", "GroupDoesNotFit", "needs a place for 20 pods at once, and there is room for 0")
	full.stays(5*time.Second, "no machine is launched for the preempted group", func() (bool, string) {
		return len(full.claims()) == 2 && full.runningOf("low") == 0, lines(full.claims())
	})
}

// urgentJob is job with a priority.
func (s *scene) urgentJob(name, priority string, n int) {
	s.t.Helper()
	group := s.groups.object(name, n)
	group.SetNamespace(s.name)
	if err := unstructured.SetNestedField(group.Object, priority, "spec", "priorityClassName"); err != nil {
		s.t.Fatal(err)
	}
	s.create(group)
	s.members(name, 0, n, func(spec *corev1.PodSpec) { spec.PriorityClassName = priority })
}
