package replay_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"

	"karve.sh/karve/pkg/replay"
)

const header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"

func TestATraceIsReadWithItsBadLines(t *testing.T) {
	t.Parallel()
	text := header + `a,1000,2048,1,500,,LS,Running,100,200,100
b,1500,1024,1,250,,LS,Running,90,,95

c,1000,2048
d,many,2048,1,500,,LS,Running,100,200,100
e,1000,2048,1,500,,LS,Running,100,50,100
f,1000,2048,0,0,,LS,Running,100,200,100
g,1000,2048,2,1000,,LS,Running,100,200,100
h,-1,2048,1,500,,LS,Running,100,200,100
i,1000,2048,1,500,,LS,Running,100,99999999999999,100
"j,1000
k,1000.0,2048,1.0,500,,LS,Running,300,300,
l,1000,2048
`
	records, left, err := replay.ReadCSV(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	second := time.Second
	if diff := cmp.Diff([]replay.Record{
		{MilliCPU: 1500, MemoryBytes: 1 << 30, Replicas: 1, GPUMemoryBytes: 4096 << 20, Arrives: 0, Ends: 210 * second},
		{MilliCPU: 1000, MemoryBytes: 2 << 30, Replicas: 1, GPUMemoryBytes: 8192 << 20, Arrives: 10 * second, Ends: 110 * second},
		{MilliCPU: 1000, MemoryBytes: 2 << 30, Replicas: 1, GPUMemoryBytes: 8192 << 20, Arrives: 210 * second, Ends: 211 * second},
	}, records); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]replay.Left{
		{Count: 2, Reason: "3 fields, but the header has 11", First: "line 5"},
		{Count: 2, Reason: "cpu_milli is not a whole number of 0 or more", First: "line 6"},
		{Count: 1, Reason: "deletion_time is before creation_time", First: "line 7"},
		{Count: 1, Reason: "the pod requests no GPU", First: "line 8"},
		{Count: 1, Reason: "the pod requests whole GPUs, which cost the same with and without sharing", First: "line 9"},
		{Count: 1, Reason: "a number is implausibly large", First: "line 11"},
		{Count: 1, Reason: "its quotes are invalid", First: "line 12"},
	}, left); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if again, _, err := replay.ReadCSV(&zipped); err != nil || !cmp.Equal(again, records) {
		t.Errorf("compressed: %v", err)
	}
}

func TestAFileThatIsNoTraceIsRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                       "it is empty",
		"\n\n":                   "it is empty",
		"a,b\n1,2\n":             "line 1, the header, has no column cpu_milli: it needs cpu_milli, memory_mib, num_gpu, gpu_milli, creation_time, deletion_time",
		"\x1f\x8bnonsense":       "decompressing it",
		strings.Repeat("x", 2e6): "reading line 1: bufio.Scanner: token too long",
	} {
		if records, _, err := replay.ReadCSV(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) || records != nil {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
}

func TestValuesThatAreNoNumbersDoNotCount(t *testing.T) {
	t.Parallel()
	gpu := model.Metric{"namespace": "a", "pod": "b", "resource": "nvidia_com_gpu"}
	var o replay.Observed
	if err := o.Requests(model.Matrix{series(gpu, 1, math.NaN(), 1), series(model.Metric{"pod": "c", "resource": "nvidia_com_gpu"}, math.Inf(1), math.Inf(-1))}); err != nil {
		t.Fatal(err)
	}
	records, left, _ := o.Records(time.Unix(1000, 0), time.Unix(5000, 0), 5*time.Minute)
	if len(records) != 1 || records[0].Replicas != 1 || len(left) != 1 || left[0].Reason != "a number is implausibly large" {
		t.Errorf("%+v, %+v", records, left)
	}
}

// FuzzAnswers checks that what is read from answers of a Prometheus can be replayed.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`[{"metric": {"pod": "a", "resource": "nvidia_com_gpu"}, "values": [[1000, "1"], [1300, "NaN"], [1e300, "+Inf"], [-1e300, "-1e308"]]}]`), []byte(`[{"metric": {"pod": "a"}, "values": [[1300, "1e18"]]}]`))
	f.Add([]byte(`[{"metric": {"pod": "a", "resource": "cpu"}, "values": [[1000.5, "1e300"]]}, {}, null]`), []byte(`[{"values": [[1, "900"]]}]`))
	f.Fuzz(func(t *testing.T, requests, times []byte) {
		var asks, at model.Matrix
		if json.Unmarshal(requests, &asks) != nil || json.Unmarshal(times, &at) != nil {
			return
		}
		var o replay.Observed
		if err := errors.Join(o.Requests(asks), o.Created(at), o.Completed(at)); err != nil {
			t.Fatal(err)
		}
		start := time.Unix(1000, 0)
		records, _, _ := o.Records(start, start.Add(time.Hour), 5*time.Minute)
		for _, r := range records {
			if r.Arrives < 0 || r.Ends <= r.Arrives || r.Ends > time.Hour || r.Replicas <= 0 || r.Replicas > 1_000_000 || r.MilliCPU < 0 || r.MemoryBytes < 0 {
				t.Fatalf("%+v", r)
			}
		}
	})
}

