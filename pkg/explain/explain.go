package explain

import (
	"slices"
	"strings"
	"sync"
	"time"

	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

// effort is the effort of all plans. It is enough to find cheap room, and small because one answer may need several plans.
const effort = solve.DefaultEffort / 10

// Settings are those of the controller that decide about nodes.
type Settings struct {
	// Evictions decides which pods can be evicted. With the zero value, no PodDisruptionBudget counts.
	Evictions karpenter.Evictions
	// Settle is the controller's --settle-duration.
	Settle time.Duration
	// Tolerations are how long unhealthy nodes are tolerated.
	Tolerations repair.Tolerations
}

// NewSettings returns the settings that a controller has published, without Evictions.
func NewSettings(of published.Settings) Settings {
	return Settings{
		Settle:      of.SettleDuration.Duration,
		Tolerations: repair.Tolerations{NotReady: of.NotReadyTimeout.Duration, GPUFault: of.GPUFaultTimeout.Duration, Replicas: of.ReplicasTimeout.Duration},
	}
}

// Explainer answers questions about one read of a cluster. It plans when it is first asked. It is safe for concurrent use.
type Explainer struct {
	cluster  *facts.Cluster
	settings Settings

	view func() snapshot.View
	// planned is the plan for the pending pods.
	planned func() attempt
	// judged has the disruption controller's verdicts.
	judged func() *judged
}

// New returns an Explainer of a cluster.
func New(c *facts.Cluster, settings Settings) *Explainer {
	indexed := *c
	indexed.Index = c.Indexed()
	x := &Explainer{cluster: &indexed, settings: settings}
	x.view = sync.OnceValue(func() snapshot.View { return snapshot.Build(x.cluster) })
	x.planned = sync.OnceValue(func() attempt { return plan(x.view()) })
	x.judged = sync.OnceValue(x.judge)
	return x
}

// attempt is a plan for the pending pods of a view. In the snapshot of the view, pods that cannot be planned for are blocked.
type attempt struct {
	view snapshot.View
	plan planner.Plan
}

// plan plans for the pending pods of a view. Its plan passes the check.
func plan(view snapshot.View) attempt {
	made := checked.Of(view, effort)
	return attempt{made.View, made.Plan}
}

func (a *attempt) launch(pod string) *planner.Launch {
	for i := range a.plan.Launches {
		if slices.Contains(a.plan.Launches[i].Pods, pod) {
			return &a.plan.Launches[i]
		}
	}
	return nil
}

func (a *attempt) node(pod string) int {
	for _, p := range a.plan.Placements {
		if slices.Contains(p.Pods, pod) {
			return p.Node
		}
	}
	return -1
}

// refusal returns why the plan does not place a pod, or nil if it does.
func (a *attempt) refusal(pod string) *planner.Refusal {
	for i := range a.plan.Unplaced {
		if a.plan.Unplaced[i].Pod == pod {
			return &a.plan.Unplaced[i].Refusal
		}
	}
	return nil
}

// classOf returns the index of the class of a pod, or -1 if there is none.
func classOf(s *planner.Snapshot, pod string) int {
	return slices.IndexFunc(s.Classes, func(c planner.Class) bool {
		_, ok := slices.BinarySearch(c.Pods, pod)
		return ok
	})
}

// timeOrNil returns a pointer to a time, or nil for the zero time.
func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func sentence(clauses ...string) string {
	return strings.Join(slices.DeleteFunc(clauses, func(s string) bool { return s == "" }), "; ")
}
