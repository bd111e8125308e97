package gather

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// tenant adds the rules of one Deployment: its pods are on different nodes, and spread over nodes and zones.
func tenant(name string) func(*corev1.Pod) {
	own := &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	return func(pod *corev1.Pod) {
		snapshottest.WithLabels("app", name)(pod)
		for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelHostname} {
			pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
				TopologyKey: key, MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: own,
			})
		}
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: own}},
		}}
	}
}

// BenchmarkRoundForTenants measures everything that a round does before it acts after one pod has changed, with a budget of 200 ms: reading the changes, and
// building the view, the plan and its check. Deployments of three pods wait, each with its own rules.
func BenchmarkRoundForTenants(b *testing.B) {
	const budget = 200 * time.Millisecond
	all := metrics.New(prometheus.NewRegistry())
	for _, deployments := range []int{100, 300, 1_000} {
		b.Run(fmt.Sprint(deployments, " classes"), func(b *testing.B) {
			t := newTestbed()
			t.follow(b)
			var pods []corev1.Pod
			for i := range deployments {
				name := fmt.Sprintf("app-%05d", i)
				pods = append(pods, snapshottest.Pods(name, 3, tenant(name),
					snapshottest.Asking("cpu", fmt.Sprintf("%dm", 100+i%7*50), "memory", "1Gi", "nvidia.com/gpu.shared", "1"))...)
			}
			for i := range pods {
				t.cached.set(&pods[i])
			}
			if _, err := t.Cluster(b.Context()); err != nil {
				b.Fatal(err)
			}
			var looked, viewed, planned, most time.Duration
			for version := 1; b.Loop(); version++ {
				changed := pods[0].DeepCopy()
				changed.ResourceVersion = strconv.Itoa(version)
				t.cached.set(changed)
				began := time.Now()
				c, err := t.Cluster(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				look := time.Since(began)
				generation, err := (&planning.Planner{Clock: clock.RealClock{}, Metrics: all, Budget: budget}).Of(b.Context(), c)
				if err != nil {
					b.Fatal(err)
				}
				view := time.Since(began) - look
				if n := len(generation.View.Classes); n != deployments {
					b.Fatalf("%d classes", n)
				}
				if err := generation.Plan(b.Context()).Err; err != nil {
					b.Fatal(err)
				}
				took := time.Since(began)
				looked, viewed, planned, most = looked+look, viewed+view, planned+took-look-view, max(most, took)
			}
			report := func(d time.Duration, unit string) { b.ReportMetric(float64(d.Milliseconds()), unit) }
			report(looked/time.Duration(b.N), "ms/look")
			report(viewed/time.Duration(b.N), "ms/view")
			report(planned/time.Duration(b.N), "ms/plan")
			report(most, "ms/longest")
		})
	}
}
