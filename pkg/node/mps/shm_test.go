package mps_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"karve.sh/karve/pkg/node/mps"
)

// newMountingWorld returns a node whose supervisor mounts shared memory of 2 MiB for each GPU.
func newMountingWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.stop()
	w.shmMiB = 2
	t.Cleanup(func() {
		for _, d := range w.driver.devices {
			_ = syscall.Unmount(mps.ShmDir(w.dir, d.UUID), syscall.MNT_DETACH) // It may not be mounted.
		}
	})
	probe := t.TempDir()
	if err := syscall.Mount("probe", probe, "tmpfs", 0, ""); err != nil {
		t.Skip("this process may not mount:", err)
	}
	if err := syscall.Unmount(probe, 0); err != nil {
		t.Fatal(err)
	}
	w.run()
	return w
}

// fill writes files to a directory until that fails, and returns how many MiB it has then.
func fill(t *testing.T, dir string) int {
	t.Helper()
	block := make([]byte, 1<<20)
	for n := range 64 {
		if err := os.WriteFile(filepath.Join(dir, "block-"+strconv.Itoa(n)), block, 0o600); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			return n
		}
	}
	return 64
}

func TestClientsCannotFillTheMemoryOfTheNode(t *testing.T) {
	t.Parallel()
	w := newMountingWorld(t)
	a, b := both(w.driver.devices)
	w.want(a, b)
	w.ready(a, b)
	if got := fill(t, mps.ClientShm(w.dir, a.UUID)); got != 2 {
		t.Errorf("a client of a GPU with 2 MiB of shared memory writes %d MiB", got)
	}
	if _, err := os.Stat(filepath.Join(mps.ClientShm(w.dir, b.UUID), "block-0")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("clients of another GPU have the same shared memory: %v", err)
	}
	if err := os.WriteFile(filepath.Join(mps.ClientShm(w.dir, b.UUID), "other"), []byte("a"), 0o600); err != nil {
		t.Errorf("the shared memory of another GPU is full: %v", err)
	}
	seen := func() error {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/dev/shm/block-0", w.pid(a.UUID))); err != nil {
			return fmt.Errorf("the daemon does not see what its clients share: %w", err)
		}
		return nil
	}
	w.eventually("the daemon has the shared memory at /dev/shm", seen)
	if _, err := os.Stat("/dev/shm/block-0"); err == nil {
		t.Error("the mount of the daemon is one of the machine")
	}

	// The memory stays for clients when the daemon or the supervisor ends, and its size changes with the next daemon.
	pid := w.pid(a.UUID)
	w.stop()
	w.shmMiB = 3
	w.run()
	w.eventually("another daemon runs", func() error {
		if now := w.pid(a.UUID); now == pid || now == 0 {
			return errors.New("it is the same one")
		}
		return nil
	})
	w.ready(a, b)
	w.eventually("the daemon has the shared memory at /dev/shm", seen)
	if got := fill(t, mps.ClientShm(w.dir, a.UUID)); got != 3 {
		t.Errorf("with 3 MiB a client writes %d MiB", got)
	}

	// A GPU without a daemon needs no memory.
	w.want(b)
	w.eventually("the memory is unmounted", func() error {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err == nil && strings.Contains(string(mounts), mps.ShmDir(w.dir, a.UUID)) {
			err = errors.New("it is mounted")
		}
		return err
	})
}
