package replay_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"slices"
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
"j
",1000
k,1000.0,2048,1.0,500,,LS,Running,300,300,
l,1000,2048
m,1000,2048,1
`
	recording, err := replay.ReadCSV(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	second := time.Second
	if diff := cmp.Diff([]replay.Record{
		{MilliCPU: 1500, MemoryBytes: 1 << 30, Replicas: 1, GPUMemoryBytes: 4096 << 20, Arrives: 0, Ends: 211 * second},
		{MilliCPU: 1000, MemoryBytes: 2 << 30, Replicas: 1, GPUMemoryBytes: 8192 << 20, Arrives: 10 * second, Ends: 110 * second},
		{MilliCPU: 1000, MemoryBytes: 2 << 30, Replicas: 1, GPUMemoryBytes: 8192 << 20, Arrives: 210 * second, Ends: 211 * second},
	}, recording.Records); diff != "" || recording.Duration() != 211*second {
		t.Errorf("%s, (-want +got)\n%s", recording.Duration(), diff)
	}
	if diff := cmp.Diff([]replay.Left{
		{Count: 2, Reason: "3 fields, but the header has 11", First: "line 5"},
		{Count: 2, Reason: "cpu_milli is not a whole number of 0 or more", First: "line 6"},
		{Count: 1, Reason: "deletion_time is before creation_time", First: "line 7"},
		{Count: 1, Reason: "the pod requests no GPU", First: "line 8"},
		{Count: 1, Reason: "the pod requests whole GPUs, which cost the same with and without sharing", First: "line 9"},
		{Count: 1, Reason: "a number is implausibly large", First: "line 11"},
		{Count: 1, Reason: "2 fields, but the header has 11", First: "line 12"},
		{Count: 1, Reason: "4 fields, but the header has 11", First: "line 16"},
	}, recording.Left); diff != "" {
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
	if again, err := replay.ReadCSV(&zipped); err != nil || !cmp.Equal(again, recording) {
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
		strings.Repeat("x", 2e6): "line 1, the header, has no column cpu_milli",
		header + "\"a,1\nb,1":    `record on line 2; parse error on line 3, column 4: extraneous or missing " in quoted-field`,
	} {
		if recording, err := replay.ReadCSV(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) || recording.Records != nil {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
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
		none := func(s *model.SampleStream) bool { return s == nil }
		asks, at = slices.DeleteFunc(asks, none), slices.DeleteFunc(at, none) // As promquery does.
		for _, metrics := range []model.Matrix{nil, at, asks} {
			var o replay.Observed
			if err := errors.Join(o.Metrics(metrics), o.Requests(asks), o.Created(at), o.Scheduled(at), o.Completed(at), o.Ended(at)); err != nil {
				t.Fatal(err)
			}
			start := time.Unix(1000, 0)
			recording := o.Recording(start, start.Add(time.Hour))
			for _, r := range recording.Records {
				if r.Arrives < 0 || r.Ends <= r.Arrives || r.Ends > recording.Duration() || r.Replicas <= 0 || r.Replicas > 1_000_000 || r.MilliCPU < 0 || r.MemoryBytes < 0 {
					t.Fatalf("%+v", r)
				}
			}
			if recording.Duration() < 0 || recording.Duration() > time.Hour {
				t.Fatal(recording.Duration())
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
		recording, err := replay.ReadCSV(bytes.NewReader(content))
		if err != nil && (recording.Records != nil || recording.Left != nil) {
			t.Fatal("there is a trace beside the error")
		}
		last := time.Duration(0)
		for _, r := range recording.Records {
			if r.Arrives < last || r.Ends <= r.Arrives || r.Ends > recording.Duration() || r.Replicas != 1 || r.GPUMemoryBytes <= 0 || r.GPUMemoryBytes > 16<<30 || r.MilliCPU < 0 || r.MemoryBytes < 0 {
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
	recording, err := replay.ReadCSV(f)
	if err != nil || len(recording.Records) != 3078 {
		t.Errorf("%d pods, %v, left out %v", len(recording.Records), err, recording.Left)
	}
}
