package replay

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/prometheus/common/model"
)

// kube-state-metrics' names of the resources of pods.
const (
	sharedGPU = "nvidia_com_gpu_shared"
	wholeGPU  = "nvidia_com_gpu"
)

const (
	requested = "kube_pod_container_resource_requests"
	phases    = "kube_pod_status_phase"
	pod       = " (namespace, pod, uid) "
	// of restricts a query to the pods that request GPUs.
	of = ` and on` + pod + requested + `{resource=~"` + wholeGPU + "|" + sharedGPU + `"} > 0`
	// ended are the pods that have ended, until they are deleted.
	ended = phases + `{phase=~"Failed|Succeeded"}`
	// before excludes them, except at the first time at which they have ended.
	before = ` unless on` + pod + `(` + ended + ` offset 5m == 1)`
	// unscheduled excludes the times at which a pod holds no machine yet.
	unscheduled = ` unless on` + pod + `(` + phases + `{phase="Pending"} == 1 unless on` + pod + `kube_pod_status_scheduled{condition="true"} == 1)`
)

// Resolution is the time between two points of the series. It is the precision of the end of a pod that does not complete.
const Resolution = 5 * time.Minute

// The queries for pods that request GPUs. They are range queries with the step [Resolution].
const (
	// RequestsQuery returns the requests of each pod while it holds a machine, and at the first time at which it has ended. kube-state-metrics reports them
	// longer: until the pod is deleted. Two instances of kube-state-metrics count once.
	RequestsQuery = `sum by (namespace, pod, uid, resource) (max by (namespace, pod, uid, container, resource) (` +
		requested + `{resource=~"cpu|memory|` + wholeGPU + "|" + sharedGPU + `"}` + of + before + unscheduled + `))`
	// EndedQuery returns the first time at which each pod has ended.
	EndedQuery = `max by` + pod + `(` + ended + ` == 1` + before + of + `)`
	// CreatedQuery returns when each pod was created, in seconds.
	CreatedQuery = `max by` + pod + `(kube_pod_created` + of + `)`
	// ScheduledQuery returns when each pod was scheduled or else started, in seconds.
	ScheduledQuery = `max by` + pod + `((kube_pod_status_scheduled_time or on` + pod + `kube_pod_start_time)` + of + `)`
	// CompletedQuery returns when the containers of each pod ended, in seconds.
	CompletedQuery = `max by` + pod + `(kube_pod_completion_time` + of + `)`
	// MetricsQuery returns the times at which there were metrics of any pods: their phases or, if there were none, their requests.
	MetricsQuery = `count by (__name__) (` + phases + `{phase="Running"}) or count by (__name__) (` + requested + `{resource=~"cpu|` + wholeGPU + "|" + sharedGPU + `"})`
)

// Observed collects the pods in Prometheus' answers.
type Observed struct {
	pods map[string]*observed
	// metrics are the times at which there were metrics of pods, and phased reports whether their phases were among them.
	metrics map[time.Time]bool
	phased  bool
	// limit is the maximum number of pods. 0 is maxPods.
	limit int
}

type observed struct {
	name     string
	requests map[string]float64
	// first and last are the first and the last time at which the pod was observed. ended is the first one at which it had ended.
	first, last, ended            time.Time
	created, scheduled, completed time.Time
}

// pod returns the pod of a series. It returns an error if there are too many pods.
func (o *Observed) pod(m model.Metric) (*observed, error) {
	key := fmt.Sprintf("%s/%s/%s", m["namespace"], m["pod"], m["uid"])
	if o.pods == nil {
		o.pods = map[string]*observed{}
	}
	if o.pods[key] == nil {
		if limit := cmp.Or(o.limit, maxPods); len(o.pods) == limit {
			return nil, fmt.Errorf("there are more than %d pods", limit)
		}
		o.pods[key] = &observed{name: fmt.Sprintf("%s/%s", m["namespace"], m["pod"]), requests: map[string]float64{}}
	}
	return o.pods[key], nil
}

