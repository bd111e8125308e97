package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"karve.sh/karve/test/harness/cluster"
)

// TestMain lets the test binary act as the supervisor that `up` starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == supervise {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestClusterStaysUntilDownAndDiesWithItsSupervisor(t *testing.T) {
	cluster.Require(t)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newState(root, fmt.Sprintf("test-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = down(context.WithoutCancel(t.Context()), s, &bytes.Buffer{}) })

	said := &bytes.Buffer{}
	must(t, up(t.Context(), s, "", said))
	contains(t, said, "Ready after", "export KUBECONFIG=", "kubectl")
	first := processesOf(t, s)
	if len(first) != 6 {
		t.Errorf("the supervisor has %d children, want 6", len(first))
	}

	said.Reset()
	must(t, up(t.Context(), s, "", said))
	contains(t, said, "already up", "export KUBECONFIG=")
	said.Reset()
	must(t, list(root, said))
	contains(t, said, s.name+"   up")

	pid, err := s.supervisor()
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	waitNone(t, s)
	lock, err := s.hold(true) // the supervisor ends last
	must(t, err)
	must(t, lock.Close())
	said.Reset()
	must(t, list(root, said))
	contains(t, said, s.name+"   dead")

	must(t, up(t.Context(), s, "NodeOverlay=true", said))
	said.Reset()
	must(t, down(t.Context(), s, said))
	contains(t, said, "is down")
	waitNone(t, s)
	left, err := filepath.Glob(s.dir + "*")
	must(t, err)
	if len(left) > 0 {
		t.Errorf("left after down: %q", left)
	}
	said.Reset()
	must(t, down(t.Context(), s, said))
	contains(t, said, "is not up")
}

func TestFailedUpReportsReason(t *testing.T) {
	cluster.Long(t)
	cluster.Require(t)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newState(root, fmt.Sprintf("test-bad-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = down(context.WithoutCancel(t.Context()), s, &bytes.Buffer{}) })
	err = up(t.Context(), s, "NodeOverlay=perhaps", &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "starting karpenter: it ended") || !strings.Contains(err.Error(), "perhaps") {
		t.Errorf("up: %v, want Karpenter's message about its feature gates", err)
	}
	waitNone(t, s)
}

func TestInvalidClusterNamesAreRefused(t *testing.T) {
	for _, name := range []string{"", "..", "a/b", "-a", "A", strings.Repeat("a", 33)} {
		if _, err := newState(t.TempDir(), name); err == nil {
			t.Errorf("the name %q was accepted", name)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func contains(t *testing.T, said *bytes.Buffer, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(said.String(), w) {
			t.Errorf("said %q, want %q in it", said, w)
		}
	}
}

// waitNone waits until the cluster's processes are gone. The kernel ends them a moment after their parent.
func waitNone(t *testing.T, s state) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for left := processesOf(t, s); len(left) > 0; left = processesOf(t, s) {
		select {
		case <-deadline:
			t.Fatalf("still there: %q", left)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// processesOf returns the processes that have the cluster's folder in their arguments or environment.
func processesOf(t *testing.T, s state) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	must(t, err)
	var names []string
	for _, e := range entries {
		args, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		env, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		if strings.Contains(string(args)+string(env), s.dir+"/") {
			names = append(names, e.Name()+" "+string(bytes.ReplaceAll(args, []byte{0}, []byte(" "))))
		}
	}
	return names
}
