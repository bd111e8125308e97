package replay_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/replay"
)

func series(labels model.Metric, values ...float64) *model.SampleStream {
	s := &model.SampleStream{Metric: labels}
	for i, v := range values {
		if v != 0 {
			s.Values = append(s.Values, model.SamplePair{Timestamp: model.TimeFromUnix(1000 + int64(i)*300), Value: model.SampleValue(v)})
		}
	}
	return s
}

// metric returns the labels of a pod in namespace batch.
func metric(name, uid, resource string) model.Metric {
	m := model.Metric{"namespace": "batch", "pod": model.LabelValue(name), "uid": model.LabelValue(uid)}
	if resource != "" {
		m["resource"] = model.LabelValue(resource)
	}
	return m
}

func TestValuesThatAreNoNumbersDoNotCount(t *testing.T) {
	t.Parallel()
	gpu := model.Metric{"namespace": "a", "pod": "b", "resource": "nvidia_com_gpu"}
	var o replay.Observed
	if err := o.Requests(model.Matrix{series(gpu, 1, math.NaN(), 1), series(model.Metric{"pod": "c", "resource": "nvidia_com_gpu"}, math.Inf(1), math.Inf(-1))}); err != nil {
		t.Fatal(err)
	}
	r := o.Recording(time.Unix(1000, 0), time.Unix(5000, 0))
	if len(r.Records) != 1 || r.Records[0].Replicas != 1 || len(r.Left) != 1 || r.Left[0].Reason != "a number is implausibly large" {
		t.Errorf("%+v, %+v", r.Records, r.Left)
	}
}

func TestPodsOfPrometheusAreRead(t *testing.T) {
	t.Parallel()
	var o replay.Observed
	err := o.Requests(model.Matrix{
		// A pod from before the time, a Job that completes, a pod of the same name that comes later, and one that was not seen being created.
		series(metric("old", "1", "cpu"), 0.5, 0.5), series(metric("old", "1", "memory"), 1<<30, 1<<30), series(metric("old", "1", "nvidia_com_gpu_shared"), 2, 2),
		series(metric("job", "2", "nvidia_com_gpu"), 0, 1, 1), series(metric("job", "2", "cpu"), 0, 0.0001, 0.0001),
		series(metric("job", "3", "nvidia_com_gpu"), 0, 0, 0, 1),
		series(metric("cpu", "4", "cpu"), 1, 1), series(metric("huge", "5", "nvidia_com_gpu"), 1e300),
	})
	err = errors.Join(err, o.Created(model.Matrix{series(metric("old", "1", ""), 500), series(metric("job", "2", ""), 0, 1200, 1200), series(metric("gone", "6", ""), 1200)}))
	if err = errors.Join(err, o.Completed(model.Matrix{series(metric("job", "2", ""), 0, 0, 1500)})); err != nil {
		t.Fatal(err)
	}
	start := time.Unix(1000, 0)
	r := o.Recording(start, start.Add(15*time.Minute))
	second := time.Second
	if diff := cmp.Diff([]replay.Record{
		{MilliCPU: 500, MemoryBytes: 1 << 30, Replicas: 2, Arrives: 0, Ends: 600 * second},
		{MilliCPU: 1, Replicas: 1, Arrives: 200 * second, Ends: 500 * second},
	}, r.Records); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]replay.Left{
		{Count: 1, Reason: "the pod requests no GPU", First: "batch/cpu"},
		{Count: 1, Reason: "the pod held no machine in this time: it was pending, or had ended before", First: "batch/gone"},
		{Count: 1, Reason: "a number is implausibly large", First: "batch/huge"},
		{Count: 1, Reason: "the pod ended as it began, or before the replay", First: "batch/job"},
	}, r.Left); diff != "" || !r.Dated || r.Phased {
		t.Errorf("dated %v, phased %v, (-want +got)\n%s", r.Dated, r.Phased, diff)
	}
	chunks := replay.Chunks(start, start.Add(50*time.Hour), 24*time.Hour)
	if len(chunks) != 3 || chunks[0][0] != start || chunks[1][0] != chunks[0][1] || chunks[2][1] != start.Add(50*time.Hour) {
		t.Errorf("%v", chunks)
	}
}

