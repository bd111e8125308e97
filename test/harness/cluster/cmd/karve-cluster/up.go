package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"

	"karve.sh/karve/test/harness/cluster"
)

// up starts a supervisor in a session of its own, so that it survives the terminal. It returns when the cluster is ready.
func up(ctx context.Context, s state, gates string, out io.Writer) error {
	if err := cluster.Missing(); err != nil {
		return err
	}
	lock, err := s.hold(false)
	if errors.Is(err, errHeld) {
		_, _ = fmt.Fprintf(out, "Cluster %s is already up; `karve-cluster down --name %s` stops it.\n", s.name, s.name)
		return howToUse(s, out)
	}
	if err != nil {
		return fmt.Errorf("starting cluster %s: %w", s.name, err)
	}
	defer func() { _ = lock.Close() }()
	// Remove what a killed supervisor left behind. Its child processes died with it.
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("removing what is left of cluster %s: %w", s.name, err)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("starting cluster %s: %w", s.name, err)
	}
	began := time.Now()
	_, _ = fmt.Fprintf(out, "Starting cluster %s\n", s.name)
	if err := startSupervisor(ctx, s, gates, lock); err != nil {
		return fmt.Errorf("starting cluster %s: %w", s.name, err)
	}
	_, _ = fmt.Fprintf(out, "Ready after %s\n", time.Since(began).Round(100*time.Millisecond))
	return howToUse(s, out)
}

func startSupervisor(ctx context.Context, s state, gates string, lock *os.File) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = ready.Close() }()
	// Do not use CommandContext: the supervisor outlives this command.
	cmd := exec.Command(self, supervise, "--name", s.name, "--feature-gates", gates) //nolint:gosec,noctx // ourselves
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.root, log, log
	// The supervisor inherits the lock, so it is held without interruption.
	cmd.ExtraFiles = []*os.File{readyEnd, lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	// If the supervisor dies, its end of the pipe closes, so the read ends in any case.
	_ = readyEnd.Close()
	if err := writePID(lock, cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	answer := make(chan error, 1)
	go func() {
		said, err := io.ReadAll(ready)
		switch {
		case err != nil:
			answer <- err
		case string(said) != supervisorReady:
			answer <- errors.New(string(said))
		default:
			answer <- nil
		}
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		return errors.Join(ctx.Err(), s.remove())
	}
}

func writePID(lock *os.File, pid int) error {
	if err := lock.Truncate(0); err != nil {
		return err
	}
	_, err := lock.WriteAt([]byte(strconv.Itoa(pid)), 0)
	return err
}

func howToUse(s state, out io.Writer) error {
	relative := func(path string) string {
		if wd, err := os.Getwd(); err == nil {
			if r, err := filepath.Rel(wd, path); err == nil {
				return r
			}
		}
		return path
	}
	dir := relative(s.dir)
	_, err := fmt.Fprintf(out, "\n  export KUBECONFIG=%s\n  %s get nodeclaims,nodes,pods -A\n\n"+
		"For a program that calls AWS, such as Karve's controller: set -a; . %s/aws.env; set +a\nLogs: %s/*.log\n",
		relative(s.kubeconfig()), relative(s.kubectl()), dir, dir)
	return err
}

// down stops the supervisor and its child processes, and removes the folder.
func down(ctx context.Context, s state, out io.Writer) error {
	lock, err := s.hold(false)
	if err == nil {
		defer func() { _ = lock.Close() }()
		_, _ = fmt.Fprintf(out, "Cluster %s is not up.\n", s.name)
		return s.remove()
	}
	if !errors.Is(err, errHeld) {
		return fmt.Errorf("stopping cluster %s: %w", s.name, err)
	}
	pid, err := s.supervisor()
	if err != nil {
		return err
	}
	gone := make(chan error, 1)
	go func() {
		lock, err := s.hold(true)
		if err == nil {
			defer func() { _ = lock.Close() }()
			err = s.remove()
		}
		gone <- err
	}()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stopping cluster %s: %w", s.name, err)
		}
		select {
		case err := <-gone:
			if err != nil {
				return fmt.Errorf("stopping cluster %s: %w", s.name, err)
			}
			_, _ = fmt.Fprintf(out, "Cluster %s is down.\n", s.name)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(15 * time.Second):
		}
	}
	return fmt.Errorf("stopping cluster %s: its supervisor (pid %d) does not end", s.name, pid)
}

func list(root string, out io.Writer) error {
	entries, err := os.ReadDir(clustersDir(root))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(table, "NAME\tSTATE\tKUBECONFIG")
	for _, e := range entries {
		s, err := newState(root, e.Name())
		if err != nil || !e.IsDir() {
			continue // a lock file, or not made by this command
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", s.name, s.is(), s.kubeconfig())
	}
	return table.Flush()
}

func (s state) is() string {
	lock, err := s.hold(false)
	switch {
	case err == nil:
		_ = lock.Close()
		return "dead"
	case !errors.Is(err, errHeld):
		return err.Error()
	case !s.ready():
		return "starting"
	default:
		return "up"
	}
}
