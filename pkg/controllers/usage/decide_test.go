package usage

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

var now = snapshottest.Now

func ago(d time.Duration) time.Time { return now.Add(-d) }

// machine returns a machine whose agent reported, this long ago, for how long some of its pods had not used a GPU.
func machine(said time.Duration, since map[string]time.Duration, pods ...corev1.Pod) records.Machine {
	pool := snapshottest.Pool("gpu", "gpu", snapshottest.Tainted(v1alpha1.ResourceGPUShared))
	xlarge := snapshottest.TypeNamed("g4dn.xlarge")
	claim := snapshottest.Claim("gpu-1", &pool, xlarge, snapshottest.Initialized(ago(24*time.Hour)))
	node := snapshottest.Node(&claim, xlarge, 10)
	r := nodecontract.UnusedReport{AsOf: ago(said), Since: map[string]time.Time{}}
	for pod, d := range since {
		r.Since["default/"+pod] = r.AsOf.Add(-d)
	}
	node.Annotations[nodecontract.UnusedSinceAnnotation] = r.String()
	m := records.Machine{Claim: &claim, Node: &node, Type: xlarge, Promise: facts.PromiseOf(claim.Annotations)}
	for i := range pods {
		m.Pods = append(m.Pods, &pods[i])
	}
	return m
}

// pod returns a pod that started on the machine this long ago.
func pod(name string, age time.Duration, edits ...func(*corev1.Pod)) corev1.Pod {
	p := snapshottest.Pod(name, append([]func(*corev1.Pod){snapshottest.Running("gpu-1")}, edits...)...)
	p.Status.StartTime = new(metav1.NewTime(ago(age)))
	return p
}

func evictWhenUnused(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.EvictWhenUnusedAnnotation: value} }
}

func class(unusedAfter string) *v1alpha1.GPUNodeClass {
	c := snapshottest.Class("gpu", 10)
	c.Spec.Consolidation.UnusedAfter = unusedAfter
	return &c
}

func view(c *v1alpha1.GPUNodeClass, blocked string, machines ...records.Machine) state {
	return state{
		now: now, machines: machines, classes: map[string]*v1alpha1.GPUNodeClass{"gpu": c},
		blocker: func([]*corev1.Pod) string { return blocked },
	}
}

// steps returns the actions as "step subject".
func steps(actions []action) string {
	var all []string
	for _, a := range actions {
		about := a.machine.Node.Name
		if a.pod != nil {
			about = a.pod.Name
		}
		all = append(all, string(a.step)+" "+about)
	}
	return strings.Join(all, ", ")
}

