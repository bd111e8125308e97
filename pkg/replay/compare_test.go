package replay_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand"
	"os"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/manifests"
	"karve.sh/karve/pkg/replay"
	"karve.sh/karve/pkg/snapshot/facts"
)

// examples returns the cluster that the examples describe: ten replicas of each GPU of g4dn and g5.
func examples(t testing.TB) *facts.Cluster {
	t.Helper()
	var files []manifests.File
	for _, name := range []string{"gpunodeclass.yaml", "nodepool.yaml"} {
		content, err := os.ReadFile("../../examples/" + name)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, manifests.File{Name: name, Content: content})
	}
	c, _, err := manifests.Read(t.Context(), files)
	if err != nil {
		t.Fatal(err)
	}
	types, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	c.UseInstanceTypes(types)
	return c
}

// month returns the CSV of a trace with pods over a time. Pods are in twenty shapes, and a tenth of them live more than twenty times as long as the median.
func month(pods int, over time.Duration, median float64) string {
	r := rand.New(rand.NewSource(1))
	var b strings.Builder
	b.WriteString("name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n")
	for i := range pods {
		at := int64(float64(i) / float64(pods) * over.Seconds())
		lives := int64(math.Exp(r.NormFloat64()*2.3) * median)
		s := r.Intn(20)
		fmt.Fprintf(&b, "p%d,%d,%d,1,%d,%d,%d\n", i, 250+250*(s%7), 1024+512*(s%11), 50+50*(s%9), at, at+max(1, lives))
	}
	return b.String()
}

func compare(t testing.TB, csv string) replay.Comparison {
	t.Helper()
	recording, err := replay.ReadCSV(strings.NewReader(csv))
	if err != nil || len(recording.Left) > 0 {
		t.Fatalf("%v, left out: %v", err, recording.Left)
	}
	traces, err := replay.Build(examples(t), recording.Records, recording.Duration())
	if err != nil {
		t.Fatal(err)
	}
	c, err := replay.Compare(traces)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func BenchmarkAMonthOf100000Pods(b *testing.B) {
	csv := month(100_000, 30*24*time.Hour, 300)
	for b.Loop() {
		c := compare(b, csv)
		b.ReportMetric(c.Running, "pods")
		var out bytes.Buffer
		for _, o := range c.Outcomes {
			fmt.Fprintf(&out, "%s: %d, %d launched, peak %d, moved %d\n", o.Policy, o.Mean, o.Launched, o.Peak, o.Moved)
		}
		b.Log(out.String())
	}
}