// FuzzReadCSV checks that what is read can be replayed: the pods are in order, end after they arrive, and request something that a machine may have.
func FuzzReadCSV(f *testing.F) {
	f.Add([]byte(header + "a,1000,2048,1,500,,LS,Running,100,200,100\nb,1,1,1,1,,,,0,,\n"))
	f.Add([]byte("gpu_milli,num_gpu,cpu_milli,memory_mib,deletion_time,creation_time\n1,1,1,1,9000000000,0\n"))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, content []byte) {
		records, left, err := replay.ReadCSV(bytes.NewReader(content))
		if err != nil && (records != nil || left != nil) {
			t.Fatal("there is a trace beside the error")
		}
		last := time.Duration(0)
		for _, r := range records {
			if r.Arrives < last || r.Ends <= r.Arrives || r.Replicas != 1 || r.GPUMemoryBytes <= 0 || r.GPUMemoryBytes > 16<<30 || r.MilliCPU < 0 || r.MemoryBytes < 0 {
				t.Fatalf("%+v after %v", r, last)
			}
			last = r.Arrives
		}
	})
}

func TestTheOpenbTraceIsRead(t *testing.T) {
	t.Parallel()
	f, err := os.Open("../../../shared/data/openb-pods.csv.gz")
	if err != nil {
		t.Skip("there is no openb trace")
	}
	defer f.Close()
	records, left, err := replay.ReadCSV(f)
	if err != nil || len(records) != 3078 {
		t.Errorf("%d pods, %v, left out %v", len(records), err, left)
	}
}

func series(labels model.Metric, values ...float64) *model.SampleStream {
	s := &model.SampleStream{Metric: labels}
	for i, v := range values {
		if v != 0 {
			s.Values = append(s.Values, model.SamplePair{Timestamp: model.TimeFromUnix(1000 + int64(i)*300), Value: model.SampleValue(v)})
		}
	}
	return s
}

func TestPodsOfPrometheusAreRead(t *testing.T) {
	t.Parallel()
	pod := func(name, uid, resource string) model.Metric {
		m := model.Metric{"namespace": "batch", "pod": model.LabelValue(name), "uid": model.LabelValue(uid)}
		if resource != "" {
			m["resource"] = model.LabelValue(resource)
		}
		return m
	}
	var o replay.Observed
	err := o.Requests(model.Matrix{
		// A pod from before the time, a Job that completes, a pod of the same name that comes later, and one that was not seen being created.
		series(pod("old", "1", "cpu"), 0.5, 0.5), series(pod("old", "1", "memory"), 1<<30, 1<<30), series(pod("old", "1", "nvidia_com_gpu_shared"), 2, 2),
		series(pod("job", "2", "nvidia_com_gpu"), 0, 1, 1), series(pod("job", "2", "cpu"), 0, 0.0001, 0.0001),
		series(pod("job", "3", "nvidia_com_gpu"), 0, 0, 0, 1),
		series(pod("cpu", "4", "cpu"), 1, 1), series(pod("huge", "5", "nvidia_com_gpu"), 1e300),
	})
	err = errors.Join(err, o.Created(model.Matrix{series(pod("old", "1", ""), 500), series(pod("job", "2", ""), 0, 1200, 1200), series(pod("gone", "6", ""), 1200)}))
	if err = errors.Join(err, o.Completed(model.Matrix{series(pod("job", "2", ""), 0, 0, 1500)})); err != nil {
		t.Fatal(err)
	}
	start := time.Unix(1000, 0)
	records, left, dated := o.Records(start, start.Add(15*time.Minute), 5*time.Minute)
	second := time.Second
	if diff := cmp.Diff([]replay.Record{
		{MilliCPU: 500, MemoryBytes: 1 << 30, Replicas: 2, Arrives: 0, Ends: 600 * second},
		{MilliCPU: 1, Replicas: 1, Arrives: 200 * second, Ends: 500 * second},
	}, records); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]replay.Left{
		{Count: 1, Reason: "the pod requests no GPU", First: "batch/cpu"},
		{Count: 1, Reason: "a number is implausibly large", First: "batch/huge"},
		{Count: 1, Reason: "the pod ended as it began, or before the replay", First: "batch/job"},
	}, left); diff != "" || !dated {
		t.Errorf("(-want +got)\n%s", diff)
	}
	chunks := replay.Chunks(start, start.Add(50*time.Hour), 24*time.Hour)
	if len(chunks) != 3 || chunks[0][0] != start || chunks[1][0] != chunks[0][1] || chunks[2][1] != start.Add(50*time.Hour) {
		t.Errorf("%v", chunks)
	}
}
