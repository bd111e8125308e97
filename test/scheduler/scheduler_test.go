package scheduler_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"karve.sh/karve/test/scheduler"
)

func start(t *testing.T) *scheduler.Filter {
	t.Helper()
	f, err := scheduler.Start(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// seeds is how many scenarios are drawn.
func seeds(t *testing.T) uint64 {
	t.Helper()
	value := os.Getenv("KARVE_SEEDS")
	if value == "" {
		return 200
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTheSchedulerAgreesWithPlansForWhateverIsDrawn(t *testing.T) {
	f := start(t)
	found := map[string]int{}
	for seed := range seeds(t) {
		s := scheduler.Generate(seed)
		outcome, err := f.Judge(s)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if len(outcome.Complaints) == 0 {
			continue
		}
		kind := outcome.Complaints[0].Kind
		if found[kind]++; found[kind] > 1 {
			continue // One of a kind is enough to read.
		}
		smaller := scheduler.Shrink(s, func(s *scheduler.Scenario) bool { return f.Complains(s, kind) })
		t.Errorf("seed %d: %s", seed, describe(t, f, smaller))
	}
	if len(found) > 0 {
		t.Logf("how often: %v", found)
	}
}

func describe(t *testing.T, f *scheduler.Filter, s *scheduler.Scenario) string {
	t.Helper()
	data, err := s.YAML()
	if err != nil {
		t.Fatal(err)
	}
	outcome, err := f.Judge(s)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, c := range outcome.Complaints {
		text += c.Kind + ": " + c.Text + "\n"
	}
	return text + string(data)
}

func TestTheSchedulerAgreesWithPlansForWhatWasFoundOnce(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no scenarios: %v", err)
	}
	f := start(t)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := scheduler.ReadScenario(data)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		outcome, err := f.Judge(s)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, c := range outcome.Complaints {
			t.Errorf("%s: %s: %s", file, c.Kind, c.Text)
		}
	}
}
