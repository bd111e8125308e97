package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// state is the folder of a named cluster. The supervisor holds a lock on a file in it as long as it lives; the kernel
// lets go of the lock however it dies, so a cluster is up exactly as long as the lock is held. What a pid file says alone
// may be about another process by now.
type state struct {
	root, name, dir string
}

var nameRE = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

func newState(root, name string) (state, error) {
	if !nameRE.MatchString(name) {
		return state{}, fmt.Errorf("the name %q is not lower-case letters, digits and dashes, 32 at most", name)
	}
	return state{root: root, name: name, dir: filepath.Join(clustersDir(root), name)}, nil
}

func clustersDir(root string) string { return filepath.Join(root, "_output", "clusters") }

func (s state) lockFile() string   { return filepath.Join(s.dir, "lock") }
func (s state) readyFile() string  { return filepath.Join(s.dir, "ready") }
func (s state) log() string        { return filepath.Join(s.dir, "supervisor.log") }
func (s state) kubeconfig() string { return filepath.Join(s.dir, "kubeconfig") }
func (s state) kubectl() string    { return filepath.Join(s.root, "_output", "bin", "kubectl") }

// hold takes the lock, for the caller's life, and writes the caller's pid into it.
func (s state) hold() (*os.File, error) {
	f, err := os.OpenFile(s.lockFile(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("cluster %s is already up", s.name), f.Close())
	}
	if err := f.Truncate(0); err != nil {
		return nil, err
	}
	if _, err := f.WriteString(strconv.Itoa(os.Getpid())); err != nil {
		return nil, err
	}
	return f, nil
}

// holder is the pid of the supervisor that holds the lock, zero when none does.
func (s state) holder() (int, error) {
	f, err := os.Open(s.lockFile())
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	// A shared lock, so that two who look at once do not take each other for the supervisor.
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err == nil {
		return 0, nil
	}
	content, err := os.ReadFile(s.lockFile())
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0, fmt.Errorf("cluster %s is just starting or stopping, try again", s.name)
	}
	return pid, nil
}

// gone returns when nobody holds the lock any more.
func (s state) gone() (<-chan error, error) {
	f, err := os.Open(s.lockFile())
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		done <- syscall.Flock(int(f.Fd()), syscall.LOCK_SH)
		_ = f.Close()
	}()
	return done, nil
}

func (s state) ready() bool {
	_, err := os.Stat(s.readyFile())
	return err == nil
}
