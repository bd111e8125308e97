package advice

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// bursts returns a scenario of a pool with pods that begin in minutes, each with two replicas.
func bursts(minutes ...int) *scenario {
	w := Workload{Namespace: "ml", Kind: "Deployment", Name: "chat", Pool: "gpu-shared"}
	for _, m := range minutes {
		w.Runs = append(w.Runs, Run{From: time.Duration(m) * time.Minute, To: 48 * time.Hour})
	}
	two := corev1.ResourceList{v1alpha1.ResourceGPUShared: resource.MustParse("2")}
	pod := corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: two, Limits: two}}}}}
	return &scenario{cluster: *snapshottest.Shared(), workloads: []Workload{w}, templates: []corev1.Pod{pod}, end: 48 * time.Hour}
}

func TestABurstIsOfPodsThatBeginTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		minutes []int
		peak    int64
		began   int
	}{
		{nil, 0, 0}, {[]int{0, 0, 0}, 0, 0}, {[]int{0, 60, 120}, 2, 2}, {[]int{60, 65, 69}, 6, 3}, {[]int{60, 65, 70}, 4, 3}, {[]int{600, 60, 604, 606, 65}, 6, 5},
	} {
		if peak, began := bursts(c.minutes...).largestBurst("gpu-shared"); peak != c.peak || began != c.began {
			t.Errorf("%v: a burst of %d among %d, want %d among %d", c.minutes, peak, began, c.peak, c.began)
		}
	}
	if peak, _ := bursts(60, 61).largestBurst("other"); peak != 0 {
		t.Errorf("a burst of %d in a pool without pods", peak)
	}
}

func TestHeadroomThatNoBurstNeedsIsLowered(t *testing.T) {
	t.Parallel()
	nightly := v1alpha1.Headroom{Replicas: 40, Schedule: "0 7 * * mon-fri", Duration: "10h"}
	for name, c := range map[string]struct {
		headroom []v1alpha1.Headroom
		minutes  []int
		end      time.Duration
		do, note string
		// patch is the patch, and left how many entries stay.
		patch string
		left  int
	}{
		"none is configured":       {nil, []int{60}, 48 * time.Hour, "", "", "", 0},
		"only with a schedule":     {[]v1alpha1.Headroom{nightly}, []int{60}, 48 * time.Hour, "", "", "", 1},
		"a burst needs less":       {[]v1alpha1.Headroom{{Replicas: 10}}, []int{60, 61}, 48 * time.Hour, "keep 4 instead of 10 replicas free", "", "spec:\n  headroom:\n  - replicas: 4\n", 1},
		"no burst at all":          {[]v1alpha1.Headroom{{Replicas: 10}}, []int{0}, 48 * time.Hour, "keep no replicas free, instead of 10", "", "spec:\n  headroom: null\n", 0},
		"another one has a time":   {[]v1alpha1.Headroom{nightly, {Replicas: 10}}, []int{0}, 48 * time.Hour, "keep no replicas free, instead of 10", "", "spec:\n  headroom:\n  - duration: 10h\n    replicas: 40\n    schedule: 0 7 * * mon-fri\n", 1},
		"it is as large as needed": {[]v1alpha1.Headroom{{Replicas: 4}}, []int{60, 61}, 48 * time.Hour, "", "", "", 1},
		"it is too small":          {[]v1alpha1.Headroom{{Replicas: 3}}, []int{60, 61}, 48 * time.Hour, "", "the headroom of GPUNodeClass gpu-shared is 3 replicas, and pods with 4 began within 10m in NodePool gpu-shared", "", 1},
		"the range is too short":   {[]v1alpha1.Headroom{{Replicas: 10}}, []int{60, 61}, 23 * time.Hour, "", "", "", 1},
	} {
		sc := bursts(c.minutes...)
		sc.end = c.end
		sc.cluster.GPUNodeClasses[0].Spec.Headroom = c.headroom
		got, note, ok := sc.lessHeadroom(&sc.cluster.GPUNodeClasses[0])
		if ok != (c.do != "") || got.Do != c.do || !strings.HasPrefix(note, c.note) || (note == "") != (c.note == "") {
			t.Errorf("%s: %q, %q, %t", name, got.Do, note, ok)
		}
		if !ok {
			continue
		}
		if after := sc.changed([]change{got}).cluster.GPUNodeClasses[0].Spec.Headroom; len(after) != c.left || got.Patches[0].YAML != c.patch || len(got.Risks) == 0 || len(got.Evidence) == 0 {
			t.Errorf("%s: after it %+v, with %q", name, after, got.Patches)
		}
		if len(sc.cluster.GPUNodeClasses[0].Spec.Headroom) != len(c.headroom) {
			t.Errorf("%s: the scenario has changed", name)
		}
	}
}