func TestDecide(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	type times = map[string]time.Duration
	both := times{"a": 3 * time.Hour, "b": 2 * time.Hour}
	cpuOnly := snapshottest.Asking("cpu", "1")
	leaving := machine(0, both, pod("a", day, evictWhenUnused("2h")), pod("b", day))
	leaving.Claim.Annotations[v1alpha1.ReplacingAnnotation] = "NodePoolDrifted"
	unread := machine(0, both, pod("a", day, evictWhenUnused("2h")))
	unread.Node.Annotations[nodecontract.UnusedSinceAnnotation] = "a: yesterday"
	for name, c := range map[string]struct {
		state state
		want  string
	}{
		"no pod uses the GPUs":                         {view(class("2h"), "", machine(0, both, pod("a", day), pod("b", day))), "Report gpu-1"},
		"a pod was unused for too short a time":        {view(class("2h1s"), "", machine(0, both, pod("a", day), pod("b", day))), ""},
		"the default is an hour":                       {view(class(""), "", machine(0, both, pod("a", day), pod("b", day))), "Report gpu-1"},
		"never":                                        {view(class("Never"), "", machine(0, both, pod("a", day), pod("b", day))), ""},
		"an invalid duration":                          {view(class("soon"), "", machine(0, both, pod("a", day), pod("b", day))), ""},
		"no class":                                     {view(nil, "", machine(0, both, pod("a", day), pod("b", day))), ""},
		"one of the pods uses the GPU":                 {view(class("1h"), "", machine(0, both, pod("a", day), pod("b", day), pod("c", day))), ""},
		"a pod without a replica does not count":       {view(class("1h"), "", machine(0, both, pod("a", day), pod("b", day), pod("c", day, cpuOnly))), "Report gpu-1"},
		"a new pod with the name of its predecessor":   {view(class("1h"), "", machine(0, both, pod("a", day), pod("b", time.Minute))), ""},
		"no pod holds a replica":                       {view(class("1h"), "", machine(0, both, pod("c", day, cpuOnly))), ""},
		"no unused pods with a zero duration":          {view(class("0s"), "", machine(0, times{}, pod("a", day))), ""},
		"the report is stale":                          {view(class("1h"), "", machine(nodecontract.UnusedReportTTL+time.Second, both, pod("a", day, evictWhenUnused("1h")), pod("b", day))), ""},
		"the machine is leaving":                       {view(class("1h"), "", leaving), ""},
		"the report is unreadable":                     {view(class("1h"), "", unread), "Unreadable gpu-1"},
		"an unused pod with the annotation is evicted": {view(class("Never"), "", machine(0, both, pod("a", day, evictWhenUnused("3h")), pod("b", day))), "Evict a"},
		"a pod that allows more time stays":            {view(class("Never"), "", machine(0, both, pod("a", day, evictWhenUnused("3h1s")))), ""},
		"a new pod stays":                              {view(class("Never"), "", machine(0, both, pod("a", time.Hour, evictWhenUnused("2h")))), ""},
		"a terminating pod stays":                      {view(class("Never"), "", machine(0, both, pod("a", day, evictWhenUnused("2h"), going))), ""},
		"a pod without a replica stays":                {view(class("Never"), "", machine(0, both, pod("a", day, evictWhenUnused("2h"), cpuOnly))), ""},
		"a protected pod stays":                        {view(class("Never"), "because", machine(0, both, pod("a", day, evictWhenUnused("2h")))), "Blocked a"},
		"a pod with an invalid annotation is refused":  {view(class("Never"), "", machine(0, both, pod("a", day, evictWhenUnused("tomorrow")))), "Refuse a"},
		"machine and pods are reported together":       {view(class("1h"), "", machine(0, both, pod("a", day, evictWhenUnused("2h")), pod("b", day, evictWhenUnused("1d")))), "Report gpu-1, Evict a, Refuse b"},
		"a fresh report counts":                        {view(class("2h"), "", machine(nodecontract.UnusedReportTTL, both, pod("a", day), pod("b", day))), "Report gpu-1"},
		"the time since the report does not count":     {view(class("2h1m"), "", machine(nodecontract.UnusedReportTTL, both, pod("a", day), pod("b", day))), ""},
		"a machine without a Node":                     {view(class("1h"), "", withoutNode()), ""},
		"a pod that has not started counts as used":    {view(class("1h"), "", machine(0, both, pod("a", day), pod("b", day), unstarted("c"))), ""},
	} {
		if got := steps(decide(c.state)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func going(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(now)) }

func unstarted(name string) corev1.Pod {
	p := pod(name, 0)
	p.Status.StartTime = nil
	return p
}

func withoutNode() records.Machine {
	m := machine(0, nil)
	m.Node = nil
	return m
}

// TestOnlyPodsWithUnusedGPUAreEvicted checks that a pod is evicted only if it asks for that, nothing protects it, and an agent that reported within ten
// minutes has not seen it use a GPU for the requested time since it started. A machine is reported only if the same holds for all of its pods with replicas,
// with the time of the class.
func TestOnlyPodsWithUnusedGPUAreEvicted(t *testing.T) {
	t.Parallel()
	hours := func(t *rapid.T, what string, most int) time.Duration {
		return time.Duration(rapid.IntRange(0, most*12).Draw(t, what)) * 5 * time.Minute
	}
	rapid.Check(t, func(t *rapid.T) {
		said := hours(t, "said", 1) - 30*time.Minute // Clocks differ.
		lastUse := map[string]time.Time{}
		since := map[string]time.Duration{}
		var pods []corev1.Pod
		wishes := map[string]time.Duration{}
		for i := range rapid.IntRange(0, 5).Draw(t, "pods") {
			name := fmt.Sprintf("p%d", i)
			p := pod(name, hours(t, "age", 8))
			lastUse[name] = p.Status.StartTime.Time
			if rapid.Bool().Draw(t, "unused") {
				since[name] = hours(t, "unused for", 8)
				if used := ago(said).Add(-since[name]); used.After(lastUse[name]) {
					lastUse[name] = used
				}
			} else {
				lastUse[name] = ago(said) // This is the last time that the agent knows of.
			}
			switch rapid.IntRange(0, 3).Draw(t, "wish") {
			case 0:
				wishes[name] = 5*time.Minute + hours(t, "wish", 4)
				evictWhenUnused(wishes[name].String())(&p)
			case 1:
				evictWhenUnused(rapid.SampledFrom([]string{"", "2", "-1h", "1d", "1m", "1000h"}).Draw(t, "nonsense"))(&p)
			}
			if rapid.IntRange(0, 5).Draw(t, "CPU only") == 0 {
				snapshottest.Asking("cpu", "1")(&p)
			}
			pods = append(pods, p)
		}
		after := hours(t, "unusedAfter", 4)
		s := view(class(after.String()), "", machine(said, since, pods...))
		kept := map[string]bool{}
		s.blocker = func(pods []*corev1.Pod) string {
			if name := pods[0].Name; kept[name] || rapid.IntRange(0, 4).Draw(t, "kept") == 0 {
				kept[name] = true
				return "kept"
			}
			return ""
		}
		unusedFor := func(name string) time.Duration {
			if said.Abs() > nodecontract.UnusedReportTTL {
				return 0
			}
			return ago(said).Sub(lastUse[name])
		}
		holds := func(p *corev1.Pod) bool {
			q := p.Spec.Containers[0].Resources.Requests[v1alpha1.ResourceGPUShared]
			return q.Value() > 0
		}
		evicted := map[string]bool{}
		for _, a := range decide(s) {
			switch a.step {
			case evict:
				wish, asked := wishes[a.pod.Name]
				if d := unusedFor(a.pod.Name); !asked || wish < v1alpha1.LeastEvictWhenUnused || d < wish || !holds(a.pod) || kept[a.pod.Name] {
					t.Fatalf("%s was evicted: it asks for %s (%t), has not used its GPU for %s, kept %t", a.pod.Name, wish, asked, d, kept[a.pod.Name])
				}
				evicted[a.pod.Name] = true
			case report:
				for i := range pods {
					if d := unusedFor(pods[i].Name); holds(&pods[i]) && (d < after || d <= 0) {
						t.Fatalf("the machine was reported, and %s has used its GPU %s ago", pods[i].Name, d)
					}
				}
				if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return holds(&p) }) {
					t.Fatal("a machine was reported of which nobody holds a replica")
				}
			case blocked:
				if !kept[a.pod.Name] {
					t.Fatalf("%s is said to be kept", a.pod.Name)
				}
			case refuse, unreadable:
			}
		}
		for name, wish := range wishes {
			i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == name })
			if wish >= v1alpha1.LeastEvictWhenUnused && unusedFor(name) >= wish && holds(&pods[i]) && !kept[name] && !evicted[name] {
				t.Fatalf("%s was not evicted", name)
			}
		}
	})
}
