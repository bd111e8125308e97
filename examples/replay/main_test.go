package main

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/replay"
)

func TestTheTraceIsTheGeneratedOne(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	if err := write(&got); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("trace.csv")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("go run ./examples/replay > examples/replay/trace.csv writes it (-file +generated):\n%s", diff)
	}
	r, err := replay.ReadCSV(&got)
	if err != nil || len(r.Records) != 98 || len(r.Left) > 0 || r.Duration().Hours() != 24 {
		t.Errorf("%d pods in %v, without %v, %v", len(r.Records), r.Duration(), r.Left, err)
	}
}

// TestTheDocumentedResultSavesMoney reads the savings that docs/replay.md shows. A test of kubectl karve compares the whole result with a replay.
func TestTheDocumentedResultSavesMoney(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/replay.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^(?:a whole GPU for each replica|shared GPUs, Karpenter alone) +[\d.]+ +[\d.]+ +(-?\d+) %`).FindAllSubmatch(text, -1)
	if len(rows) != 2 {
		t.Fatalf("the page shows %d savings", len(rows))
	}
	for _, row := range rows {
		if saves, err := strconv.Atoi(string(row[1])); err != nil || saves < 10 {
			t.Errorf("%s: %v", row[0], err)
		}
	}
}
