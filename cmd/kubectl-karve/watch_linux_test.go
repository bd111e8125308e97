package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/overview/overviewtest"
)

// screen is a terminal, and what was drawn on it.
type screen struct {
	user, program *os.File
	mu            sync.Mutex
	drawn         bytes.Buffer
}

// newScreen opens a pseudo-terminal of 12 lines of 100 characters.
func newScreen(t *testing.T) *screen {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("this computer has no pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { _ = user.Close() })
	if err := unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	if err := unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 12, Col: 100}); err != nil {
		t.Fatal(err)
	}
	s := &screen{user: user, program: program}
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := user.Read(buffer)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.drawn.Write(buffer[:n])
			s.mu.Unlock()
		}
	}()
	return s
}

// await waits until a text has been drawn, and forgets what was drawn until then.
func (s *screen) await(t *testing.T, text string) {
	t.Helper()
	for range 500 {
		s.mu.Lock()
		at := strings.Index(s.drawn.String(), text)
		if at >= 0 {
			s.drawn.Next(at + len(text))
		}
		s.mu.Unlock()
		if at >= 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Fatalf("%q is not drawn:\n%s", text, visible.Replace(s.drawn.String()))
}

func TestTheLiveViewFollowsKeysAndEnds(t *testing.T) {
	t.Parallel()
	s := newScreen(t)
	before, err := unix.IoctlGetTermios(int(s.program.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- watchNodes(t.Context(), s.program, s.program, view{}, func(context.Context) (*overview.Overview, error) {
			return overview.Build(overviewtest.Example()), nil
		})
	}()
	s.await(t, "\x1b[?1049h")
	s.await(t, "s sort (by name)")
	for _, c := range []struct{ key, want string }{{"s", "replicas held"}, {"p", "nodes"}, {"\x1b[B", "team/infer-1"}, {"q", "\x1b[?1049l"}} {
		if _, err := s.user.WriteString(c.key); err != nil {
			t.Fatal(err)
		}
		s.await(t, c.want)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	after, err := unix.IoctlGetTermios(int(s.program.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is not as it was: %v", err)
	}
}

func TestTheLiveViewDoesNotBeginWithoutACluster(t *testing.T) {
	t.Parallel()
	s := newScreen(t)
	err := watchNodes(t.Context(), s.program, s.program, view{}, func(context.Context) (*overview.Overview, error) { return nil, errors.New("the server is away") })
	if err == nil || err.Error() != "the server is away" {
		t.Errorf("got %v", err)
	}
}

func TestASignalRestoresTheTerminal(t *testing.T) {
	t.Parallel()
	s := newScreen(t)
	before, err := unix.IoctlGetTermios(int(s.program.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	cmd := program(t, "main", "nodes", "--kubeconfig", serve(t, overviewtest.Example()))
	cmd.Stdin, cmd.Stdout = s.program, s.program
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.await(t, "s sort (by name)")
	interrupt(t, cmd, unix.SIGTERM)
	s.await(t, "\x1b[?1049l")
	after, err := unix.IoctlGetTermios(int(s.program.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is not as it was: %v", err)
	}
}

// TestASignalRestoresATerminalThatAcceptsNoOutput interrupts the live view while the user has stopped the output.
func TestASignalRestoresATerminalThatAcceptsNoOutput(t *testing.T) {
	t.Parallel()
	s := newScreen(t)
	before, err := unix.IoctlGetTermios(int(s.program.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	cmd := program(t, "main", "nodes", "--kubeconfig", serve(t, overviewtest.Example()))
	cmd.Stdin, cmd.Stdout = s.program, s.program
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.await(t, "s sort (by name)")
	if err := unix.IoctlSetInt(int(s.program.Fd()), unix.TCXONC, unix.TCOOFF); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // It draws every second.
	interrupt(t, cmd, unix.SIGTERM)
	after, err := unix.IoctlGetTermios(int(s.program.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is not as it was: %v", err)
	}
}
