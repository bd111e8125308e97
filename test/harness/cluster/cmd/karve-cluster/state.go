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

// state is the folder of a named cluster and the lock file beside it. The supervisor holds the lock while it lives, and the kernel releases the lock
// when it dies. So a cluster is up exactly while the lock is held. A PID file alone is not enough, because another process may have the PID by now.
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

func (s state) lockFile() string   { return s.dir + ".lock" }
func (s state) readyFile() string  { return filepath.Join(s.dir, "ready") }
func (s state) log() string        { return filepath.Join(s.dir, "supervisor.log") }
func (s state) kubeconfig() string { return filepath.Join(s.dir, "kubeconfig") }
func (s state) kubectl() string    { return filepath.Join(s.root, "_output", "bin", "kubectl") }

// errHeld means that another process, usually a supervisor, holds the lock.
var errHeld = errors.New("somebody holds the lock")

// hold takes the lock. Closing the file releases it. If wait is false, hold returns errHeld instead of waiting.
func (s state) hold(wait bool) (*os.File, error) {
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	for {
		if err := os.MkdirAll(filepath.Dir(s.lockFile()), 0o700); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(s.lockFile(), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := syscall.Flock(int(f.Fd()), how); err != nil {
			_ = f.Close()
			if errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, errHeld
			}
			return nil, err
		}
		// The previous holder may have removed the file while this process waited for the lock.
		held, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if there, err := os.Stat(s.lockFile()); err == nil && os.SameFile(held, there) {
			return f, nil
		}
		_ = f.Close()
	}
}

// remove removes all files of the cluster. The caller must hold the lock.
func (s state) remove() error {
	if err := errors.Join(os.RemoveAll(s.dir), os.Remove(s.lockFile())); err != nil {
		return fmt.Errorf("removing what is left of cluster %s: %w", s.name, err)
	}
	return nil
}

// supervisor returns the PID that `up` wrote into the lock file.
func (s state) supervisor() (int, error) {
	content, err := os.ReadFile(s.lockFile())
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0, fmt.Errorf("cluster %s is just being started or stopped, try again", s.name)
	}
	return pid, nil
}

func (s state) ready() bool {
	_, err := os.Stat(s.readyFile())
	return err == nil
}
