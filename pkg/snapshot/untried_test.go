package snapshot_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// untried makes a pod one that the scheduler has not tried.
func untried(pod *corev1.Pod) { pod.Status.Conditions = nil }

// prior gives a pod a priority.
func prior(priority int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Priority = &priority }
}

// created sets when a pod was created.
func created(at time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(at) }
}

func TestPodsThatTheDefaultSchedulerHasNotTried(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edits []func(*corev1.Pod)
		want  bool
	}{
		"a new pod":                       {[]func(*corev1.Pod){untried}, true},
		"the default scheduler, by name":  {[]func(*corev1.Pod){untried, func(p *corev1.Pod) { p.Spec.SchedulerName = corev1.DefaultSchedulerName }}, true},
		"one that Karve has nominated":    {[]func(*corev1.Pod){untried, nominatedFor("node")}, true},
		"without a GPU":                   {[]func(*corev1.Pod){untried, Asking("cpu", "1")}, false},
		"another scheduler":               {[]func(*corev1.Pod){untried, func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }}, false},
		"a pod of a group":                {[]func(*corev1.Pod){untried, func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{} }}, false},
		"a pod that names a group":        {[]func(*corev1.Pod){untried, ofGroup("train", "2")}, false},
		"a marked pod":                    {nil, false},
		"a pod with a scheduling gate":    {[]func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated }}, false},
		"a running pod":                   {[]func(*corev1.Pod){untried, Running("node"), untried}, false},
		"a pod that is being deleted":     {[]func(*corev1.Pod){untried, ending}, false},
		"a pod that has ended":            {[]func(*corev1.Pod){untried, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }}, false},
		"a pod of a DaemonSet":            {[]func(*corev1.Pod){untried, OwnedBy("apps/v1", "DaemonSet", "x")}, false},
		"a pod that is too large to read": {[]func(*corev1.Pod){untried, func(p *corev1.Pod) { p.Annotations = map[string]string{facts.CutAnnotation: "labels"} }}, false},
	} {
		if pod := Pod("a", c.edits...); facts.Untried(&pod) != c.want {
			t.Errorf("%s: %t", name, !c.want)
		}
	}
}

func TestViewIncludesUntriedPods(t *testing.T) {
	t.Parallel()
	open := facts.ReadAhead{Open: true, Alive: true}
	planned := facts.ReadAhead{Planned: sets.New[types.UID]("pod-new")}
	newer := func(r facts.ReadAhead, priority int32, by time.Duration) facts.ReadAhead {
		r.Tried = map[int32]time.Time{priority: Now.Add(by)}
		return r
	}
	marked, came := Pod("marked"), created(Now)
	for name, c := range map[string]struct {
		with     facts.ReadAhead
		starting bool
		pods     []corev1.Pod
		want     bool
	}{
		"not by default":                            {facts.ReadAhead{}, true, []corev1.Pod{marked, Pod("new", untried)}, false},
		"beside a marked pod":                       {open, false, []corev1.Pod{marked, Pod("new", untried)}, true},
		"while a machine starts":                    {open, true, []corev1.Pod{Pod("new", untried)}, true},
		"not alone":                                 {open, false, []corev1.Pod{Pod("new", untried)}, false},
		"alone if it was planned":                   {planned, false, []corev1.Pod{Pod("new", untried)}, true},
		"with a newer one that was tried":           {newer(open, 0, time.Minute), true, []corev1.Pod{Pod("new", untried, came)}, false},
		"with one that was tried a second later":    {newer(open, 0, time.Second), true, []corev1.Pod{Pod("new", untried, came)}, true},
		"with a newer one of a lower priority":      {newer(open, -1, time.Minute), true, []corev1.Pod{Pod("new", untried, came)}, false},
		"with a newer one of a higher priority":     {newer(open, 1, time.Minute), true, []corev1.Pod{Pod("new", untried, came)}, true},
		"with a newer one, but planned":             {newer(planned, 0, time.Minute), true, []corev1.Pod{Pod("new", untried, came)}, true},
		"that could preempt a running pod":          {open, true, []corev1.Pod{Pod("runs", Running("one")), Pod("new", untried, prior(5))}, false},
		"that could not preempt the running pods":   {open, true, []corev1.Pod{Pod("runs", Running("one"), prior(5)), Pod("new", untried, prior(5))}, true},
		"that could preempt, but was planned":       {planned, true, []corev1.Pod{Pod("runs", Running("one")), Pod("new", untried, prior(5))}, true},
		"with a priority, and nothing that it ends": {open, true, []corev1.Pod{Pod("new", untried, prior(5))}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := Shared()
			if c.starting {
				cluster = withMachines(nil, "one")
				cluster.Nodes[0].Status.Allocatable = nil // It still awaits its replicas.
			}
			cluster.Pods, cluster.ReadAhead = c.pods, c.with
			view := snapshot.Build(cluster)
			if is := view.Pods["default/new"] != nil; is != c.want {
				t.Errorf("the view includes it: %t", is)
			}
			if unplanned := view.Unplanned().Has("pod-new"); unplanned != (c.want && !c.with.Planned.Has("pod-new")) {
				t.Errorf("it is unplanned: %t", unplanned)
			}
		})
	}
}

func TestUntriedPodOfAClassIsPlannedWithMarkedOnes(t *testing.T) {
	t.Parallel()
	cluster := Shared()
	cluster.Pods, cluster.ReadAhead = append(Pods("marked", 2), Pods("new", 3, untried)...), facts.ReadAhead{Open: true}
	view := snapshot.Build(cluster)
	if len(view.Classes) != 1 || len(view.Classes[0].Pods) != 5 {
		t.Errorf("classes are %v", view.Classes)
	}
}

func TestPlannedUntriedPodsAreSeated(t *testing.T) {
	t.Parallel()
	small, large := Asking("cpu", "1", "nvidia.com/gpu.shared", "1"), Asking("cpu", "2", "nvidia.com/gpu.shared", "1")
	cluster := withMachines(nil, "node")
	cluster.Pods = []corev1.Pod{Pod("x", small), Pod("y", large)}
	view := snapshot.Build(cluster)
	m := view.Machines[0]
	m.Claim.Annotations["karve.sh/planned-pods"] = view.PlannedPods(planner.Launch{Pods: []string{"default/x", "default/y"}})
	pods := pointers(Pod("a", small, untried), Pod("b", large, untried), Pod("c", large))
	planned := func(pod *corev1.Pod) bool { return pod.Name == "a" }
	if diff := cmp.Diff("a node, c node", written(snapshot.NewSeating(pods, planned).Seats(&m, nil, nil))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A pod whose nomination no plan includes reserves room, which nothing else would give back until the scheduler tries the pod.
func TestNominationsOfUntriedPodsThatAreNotPlannedAreWithdrawn(t *testing.T) {
	t.Parallel()
	cluster := withMachines([]string{"one"})
	cluster.Pods = []corev1.Pod{Pod("ours", untried, nominatedFor("one")), Pod("theirs", untried, nominatedFor("stock")), Pod("not", untried)}
	cluster.Nodes = append(cluster.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stock"}})
	view := snapshot.Build(cluster)
	var names []string
	for _, n := range view.Withdrawn(planner.Plan{}) {
		names = append(names, n.Pod.Name+n.Node)
	}
	if !slices.Equal(names, []string{"ours"}) {
		t.Errorf("withdrawn are %v", names)
	}
}
