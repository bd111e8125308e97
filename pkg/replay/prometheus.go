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

// of restricts a query to the pods that request GPUs.
const of = ` and on (namespace, pod, uid) kube_pod_container_resource_requests{resource=~"` + wholeGPU + "|" + sharedGPU + `"})`

// The queries for pods that request GPUs. They are range queries: a pod exists at the times at which it has a value.
const (
	// RequestsQuery returns the requests of each pod.
	RequestsQuery = `sum by (namespace, pod, uid, resource) (kube_pod_container_resource_requests{resource=~"cpu|memory|` + wholeGPU + "|" + sharedGPU + `"}` + of
	// CreatedQuery returns when each pod was created, in seconds.
	CreatedQuery = `max by (namespace, pod, uid) ((kube_pod_created or kube_pod_start_time)` + of
	// CompletedQuery returns when each pod completed, in seconds.
	CompletedQuery = `max by (namespace, pod, uid) (kube_pod_completion_time` + of
)

// Observed collects the pods in Prometheus' answers.
type Observed struct {
	pods map[string]*observed
	// most is the maximum number of pods. 0 is maxPods.
	most int
}

type observed struct {
	name               string
	requests           map[string]float64
	first, last        time.Time
	created, completed time.Time
}

// pod returns the pod of a series. It returns an error if there are too many pods.
func (o *Observed) pod(m model.Metric) (*observed, error) {
	key := fmt.Sprintf("%s/%s/%s", m["namespace"], m["pod"], m["uid"])
	if o.pods == nil {
		o.pods = map[string]*observed{}
	}
	if o.pods[key] == nil {
		if most := cmp.Or(o.most, maxPods); len(o.pods) == most {
			return nil, fmt.Errorf("there are more than %d pods", most)
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
		if series == nil {
			continue
		}
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

// lastTime returns the last value of a series as a time. It returns false if the value is not a time.
func lastTime(series *model.SampleStream) (time.Time, bool) {
	if series == nil || len(series.Values) == 0 {
		return time.Time{}, false
	}
	v := float64(series.Values[len(series.Values)-1].Value)
	if !(v > 0 && v < maxSeconds) {
		return time.Time{}, false
	}
	return time.Unix(int64(v), 0), true
}

// Records returns the pods between two times, ordered by arrival, and those that are left out. Pods whose creation or completion was not observed count
// from the first to the last time at which they were observed. Observations are resolution apart. dated reports whether a pod's creation is known.
func (o *Observed) Records(start, end time.Time, resolution time.Duration) (records []Record, left []Left, dated bool) {
	var out lefts
	for _, key := range slices.Sorted(maps.Keys(o.pods)) {
		p := o.pods[key]
		dated = dated || !p.created.IsZero()
		if p.first.IsZero() {
			continue // Its requests are unknown.
		}
		from, to := p.first, p.last.Add(resolution)
		if !p.created.IsZero() && p.created.Before(from) {
			from = p.created
		}
		if !p.completed.IsZero() && p.completed.Before(to) {
			to = p.completed
		}
		if from.Before(start) {
			from = start
		}
		if to.After(end) {
			to = end
		}
		r := Record{
			MilliCPU: whole(p.requests["cpu"] * 1000), MemoryBytes: whole(p.requests["memory"]),
			Replicas: max(whole(p.requests[sharedGPU]), whole(p.requests[wholeGPU])), Arrives: from.Sub(start), Ends: to.Sub(start),
		}
		switch {
		case r.Replicas == 0:
			out.add("the pod requests no GPU", p.name)
		case r.MilliCPU > maxMilliCPU || r.MemoryBytes > maxMiB<<20 || r.Replicas > 1_000_000:
			out.add("a number is implausibly large", p.name)
		case r.Ends <= r.Arrives:
			out.add("the pod ended as it began, or before the replay", p.name)
		default:
			records = append(records, r)
		}
	}
	return sorted(records), out, dated
}

// whole rounds an amount up. NaN and negative amounts count as 0.
func whole(v float64) int64 {
	if !(v > 0) {
		return 0
	}
	return int64(math.Ceil(min(v, math.MaxInt64/2)))
}

// Chunks splits a time range into ranges to query one after the other, so that no answer has more points of a series than Prometheus allows.
func Chunks(start, end time.Time, longest time.Duration) [][2]time.Time {
	var chunks [][2]time.Time
	for from := start; from.Before(end); from = from.Add(cmp.Or(longest, time.Hour)) {
		to := from.Add(longest)
		if to.After(end) {
			to = end
		}
		chunks = append(chunks, [2]time.Time{from, to})
	}
	return chunks
}
