package advice

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/replay"
	"karve.sh/karve/pkg/snapshot/facts"
)

const (
	// moments is the number of moments for which a change is planned in the search.
	moments = 24
	// step is the time between two decisions in a replay. The runs of pods are known no better.
	step = replay.Resolution
)

// scenario is a cluster with the pods of a time, which changes change.
type scenario struct {
	cluster facts.Cluster
	// workloads are what was measured, and templates the pods of the workload at the same index.
	workloads []Workload
	templates []corev1.Pod
	end       time.Duration
}

func (sc *scenario) changed(changes []change) *scenario {
	after := *sc
	after.cluster.GPUNodeClasses, after.cluster.NodePools = slices.Clone(sc.cluster.GPUNodeClasses), slices.Clone(sc.cluster.NodePools)
	after.templates = slices.Clone(sc.templates)
	for _, c := range changes {
		c.apply(&after)
	}
	return &after
}

// class returns the GPUNodeClass with the name, which the caller may change, or nil if there is none.
func (sc *scenario) class(name string) *v1alpha1.GPUNodeClass {
	for i := range sc.cluster.GPUNodeClasses {
		if c := &sc.cluster.GPUNodeClasses[i]; c.Name == name {
			*c = *c.DeepCopy()
			return c
		}
	}
	return nil
}

// template returns the template of a workload, which the caller may change.
func (sc *scenario) template(i int) *corev1.Pod {
	sc.templates[i] = *sc.templates[i].DeepCopy()
	return &sc.templates[i]
}

// trace returns the pods of the scenario. For each workload without a place for its pods, why says why.
func (sc *scenario) trace() (t replay.Trace, why []string) {
	var pods []replay.Pod
	for i := range sc.workloads {
		for _, r := range sc.workloads[i].Runs {
			pods = append(pods, replay.Pod{Shape: i, Arrives: r.From, Ends: r.To})
		}
	}
	more, held := sc.placeholders()
	pods = append(pods, held...)
	slices.SortStableFunc(pods, func(a, b replay.Pod) int {
		return cmp.Or(cmp.Compare(a.Arrives, b.Arrives), cmp.Compare(a.Shape, b.Shape))
	})
	t, why = replay.Of(&sc.cluster, slices.Concat(sc.templates, more), pods, sc.end)
	return t, why[:len(sc.templates)]
}

// impossible is the price of a scenario in which a pod has no place.
const impossible = planner.MicroUSD(math.MaxInt64)

func (sc *scenario) planned() planner.MicroUSD {
	t, why := sc.trace()
	if slices.ContainsFunc(why, func(w string) bool { return w != "" }) {
		return impossible
	}
	return replay.Planned(&t, moments)
}

func (sc *scenario) replayed() (planner.MicroUSD, error) {
	t, why := sc.trace()
	if slices.ContainsFunc(why, func(w string) bool { return w != "" }) {
		return impossible, nil
	}
	return replay.Total(&t, step)
}
