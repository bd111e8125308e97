package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestDemoEndsWithTheReaderOfItsOutput(t *testing.T) {
	t.Parallel()
	read, written, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = written.Close() })
	ended := 0
	s := newStory(readByOthers{written, func() { ended++ }})
	s.print("somebody reads this")
	if ended > 0 {
		t.Error("it ended although its output is read")
	}
	if err := read.Close(); err != nil {
		t.Fatal(err)
	}
	if s.print("nobody reads this"); ended != 1 {
		t.Errorf("it ended %d times, want once", ended)
	}
}

func TestLongBuildIsReportedBeforeAndWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := newStory(&out)
		if err := s.building("helm, which renders the chart", func() error {
			if !strings.Contains(out.String(), "building helm, which renders the chart\n") {
				t.Errorf("output before the build:\n%s", out.String())
			}
			time.Sleep(2*stillAfter + 5*time.Second)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(out.String(), "still building helm\n"); got != 2 {
			t.Errorf("the running build was printed %d times, want 2:\n%s", got, out.String())
		}
	})
}
