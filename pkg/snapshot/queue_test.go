package snapshot_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// crowded returns a cluster in which one namespace has the given number of classes with rules of their own, and another namespace has one.
func crowded(classes int) *facts.Cluster {
	c := tenants(classes)
	for i := range c.Pods {
		c.Pods[i].Namespace = "crowd"
		c.Pods[i].CreationTimestamp = metav1.NewTime(Now.Add(-time.Hour))
	}
	c.Pods = append(c.Pods, Pod("late", Asking("cpu", "100m", "nvidia.com/gpu.shared", "1"), inApp("late"), spreadOver(zone, "late"), func(p *corev1.Pod) {
		p.CreationTimestamp = metav1.NewTime(Now)
	}))
	return c
}

// refused returns a plan in which all pods of the view are unplaced.
func refused(v *snapshot.View) planner.Plan {
	var p planner.Plan
	for name := range v.Pods {
		p.Unplaced = append(p.Unplaced, planner.Unplaced{Pod: name, Refusal: planner.NextRound})
	}
	return p
}

func TestThousandClassesWithOwnRulesFitOneRound(t *testing.T) {
	t.Parallel()
	if v := snapshot.Build(tenants(1000)); len(v.Postponed) > 0 || len(v.Classes) != 1000 {
		t.Errorf("%d classes are planned for, %d pods wait for the next round", len(v.Classes), len(v.Postponed))
	}
}

// TestPodsWithHundredsOfTermsStayWithinTimeBudget uses 60 pods with 400 terms each. Each term has its own selector, which matches one of the pods.
func TestPodsWithHundredsOfTermsStayWithinTimeBudget(t *testing.T) {
	t.Parallel()
	const pods, terms, budget = 60, 400, 200 * time.Millisecond
	c := tenants(10)
	for i := range pods {
		var own []corev1.PodAffinityTerm
		for j := range terms {
			app := metav1.LabelSelectorRequirement{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{fmt.Sprintf("many-%d", j%pods), fmt.Sprintf("nobody-%d-%d", i, j)}}
			own = append(own, corev1.PodAffinityTerm{TopologyKey: []string{host, zone}[i%2], LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{app}}})
		}
		c.Pods = append(c.Pods, Pod(fmt.Sprintf("hundreds-%d", i), Asking("cpu", "100m", "memory", "1Gi", "nvidia.com/gpu.shared", "1"), in("hundreds"), inApp(fmt.Sprintf("many-%d", i)), func(p *corev1.Pod) {
			affinityOf(p).PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: own}
		}))
	}
	c.Pods = append(c.Pods, Pod("plain", Asking("cpu", "100m", "memory", "1Gi", "nvidia.com/gpu.shared", "1")))
	had := map[string]bool{}
	for round := 0; len(had) < pods; round++ {
		if round > pods {
			t.Fatalf("%d of %d pods had a turn in %d rounds", len(had), pods, round)
		}
		started := time.Now()
		v := snapshot.Build(c)
		read := time.Now()
		plan := solve.Solver{Stop: func() bool { return time.Since(read) >= budget }}.Plan(v.Snapshot)
		took := time.Since(started)
		t.Logf("round %d: %d classes, %d rules, read in %s, planned in %s", round, len(v.Classes), len(v.Rules), read.Sub(started), time.Since(read))
		if took > 50*budget { // On an idle machine, a round takes twice the budget.
			t.Fatalf("round %d took %s", round, took)
		}
		if err := check.Plan(v.Snapshot, plan); err != nil {
			t.Fatal(err)
		}
		if v.Pods["default/plain"] == nil {
			t.Fatalf("round %d: the pod without terms is not planned for", round)
		}
		for name, pod := range v.Pods {
			if pod.Namespace == "hundreds" {
				had[name] = true
			}
		}
		c.Queue = v.NextQueue(c.Queue, refused(&v))
	}
}

// A pod that cannot be placed does not delay others forever, and a namespace with many classes does not delay other namespaces.
func TestEveryClassIsPlannedWithinFewRounds(t *testing.T) {
	t.Parallel()
	c := crowded(2300)
	var turns facts.ClassQueue
	had := map[string]int{}
	for round := range 6 {
		c.Queue = turns
		v := snapshot.Build(c)
		if len(v.Classes) > 1001 || v.Pods["default/late"] == nil && round == 0 {
			t.Fatalf("round %d: %d classes, late among them: %t", round, len(v.Classes), v.Pods["default/late"] != nil)
		}
		for i := range v.Classes {
			had[v.Pods[v.Classes[i].Pods[0]].Labels["app"]]++
			if len(v.Classes[i].Pods) != 3 && v.Classes[i].Pods[0] != "default/late" {
				t.Fatalf("round %d: a class of %v is planned for in part", round, v.Classes[i].Pods)
			}
		}
		for _, pod := range v.Postponed {
			if v.Pods[pod.Namespace+"/"+pod.Name] != nil {
				t.Fatalf("round %d: %s is planned for and postponed", round, pod.Name)
			}
		}
		turns = v.NextQueue(turns, refused(&v))
	}
	for i := range 2300 {
		if n := had[fmt.Sprintf("app-%05d", i)]; n < 2 || n > 4 {
			t.Fatalf("class %d had %d turns in six rounds, want two or three", i, n)
		}
	}
}

// Pods that a plan has placed are in the next plan as well, until they run. Otherwise other pods would take their machines while these start.
func TestPlacedClassStaysInNextRound(t *testing.T) {
	t.Parallel()
	c := crowded(1200)
	first := snapshot.Build(c)
	c.Queue = first.NextQueue(nil, planner.Plan{})
	c.Pods = append(c.Pods, Pods("newer", 1, Asking("cpu", "100m", "nvidia.com/gpu.shared", "1"), inApp("newer"), spreadOver(zone, "newer"), spreadOver(host, "newer"), away(host, "newer"), func(p *corev1.Pod) {
		p.Namespace = "crowd"
	})...)
	second := snapshot.Build(c)
	for name := range first.Pods {
		if second.Pods[name] == nil {
			t.Fatalf("%s lost its turn", name)
		}
	}
	for name := range second.Pods {
		if second.Pods[name].Labels["app"] == "newer" {
			t.Error("a class that came later goes first")
		}
	}
}