// life is a pod in the metrics of a cluster. It holds a machine from start to end, in minutes from the start of the replay, and is reported until it is
// deleted.
type life struct {
	start, end int
	// ended reports whether the pod is there after its end, as one that failed or succeeded. Otherwise it is deleted then.
	ended bool
	// created, scheduled and completed are unknown if they are 0.
	created, scheduled, completed int
}

// hole is a time without metrics, in minutes.
type hole struct{ from, to int }

// observe returns the answers for pods in a number of minutes.
func observe(t *testing.T, pods []life, minutes int, holes ...hole) *replay.Observed {
	t.Helper()
	start := time.Unix(1_000_000_200, 0) // a multiple of five minutes
	at := func(minute int) model.Time { return model.TimeFromUnix(start.Unix() + int64(minute)*60) }
	missing := func(minute int) bool {
		return slices.ContainsFunc(holes, func(h hole) bool { return minute >= h.from && minute < h.to })
	}
	scrapes := func(value float64, when func(minute int) bool) (values []model.SamplePair) {
		for m := 0; m <= minutes; m += 5 {
			if !missing(m) && when(m) {
				values = append(values, model.SamplePair{Timestamp: at(m), Value: model.SampleValue(value)})
			}
		}
		return values
	}
	always := func(int) bool { return true }
	var o replay.Observed
	err := o.Metrics(model.Matrix{{Metric: model.Metric{model.MetricNameLabel: "kube_pod_status_phase"}, Values: scrapes(7, always)}})
	for i, p := range pods {
		uid := fmt.Sprint(i)
		running := func(m int) bool { return m >= p.start && m < p.end }
		// As in the queries, it is not known at the first observation after a gap that a pod ended before.
		ends := func(m int) bool { return p.ended && m >= p.end && (missing(m-5) || m-5 < p.end) }
		for resource, value := range map[string]float64{"cpu": 0.3, "memory": 1 << 30, "nvidia_com_gpu_shared": 1} {
			values := scrapes(value, func(m int) bool { return running(m) || ends(m) })
			err = errors.Join(err, o.Requests(model.Matrix{{Metric: metric("web", uid, resource), Values: values}}))
		}
		err = errors.Join(err, o.Ended(model.Matrix{{Metric: metric("web", uid, ""), Values: scrapes(1, ends)}}))
		for minute, add := range map[*int]func(model.Matrix) error{&p.created: o.Created, &p.scheduled: o.Scheduled, &p.completed: o.Completed} {
			if *minute != 0 {
				err = errors.Join(err, add(model.Matrix{{Metric: metric("web", uid, ""), Values: scrapes(float64(at(*minute).Unix()), always)}}))
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return &o
}

// TestReplayCostsWhatRan compares with a calculation by hand: a g4dn.xlarge costs $0.526 an hour, and each GPU has ten replicas.
func TestReplayCostsWhatRan(t *testing.T) {
	t.Parallel()
	const hour, day, never = 60, 24 * 60, 1 << 20
	evicted, before := []life{{start: 0, end: never, created: -hour}}, []life{{start: 0, end: never, created: -hour}, {start: 19 * hour, end: never, created: 19 * hour}}
	for i := range 10 {
		evicted = append(evicted, life{start: i*hour + 5, end: i*hour + 35, ended: true, created: i*hour + 5})
	}
	for range 30 {
		before = append(before, life{start: -4 * hour, end: -3 * hour, ended: true, created: -4 * hour, scheduled: -4 * hour})
	}
	var retries []life
	for i := range 6 {
		retries = append(retries, life{start: i*hour + 1, end: i*hour + 7, ended: true, created: i*hour + 1, scheduled: i*hour + 1, completed: i*hour + 7})
	}
	var nightly []life
	for i := range 30 {
		nightly = append(nightly, life{start: i*day + 1, end: i*day + 3, ended: true, created: i*day + 1, scheduled: i*day + 1, completed: i*day + 3})
	}
	for name, c := range map[string]struct {
		pods    []life
		minutes int
		holes   []hole
		// whole and shared are the machine-minutes with whole GPUs and with shared ones. running is how many pods run on average, in hundredths.
		whole, shared, running int
		gaps                   int
	}{
		"one pod that runs all the time":                      {[]life{{start: 0, end: never, created: -day}}, 20 * hour, nil, 20 * hour, 20 * hour, 100, 0},
		"a pod of an hour":                                    {[]life{{start: hour, end: 2 * hour, created: hour}}, 10 * hour, nil, hour, hour, 10, 0},
		"two pods that overlap":                               {[]life{{start: 0, end: 6 * hour}, {start: 3 * hour, end: 9 * hour, created: 3 * hour}}, 10 * hour, nil, 12 * hour, 9 * hour, 120, 0},
		"a pod that is evicted and another in its place":      {[]life{{start: 0, end: 2 * hour}, {start: 3 * hour, end: never, created: 2*hour + 1, scheduled: 3 * hour}}, 10 * hour, nil, 9 * hour, 9 * hour, 90, 0},
		"a pod that is evicted ten times after half an hour":  {evicted, 20 * hour, nil, 20*hour + 10*30, 20 * hour, 125, 0},
		"30 pods that were evicted before":                    {before, 20 * hour, nil, 21 * hour, 20 * hour, 105, 0},
		"a Job that completed and stays":                      {[]life{{start: hour, end: 2*hour + 57, ended: true, created: hour, completed: 2*hour + 57}}, 10 * hour, nil, 117, 117, 20, 0},
		"retries of two minutes' work that took six":          {retries, 10 * hour, nil, 36, 36, 6, 0},
		"two minutes a night in a month":                      {nightly, 30 * day, nil, 60, 60, 0, 0},
		"a pod that was pending for hours":                    {[]life{{start: 5 * hour, end: never, created: hour}}, 10 * hour, nil, 5*hour + 5, 5*hour + 5, 51, 0},
		"a pod that was pending for hours until a known time": {[]life{{start: 5 * hour, end: never, created: hour, scheduled: 5*hour - 1}}, 10 * hour, nil, 5*hour + 1, 5*hour + 1, 50, 0},
		"a container that completes before the others":        {[]life{{start: 0, end: never, created: -hour, completed: hour}}, 10 * hour, nil, 10 * hour, 10 * hour, 100, 0},
		"a gap in the metrics of a pod that runs on":          {[]life{{start: 0, end: never, created: -hour}}, 10 * hour, []hole{{2 * hour, 4 * hour}}, 10 * hour, 10 * hour, 100, 1},
		"a gap in which a pod ends":                           {[]life{{start: 0, end: 3 * hour, created: -hour}}, 10 * hour, []hole{{2 * hour, 4 * hour}}, 2 * hour, 2 * hour, 20, 1},
		"a gap after which pods that had ended appear again":  {before, 20 * hour, []hole{{2 * hour, 4 * hour}}, 21 * hour, 20 * hour, 105, 1},
		"a gap in which a pod comes":                          {[]life{{start: 3 * hour, end: never, created: 3 * hour}}, 10 * hour, []hole{{2 * hour, 4 * hour}}, 7 * hour, 7 * hour, 70, 1},
		"metrics that begin late":                             {[]life{{start: 0, end: never, created: -hour}}, 10 * hour, []hole{{0, 4 * hour}}, 6 * hour, 6 * hour, 100, 0},
		"metrics that end early":                              {[]life{{start: 0, end: never, created: -hour}}, 10 * hour, []hole{{4 * hour, never}}, 4 * hour, 4 * hour, 100, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Unix(1_000_000_200, 0)
			r := observe(t, c.pods, c.minutes, c.holes...).Recording(start, start.Add(time.Duration(c.minutes)*time.Minute))
			traces, err := replay.Build(examples(t), r.Records, r.Duration())
			if err != nil {
				t.Fatal(err)
			}
			compared, err := replay.Compare(traces)
			if err != nil {
				t.Fatal(err)
			}
			const price = 526_000
			for i, minutes := range []int{c.whole, c.shared, c.shared} {
				if want, got := planner.MicroUSD(price*minutes/60), compared.Outcomes[i].Total; want-got > 5000 || got-want > 5000 {
					t.Errorf("%s: $%.4f, want $%.4f", compared.Outcomes[i].Policy, float64(got)/1e6, float64(want)/1e6)
				}
			}
			if math.Abs(compared.Running*100-float64(c.running)) > 1 || len(r.Gaps) != c.gaps {
				t.Errorf("%.3f pods at a time, want %.2f; gaps %v", compared.Running, float64(c.running)/100, r.Gaps)
			}
		})
	}
}
