package usage_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/usage"
	"karve.sh/karve/pkg/nodecontract"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestReadingsShowWhichPodsUsedGPU(t *testing.T) {
	t.Parallel()
	idle := gpu.Usage{MemoryUsedMiB: 9000, Processes: []gpu.Process{{PID: 1, MemoryMiB: 9000}}}
	by := func(percent int, processes ...gpu.Process) gpu.Usage {
		return gpu.Usage{GPUPercent: percent, Processes: processes}
	}
	computes := func(pid int) gpu.Process { return gpu.Process{PID: pid, MemoryMiB: 1, SMPercent: 1} }
	for name, c := range map[string]struct {
		readings []gpu.Usage
		err      error
		want     usage.Seen
	}{
		"no process":                         {[]gpu.Usage{{}}, nil, usage.Seen{}},
		"held memory does not count as use":  {[]gpu.Usage{idle}, nil, usage.Seen{}},
		"a process that computes":            {[]gpu.Usage{by(30, computes(1))}, nil, usage.Seen{Pods: []string{"a/one"}}},
		"two processes of a pod":             {[]gpu.Usage{by(30, computes(1), computes(2))}, nil, usage.Seen{Pods: []string{"a/one"}}},
		"use in one of several readings":     {[]gpu.Usage{idle, by(0, computes(3)), idle}, nil, usage.Seen{Pods: []string{"a/two"}}},
		"a process outside of pods":          {[]gpu.Usage{by(30, computes(1), computes(99))}, nil, usage.Seen{Pods: []string{"a/one"}, Unsure: true}},
		"use without a process":              {[]gpu.Usage{by(1, gpu.Process{PID: 1})}, nil, usage.Seen{Unsure: true}},
		"a process with unknown utilization": {[]gpu.Usage{by(0, gpu.Process{PID: 1, SMPercent: -1})}, nil, usage.Seen{Unsure: true}},
		"a GPU with unknown utilization":     {[]gpu.Usage{by(-1)}, nil, usage.Seen{Unsure: true}},
		"an unreadable GPU":                  {[]gpu.Usage{{}}, errors.New("lost"), usage.Seen{Unsure: true}},
		"a GPU that is unreadable at first":  {[]gpu.Usage{by(-1), idle}, nil, usage.Seen{Unsure: true}},
		"use by a process that is gone":      {[]gpu.Usage{by(1), by(0, computes(1))}, nil, usage.Seen{Pods: []string{"a/one"}, Unsure: true}},
	} {
		var n usage.Notes
		for _, u := range c.readings {
			n.Add("GPU-a", u, c.err)
		}
		owners := func([]int) map[int]string { return map[int]string{1: "a/one", 2: "a/one", 3: "a/two"} }
		if diff := cmp.Diff(map[string]usage.Seen{"GPU-a": c.want}, n.Take(owners)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if again := n.Take(owners); len(again) != 0 {
			t.Errorf("%s: told twice: %v", name, again)
		}
	}
}

// looks is a Tracker that observes one machine with two GPUs.
type looks struct {
	usage.Tracker
	now time.Time
}

var shared = map[string][]string{"a/one": {"GPU-a"}, "a/two": {"GPU-a"}, "a/both": {"GPU-a", "GPU-b"}}

func used(pods ...string) map[string]usage.Seen {
	return map[string]usage.Seen{"GPU-a": {Pods: pods}, "GPU-b": {}}
}

// pass observes the machine every minute for d and writes each report that is due. It returns the number of writes.
func (l *looks) pass(d time.Duration, holds map[string][]string, seen map[string]usage.Seen) (writes int) {
	for end := l.now.Add(d); l.now.Before(end); {
		l.now = l.now.Add(time.Minute)
		l.Look(l.now, holds, seen)
		if r, due := l.Report(); due {
			l.Written(r)
			writes++
		}
	}
	return writes
}

func (l *looks) pods() []string {
	r, _ := l.Report()
	return slices.Sorted(maps.Keys(r.Since))
}

func TestPodsWithUnusedGPUAreReported(t *testing.T) {
	t.Parallel()
	l := looks{now: noon}
	l.pass(nodecontract.UnusedBeat, shared, used("a/one"))
	if got := l.pods(); len(got) != 0 {
		t.Errorf("%q are reported before a beat has passed", got)
	}
	if n := l.pass(time.Hour, shared, used("a/one")); n > 13 {
		t.Errorf("the Node was written %d times in an hour", n)
	}
	if got := l.pods(); !slices.Equal(got, []string{"a/both", "a/two"}) {
		t.Errorf("%q are reported", got)
	}
	r, _ := l.Report()
	if got := r.For("a/two", noon, l.now); got != time.Hour+nodecontract.UnusedBeat-time.Minute {
		t.Errorf("unused for %s", got)
	}
	if n := l.pass(time.Minute, shared, used("a/two")); n != 1 {
		t.Error("a use is not told at once")
	}
	if got := l.pods(); !slices.Equal(got, []string{"a/both"}) {
		t.Errorf("%q are reported", got)
	}
}

func TestUncertainReadingsCountAsUse(t *testing.T) {
	t.Parallel()
	for name, seen := range map[string]map[string]usage.Seen{
		"an unknown process used a GPU": {"GPU-a": {Unsure: true}, "GPU-b": {}},
		"a GPU was not read":            {"GPU-b": {}},
		"a user that holds no GPU":      used("mps/server"),
		"a user that holds another GPU": used("a/b-only"),
	} {
		holds := maps.Clone(shared)
		holds["a/b-only"] = []string{"GPU-b"}
		l := looks{now: noon}
		l.pass(time.Hour, holds, seen)
		if got := l.pods(); !slices.Equal(got, []string{"a/b-only"}) {
			t.Errorf("%s: %q are reported", name, got)
		}
	}
}

func TestRestartedAgentContinuesReport(t *testing.T) {
	t.Parallel()
	for gap, want := range map[time.Duration]bool{0: true, nodecontract.UnusedReportTTL - time.Minute: true, nodecontract.UnusedReportTTL + time.Minute: false, -time.Hour: false} {
		l := looks{now: noon}
		l.pass(time.Hour, shared, used())
		r, _ := l.Report()
		next := looks{now: l.now.Add(gap)}
		next.Adopt(r)
		next.Look(next.now, shared, used())
		if got := len(next.pods()) > 0; got != want {
			t.Errorf("after %s: %t, want %t", gap, got, want)
		}
		if _, due := next.Report(); due == want && gap < nodecontract.UnusedBeat {
			t.Errorf("after %s: to be written: %t", gap, due)
		}
	}
}

func TestReportStaysWhileKubeletDoesNotAnswer(t *testing.T) {
	t.Parallel()
	l := looks{now: noon}
	l.pass(time.Hour, shared, used())
	l.pass(time.Hour, nil, used("a/one"))
	if got := l.pods(); !slices.Equal(got, []string{"a/both", "a/two"}) {
		t.Errorf("%q are reported", got)
	}
}

// TestPodThatUsedItsGPUIsNotReported checks that no pod is reported that has used a GPU since, and that the report on the Node is at most one look behind for
// such pods.
func TestPodThatUsedItsGPUIsNotReported(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tracker, now := &usage.Tracker{}, noon
		var node nodecontract.UnusedReport
		last := map[string]time.Time{} // when each pod last used its GPU, or started to hold it
		holds := map[string][]string{}
		pending := false // The Node's report is out of date. An agent that starts now cannot know that.
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{5, 60, 240, 500, 700}).Draw(t, "seconds")) * time.Second)
			if !pending && rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				tracker = &usage.Tracker{}
				tracker.Adopt(node)
			}
			for i := range 4 {
				pod := fmt.Sprintf("a/%d", i)
				switch rapid.IntRange(0, 19).Draw(t, "pod") {
				case 0:
					delete(holds, pod)
					delete(last, pod)
				case 1, 2, 3:
					if holds[pod] == nil {
						holds[pod], last[pod] = rapid.SampledFrom([][]string{{"GPU-a"}, {"GPU-b"}, {"GPU-a", "GPU-b"}}).Draw(t, "gpus"), now
					}
				}
			}
			seen := map[string]usage.Seen{}
			for _, uuid := range []string{"GPU-a", "GPU-b"} {
				s := usage.Seen{Unsure: rapid.IntRange(0, 19).Draw(t, "unsure") == 0}
				for _, pod := range slices.Sorted(maps.Keys(holds)) {
					if slices.Contains(holds[pod], uuid) && (rapid.IntRange(0, 9).Draw(t, "uses") == 0) {
						s.Pods = append(s.Pods, pod)
						last[pod] = now
					}
					if slices.Contains(holds[pod], uuid) && s.Unsure {
						last[pod] = now
					}
				}
				seen[uuid] = s
			}
			tracker.Look(now, holds, seen)
			report, due := tracker.Report()
			for pod := range report.Since {
				if holds[pod] == nil {
					t.Fatalf("%s is reported and holds nothing", pod)
				}
				if d := report.For(pod, noon.Add(-time.Hour), now); d > now.Sub(last[pod]) {
					t.Fatalf("%s is reported as unused for %s, but used its GPU %s ago", pod, d, now.Sub(last[pod]))
				}
			}
			if pending = due; due && rapid.IntRange(0, 3).Draw(t, "written") > 0 {
				tracker.Written(report)
				node, pending = report, false
			} else if !due {
				for pod := range node.Since {
					if last[pod].Equal(now) && holds[pod] != nil {
						t.Fatalf("the Node reports %s as unused although it is not, and no update is due", pod)
					}
				}
			}
		}
	})
}