// resources are those whose requests are read.
var resources = []string{"cpu", "memory", wholeGPU, sharedGPU}

// Requests adds an answer to [RequestsQuery]. It ignores values that are not numbers.
func (o *Observed) Requests(answer model.Matrix) error {
	for _, series := range answer {
		resource := string(series.Metric["resource"])
		if !slices.Contains(resources, resource) {
			continue
		}
		p, err := o.pod(series.Metric)
		if err != nil {
			return err
		}
		for _, v := range series.Values {
			if math.IsNaN(float64(v.Value)) {
				continue
			}
			p.requests[resource] = max(p.requests[resource], float64(v.Value))
			at := v.Timestamp.Time()
			if p.first.IsZero() || at.Before(p.first) {
				p.first = at
			}
			if at.After(p.last) {
				p.last = at
			}
		}
	}
	return nil
}

// Created adds an answer to [CreatedQuery].
func (o *Observed) Created(answer model.Matrix) error {
	return o.times(answer, func(p *observed, t time.Time) { p.created = t })
}

// Scheduled adds an answer to [ScheduledQuery].
func (o *Observed) Scheduled(answer model.Matrix) error {
	return o.times(answer, func(p *observed, t time.Time) { p.scheduled = t })
}

// Completed adds an answer to [CompletedQuery].
func (o *Observed) Completed(answer model.Matrix) error {
	return o.times(answer, func(p *observed, t time.Time) { p.completed = t })
}

// times sets the last value of each series as a time.
func (o *Observed) times(answer model.Matrix, set func(*observed, time.Time)) error {
	for _, series := range answer {
		if t, ok := lastTime(series); ok {
			p, err := o.pod(series.Metric)
			if err != nil {
				return err
			}
			set(p, t)
		}
	}
	return nil
}

// Ended adds an answer to [EndedQuery].
func (o *Observed) Ended(answer model.Matrix) error {
	for _, series := range answer {
		if len(series.Values) == 0 {
			continue
		}
		p, err := o.pod(series.Metric)
		if err != nil {
			return err
		}
		if at := series.Values[0].Timestamp.Time(); p.ended.IsZero() || at.Before(p.ended) {
			p.ended = at
		}
	}
	return nil
}

// Metrics adds an answer to [MetricsQuery].
func (o *Observed) Metrics(answer model.Matrix) error {
	for _, series := range answer {
		o.phased = o.phased || series.Metric[model.MetricNameLabel] == phases && len(series.Values) > 0
		for _, v := range series.Values {
			if o.metrics == nil {
				o.metrics = map[time.Time]bool{}
			}
			o.metrics[v.Timestamp.Time()] = true
		}
	}
	return nil
}

// lastTime returns the last value of a series as a time. It returns false if the value is not a time.
func lastTime(series *model.SampleStream) (time.Time, bool) {
	if len(series.Values) == 0 {
		return time.Time{}, false
	}
	v := float64(series.Values[len(series.Values)-1].Value)
	if !(v > 0 && v < maxSeconds) {
		return time.Time{}, false
	}
	return time.Unix(int64(v), 0), true
}