func TestOnlyEarlyExpiryIsAdvisedAgainst(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		now  string
		end  time.Duration
		want string
	}{
		"often": {"12h", 168 * time.Hour, "raise expireAfter from 12h to 168h"}, "never": {"Never", 168 * time.Hour, ""}, "once in the range": {"100h", 168 * time.Hour, ""},
		"as by default": {"720h", 2000 * time.Hour, ""}, "twice as often as by default": {"360h", 2000 * time.Hour, "raise expireAfter from 360h to 720h"},
	} {
		sc := bursts(60)
		sc.end = c.end
		sc.cluster.NodePools[0].Spec.Template.Spec.ExpireAfter = karpv1.MustParseNillableDuration(c.now)
		got := sc.expiries(map[string]float64{"gpu-shared": 42})
		if len(got) == 0 && c.want == "" {
			continue
		}
		if len(got) != 1 || got[0].Do != c.want || got[0].Evidence[1] != "42 pods moved because their machine was about to expire" {
			t.Errorf("%s: %+v", name, got)
			continue
		}
		after := sc.changed([]change{got[0]})
		if d := after.cluster.NodePools[0].Spec.Template.Spec.ExpireAfter.Duration; d == nil || !strings.HasSuffix(c.want, hoursOf(*d)) || *sc.cluster.NodePools[0].Spec.Template.Spec.ExpireAfter.Duration >= *d {
			t.Errorf("%s: %v after it", name, d)
		}
	}
	sc := bursts(60)
	sc.workloads[0].Pool, sc.end = "other", 168*time.Hour
	sc.cluster.NodePools[0].Spec.Template.Spec.ExpireAfter = karpv1.MustParseNillableDuration("1h")
	if got := sc.expiries(nil); got != nil {
		t.Errorf("a pool without pods: %+v", got)
	}
}

// TestAWorkloadSharesOnlyWhereThatIsSafe moves a workload with whole GPUs to a pool with shared ones.
func TestAWorkloadSharesOnlyWhereThatIsSafe(t *testing.T) {
	t.Parallel()
	whole := v1alpha1.GPUNodeClass{}
	whole.Name, whole.Spec.Sharing = "own", v1alpha1.Sharing{Strategy: v1alpha1.StrategyNone}
	used := func(pool string, busy float64) Workload {
		use := func(of float64) Use { return Use{Samples: 500, Mean: of / 2, P95: of, Max: of} }
		return Workload{
			Namespace: "ml", Kind: "Deployment", Name: pool, Pool: pool, Pods: 1, Most: 1, Runs: []Run{{To: 48 * time.Hour}},
			GPU: GPU{Busy: use(busy), Bytes: use(1 << 30), Share: use(0.07)},
		}
	}
	one := corev1.ResourceList{v1alpha1.ResourceGPU: resource.MustParse("1")}
	for name, c := range map[string]struct {
		busy float64
		edit func(sc *scenario)
		want bool
	}{
		"it uses little": {0.02, func(*scenario) {}, true},
		"it is too busy": {0.6, func(*scenario) {}, false},
		"it requests two GPUs": {0.02, func(sc *scenario) {
			r := sc.templates[1].Spec.Containers[0].Resources
			r.Limits[v1alpha1.ResourceGPU], r.Requests[v1alpha1.ResourceGPU] = resource.MustParse("2"), resource.MustParse("2")
		}, false},
		"its use is not known":        {0.02, func(sc *scenario) { sc.workloads[1].GPU.Bytes.Samples = 0 }, false},
		"the others' is not known":    {0.02, func(sc *scenario) { sc.workloads[0].GPU.Bytes.Samples = 0 }, false},
		"nothing can patch it":        {0.02, func(sc *scenario) { sc.workloads[1].Kind = "PyTorchJob" }, false},
		"the GPUs of the pool differ": {0.02, func(sc *scenario) { sc.workloads[1].Pool = "elsewhere" }, false},
		"it chooses its nodes": {0.02, func(sc *scenario) {
			sc.templates[1].Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}
		}, false},
	} {
		sc := bursts(0)
		sc.workloads = []Workload{used("gpu-shared", 0.05), used("own", c.busy)}
		pod := corev1.Pod{Spec: corev1.PodSpec{
			NodeSelector: map[string]string{karpv1.NodePoolLabelKey: "own", "zone": "a"},
			Containers:   []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: one.DeepCopy(), Limits: one.DeepCopy()}}},
		}}
		sc.templates = append(sc.templates, pod)
		own := *sc.cluster.NodePools[0].DeepCopy()
		own.Name, own.Spec.Template.Spec.NodeClassRef.Name = "own", "own"
		sc.cluster.NodePools, sc.cluster.GPUNodeClasses = append(sc.cluster.NodePools, own), append(sc.cluster.GPUNodeClasses, whole)
		sites := []site{
			{class: &sc.cluster.GPUNodeClasses[0], pools: []string{"gpu-shared"}, members: []int{0}, memory: 15 << 30},
			{class: &sc.cluster.GPUNodeClasses[1], pools: []string{"own", "elsewhere"}, members: []int{1}, memory: 15 << 30},
		}
		c.edit(sc)
		all := sc.shares(sites, map[string][]string{"gpu-shared": {"t4"}, "own": {"t4"}, "elsewhere": {"a10g"}}, nil)
		if (len(all) == 1) != c.want {
			t.Errorf("%s: %+v", name, all)
		}
		if len(all) != 1 {
			continue
		}
		after := sc.changed(all).templates[1]
		if _, still := after.Spec.Containers[0].Resources.Limits[v1alpha1.ResourceGPU]; still || facts.GPURequestOf(&after).Replicas != 1 || after.Spec.NodeSelector[karpv1.NodePoolLabelKey] != "gpu-shared" || after.Spec.NodeSelector["zone"] != "a" {
			t.Errorf("%s: %+v", name, after.Spec)
		}
		if before := sc.templates[1].Spec.Containers[0].Resources.Limits; len(before) != 1 || before.Name(v1alpha1.ResourceGPU, resource.DecimalSI).Value() != 1 {
			t.Errorf("%s: the scenario has changed: %v", name, before)
		}
		if len(sites[0].incoming) != 1 || all[0].Namespace != "ml" || !strings.Contains(all[0].Patches[0].YAML, "nvidia.com/gpu: null") {
			t.Errorf("%s: %+v", name, all[0].Change)
		}
	}
}
