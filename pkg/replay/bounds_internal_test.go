package replay

import (
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/common/model"

	"karve.sh/karve/pkg/snapshot/facts"
)

const header = "cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n"

// spaces is a stream of blank lines without an end.
type spaces struct{}

func (spaces) Read(to []byte) (int, error) {
	for i := range to {
		to[i] = ' '
	}
	to[len(to)-1] = '\n'
	return len(to), nil
}

func TestATraceHasBounds(t *testing.T) {
	t.Parallel()
	for want, in := range map[string]io.Reader{
		"there are more than 4 MiB":                io.MultiReader(strings.NewReader(header), spaces{}),
		"line 1002: there are more than 1000 pods": strings.NewReader(header + strings.Repeat("1,1,1,1,0,\n", 1001)),
	} {
		if _, err := readCSV(in, 4<<20, 1000); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	var text strings.Builder
	text.WriteString(header)
	for i := range 300 {
		text.WriteString(strings.Repeat(",", i) + "\n")
	}
	r, err := ReadCSV(strings.NewReader(text.String()))
	left := r.Left
	if err != nil || len(left) != 101 || left[100].Reason != "other reasons" || left[100].Count < 100 {
		t.Errorf("%d reasons, %v: %+v", len(left), err, left[len(left)-1])
	}
	var records []Record
	for i := range 10_001 {
		records = append(records, Record{MilliCPU: int64(i), Replicas: 1, Ends: 1})
	}
	if _, err := Build(&facts.Cluster{}, records, 1); err == nil || err.Error() != "the pods have 10001 different requests, and a replay is made for at most 10000" {
		t.Error(err)
	}
}

func TestPrometheusHasNoMorePodsThanAReplay(t *testing.T) {
	t.Parallel()
	var answer model.Matrix
	for i := range 1001 {
		answer = append(answer, &model.SampleStream{Metric: model.Metric{"pod": model.LabelValue(strconv.Itoa(i))}, Values: []model.SamplePair{{Value: 1000}}})
	}
	o := Observed{limit: 1000}
	if err := o.Created(answer); err == nil || err.Error() != "there are more than 1000 pods" {
		t.Error(err)
	}
}