// Recording returns the pods between two times, as far as there are metrics.
//
// A pod holds a machine from when it was scheduled. If that is unknown, it does from its creation, but not before the observation in which it was still
// pending. It ends when all its containers have completed, or with the first observation in which it has ended or is gone.
func (o *Observed) Recording(start, end time.Time) Recording {
	seen := slices.SortedFunc(maps.Keys(o.metrics), time.Time.Compare)
	seen = slices.DeleteFunc(seen, func(t time.Time) bool { return t.Before(start) || t.After(end) })
	r := Recording{Start: start, End: end, Gaps: gaps(seen), Phased: o.phased}
	if len(seen) > 0 {
		r.Start, r.End = later(start, seen[0]), earlier(end, seen[len(seen)-1].Add(Resolution))
		r.Late, r.Early = r.Start.Sub(start), end.Sub(r.End)
	}
	var out lefts
	for _, key := range slices.Sorted(maps.Keys(o.pods)) {
		p := o.pods[key]
		r.Dated = r.Dated || !p.created.IsZero() || !p.scheduled.IsZero()
		before := timeBefore(seen, p.first)
		if p.first.IsZero() || p.over(before) {
			out.add("the pod held no machine in this time: it was pending, or had ended before", p.name)
			continue
		}
		from, to := later(p.from(before), r.Start), earlier(p.to(o.phased), r.End)
		record := Record{
			MilliCPU: whole(p.requests["cpu"] * 1000), MemoryBytes: whole(p.requests["memory"]),
			Replicas: max(whole(p.requests[sharedGPU]), whole(p.requests[wholeGPU])), Arrives: from.Sub(r.Start), Ends: to.Sub(r.Start),
		}
		switch {
		case record.Replicas == 0:
			out.add("the pod requests no GPU", p.name)
		case record.MilliCPU > maxMilliCPU || record.MemoryBytes > maxMiB<<20 || record.Replicas > 1_000_000:
			out.add("a number is implausibly large", p.name)
		case record.Ends <= record.Arrives:
			out.add("the pod ended as it began, or before the replay", p.name)
		default:
			r.Records = append(r.Records, record)
		}
	}
	r.Records, r.Left = sorted(r.Records), out
	return r
}

// over reports whether the pod had ended at the observation before the first with it, which may be the zero time. A gap in the metrics makes it appear
// again: it was there and held no machine.
func (p *observed) over(before time.Time) bool {
	began := p.created
	if !p.scheduled.IsZero() {
		began = p.scheduled
	}
	return p.first.Equal(p.ended) && !before.IsZero() && !began.IsZero() && !began.After(before)
}

// from returns when the pod began to hold a machine. It did not at the time of the observation before the first with it, which may be the zero time.
func (p *observed) from(before time.Time) time.Time {
	switch {
	case !p.scheduled.IsZero():
		return earlier(p.scheduled, p.first)
	case !p.created.IsZero():
		return earlier(later(p.created, before), p.first)
	case p.first.Equal(p.ended):
		return p.first.Add(-Resolution)
	}
	return p.first
}

// to returns when the pod ceased to hold a machine. The completion of a container ends the pod only if it is known that the pod has ended, or if no phases
// are known.
func (p *observed) to(phased bool) time.Time {
	gone := p.last.Add(Resolution)
	if !p.ended.IsZero() {
		gone = p.ended
	}
	if p.completed.IsZero() || phased && p.ended.IsZero() {
		return gone
	}
	return earlier(p.completed, gone)
}

// timeBefore returns the last of the sorted times before another, or the zero time if there is none.
func timeBefore(times []time.Time, t time.Time) time.Time {
	i, _ := slices.BinarySearchFunc(times, t, time.Time.Compare)
	if i == 0 {
		return time.Time{}
	}
	return times[i-1]
}

// gaps returns the ranges between sorted times that are more than [Resolution] apart.
func gaps(times []time.Time) (found [][2]time.Time) {
	for i := 1; i < len(times); i++ {
		if times[i].Sub(times[i-1]) > Resolution {
			found = append(found, [2]time.Time{times[i-1].Add(Resolution), times[i]})
		}
	}
	return found
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// whole rounds an amount up. NaN and negative amounts count as 0.
func whole(v float64) int64 {
	if !(v > 0) {
		return 0
	}
	return int64(math.Ceil(min(v, math.MaxInt64/2)))
}

// Chunks splits a time range into ranges to query one after the other, so that no answer has more points of a series than Prometheus allows.
func Chunks(start, end time.Time, maxLength time.Duration) [][2]time.Time {
	var chunks [][2]time.Time
	for from := start; from.Before(end); from = from.Add(cmp.Or(maxLength, time.Hour)) {
		to := from.Add(maxLength)
		if to.After(end) {
			to = end
		}
		chunks = append(chunks, [2]time.Time{from, to})
	}
	return chunks
}
