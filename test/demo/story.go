package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"
)

// readByOthers is an output that calls closed when its reader is gone.
type readByOthers struct {
	io.Writer
	closed func()
}

func (o readByOthers) Write(b []byte) (int, error) {
	n, err := o.Writer.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		o.closed()
	}
	return n, err //nolint:wrapcheck // It is the writer's.
}

// story prints the events of the demo, one line each, with the seconds since the demo began.
type story struct {
	mu    sync.Mutex
	out   io.Writer
	began time.Time
	last  time.Time // time of the last line
}

func newStory(out io.Writer) *story { return &story{out: out, began: time.Now()} }

func (s *story) print(format string, args ...any) { s.printAt(time.Now(), format, args...) }

// printAt prints an event that happened at an earlier time.
func (s *story) printAt(when time.Time, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
	fmt.Fprintf(s.out, "%6.1fs  %s\n", when.Sub(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// silence returns the time since the last line.
func (s *story) silence() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.last)
}

func (s *story) chapter(title string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "\n%s\n", title)
}

// stillAfter is the longest time without output while something runs.
const stillAfter = 8 * time.Second

// whileStill runs do, and regularly prints that it still runs.
func (s *story) whileStill(doing func() string, do func() error) error {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if s.silence() >= stillAfter {
					s.print("  still %s", doing())
				}
			}
		}
	})
	defer wg.Wait()
	defer close(done)
	return do()
}

// building prints what it builds, runs the build, and regularly prints that it still runs.
func (s *story) building(what string, build func() error) error {
	s.print("building %s", what)
	what, _, _ = strings.Cut(what, ",")
	return s.whileStill(func() string { return "building " + what }, build)
}

// progress prints each line that is written to it.
type progress struct {
	story *story
	mu    sync.Mutex
	rest  []byte
	last  string
}

func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = append(p.rest, b...)
	for {
		line, rest, whole := bytes.Cut(p.rest, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		p.rest = rest
		p.story.print("%s", line)
		if doing := string(line); !strings.HasPrefix(doing, " ") {
			p.last, _, _ = strings.Cut(doing, " (")
		}
	}
}

// doing returns the last line that announced a step.
func (p *progress) doing() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}
