package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// story is what the demo prints: a line an event, with the seconds since the demo began.
type story struct {
	mu    sync.Mutex
	out   io.Writer
	began time.Time
	last  time.Time // when something was told
}

func newStory(out io.Writer) *story { return &story{out: out, began: time.Now()} }

func (s *story) tell(format string, args ...any) { s.tellAt(time.Now(), format, args...) }

// tellAt tells of something that was seen to be complete only after it had happened.
func (s *story) tellAt(when time.Time, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
	fmt.Fprintf(s.out, "%6.1fs  %s\n", when.Sub(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// silence is how long nothing was told.
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

// stillAfter is how long nothing may be told while something goes on.
const stillAfter = 8 * time.Second

// whileStill tells now and again that something long goes on.
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
					s.tell("  still %s", doing())
				}
			}
		}
	})
	defer wg.Wait()
	defer close(done)
	return do()
}

// building tells what is built before it is, and that it goes on.
func (s *story) building(what string, build func() error) error {
	s.tell("building %s", what)
	what, _, _ = strings.Cut(what, ",")
	return s.whileStill(func() string { return "building " + what }, build)
}

// progress tells each line that is written to it.
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
		p.story.tell("%s", line)
		if doing := string(line); !strings.HasPrefix(doing, " ") {
			p.last, _, _ = strings.Cut(doing, " (")
		}
	}
}

// doing is what the last line that began something said.
func (p *progress) doing() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}
