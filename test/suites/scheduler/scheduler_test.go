package scheduler_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/test/harness/scheduler"
)

func start(t *testing.T) *scheduler.Filter {
	t.Helper()
	f, err := scheduler.Start(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// seeds returns how many scenarios to draw.
func seeds(t *testing.T) uint64 {
	t.Helper()
	value := os.Getenv("KARVE_SEEDS")
	if value == "" {
		return 1500
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestSchedulerAgreesWithPlansForRandomScenarios(t *testing.T) {
	f := start(t)
	found, placed, refused := map[string]int{}, map[string]int{}, map[string]int{}
	for seed := range seeds(t) {
		s := scheduler.Generate(seed)
		outcome, err := f.Judge(s)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		count(outcome, placed, refused)
		if len(outcome.Complaints) == 0 {
			continue
		}
		kind := outcome.Complaints[0].Kind
		if found[kind]++; found[kind] > 1 {
			continue // One failure of each kind is enough.
		}
		smaller := scheduler.Shrink(s, func(s *scheduler.Scenario) bool { return f.Complains(s, kind) })
		t.Errorf("seed %d: %s", seed, describe(t, f, smaller))
	}
	t.Logf("pods with a place, by what they ask for: %v", placed)
	t.Logf("pods without one: %v", refused)
	if len(found) > 0 {
		t.Logf("complaints: %v", found)
	}
	for _, ask := range asks {
		if placed[ask.name] == 0 || refused[ask.name] == 0 {
			t.Errorf("%d pods with %s have a place, %d have none: nothing was tested", placed[ask.name], ask.name, refused[ask.name])
		}
	}
}

// asks are the features of pods that must each occur among the placed and among the unplaced pods.
var asks = []struct {
	name string
	of   func(spec *corev1.PodSpec) bool
}{
	{"a GPU and nothing else", func(spec *corev1.PodSpec) bool {
		return spec.Affinity == nil && spec.NodeSelector == nil && spec.TopologySpreadConstraints == nil && spec.Volumes == nil
	}},
	{"a MIG instance", func(spec *corev1.PodSpec) bool {
		for name := range spec.Containers[0].Resources.Requests {
			if strings.HasPrefix(string(name), "nvidia.com/mig-") {
				return true
			}
		}
		return false
	}},
	{"a node selector", func(spec *corev1.PodSpec) bool { return len(spec.NodeSelector) > 0 }},
	{"required node affinity", func(spec *corev1.PodSpec) bool {
		a := spec.Affinity
		return a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
	}},
	{"spread over zones", spreads(corev1.LabelTopologyZone)},
	{"spread over machines", spreads(corev1.LabelHostname)},
	{"required pod affinity", func(spec *corev1.PodSpec) bool {
		a := spec.Affinity
		return a != nil && a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0
	}},
	{"required pod anti-affinity", func(spec *corev1.PodSpec) bool {
		a := spec.Affinity
		return a != nil && a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0
	}},
	{"a host port", func(spec *corev1.PodSpec) bool { return len(spec.Containers[0].Ports) > 0 }},
	{"a claimed volume", func(spec *corev1.PodSpec) bool {
		return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })
	}},
	{"an ephemeral volume", func(spec *corev1.PodSpec) bool {
		return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Ephemeral != nil })
	}},
	{"resources of the pod", func(spec *corev1.PodSpec) bool { return spec.Resources != nil }},
	{"init containers", func(spec *corev1.PodSpec) bool { return len(spec.InitContainers) > 0 }},
}

func spreads(key string) func(spec *corev1.PodSpec) bool {
	return func(spec *corev1.PodSpec) bool {
		return slices.ContainsFunc(spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
			return c.TopologyKey == key && c.WhenUnsatisfiable == corev1.DoNotSchedule
		})
	}
}

func count(outcome scheduler.Outcome, placed, refused map[string]int) {
	without := map[string]bool{}
	for _, u := range outcome.Plan.Unplaced {
		without[u.Pod] = true
	}
	for name, pod := range outcome.View.Pods {
		for _, ask := range asks {
			switch {
			case !ask.of(&pod.Spec):
			case without[name]:
				refused[ask.name]++
			default:
				placed[ask.name]++
			}
		}
	}
}

func describe(t *testing.T, f *scheduler.Filter, s *scheduler.Scenario) string {
	t.Helper()
	data, err := s.YAML()
	if err != nil {
		t.Fatal(err)
	}
	outcome, err := f.Judge(s)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, c := range outcome.Complaints {
		text.WriteString(c.Kind + ": " + c.Text + "\n")
	}
	return text.String() + string(data)
}

func TestSchedulerAgreesWithPlansForKnownScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no scenarios: %v", err)
	}
	f := start(t)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := scheduler.ReadScenario(data)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		outcome, err := f.Judge(s)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, c := range outcome.Complaints {
			t.Errorf("%s: %s: %s", file, c.Kind, c.Text)
		}
	}
}
