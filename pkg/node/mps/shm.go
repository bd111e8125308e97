package mps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// sharedMemory is where the driver's library shares memory.
const sharedMemory = "/dev/shm"

// OldShmDir returns the directory on the node that clients mount at /dev/shm if their daemon has no shared memory of its own.
func OldShmDir(dir string) string { return filepath.Join(dir, "shm") }

// ShmDir returns the directory on the node with the shared memory of a GPU's daemon.
func ShmDir(dir, uuid string) string { return filepath.Join(dir, uuid, "shm") }

// ClientShm returns the directory on the node that a client of a GPU's daemon mounts at /dev/shm: the one that the running daemon has. A daemon that an
// earlier version started has the directory that all daemons of the node share.
func ClientShm(dir, uuid string) string {
	status, err := ReadStatus(dir)
	for _, d := range status.Daemons {
		if err == nil && d.Limits.UUID == uuid && d.OwnShm {
			return ShmDir(dir, uuid)
		}
	}
	return OldShmDir(dir)
}

// makeOldShm makes the directory for shared memory without a size, which clients of any user write to.
func makeOldShm(dir string) error {
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o777|os.ModeSticky)); err != nil { //nolint:gosec // See above.
		return fmt.Errorf("making the directory of MPS: %w", err)
	}
	return nil
}

// mountShm mounts a tmpfs of the given size for a GPU's daemon and its clients. One that is mounted stays, because clients use it, and gets the size.
func mountShm(dir string, mib int64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // Clients of all users go through it.
		return fmt.Errorf("making the directory for shared memory: %w", err)
	}
	mounted, err := isMount(dir)
	if err != nil {
		return err
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if mounted {
		flags |= unix.MS_REMOUNT
	}
	// Clients of any user write into the shared memory.
	if err := unix.Mount("shm", dir, "tmpfs", flags, fmt.Sprintf("mode=1777,size=%dm", mib)); err != nil && !mounted { // It cannot be made smaller than what is in it.
		return fmt.Errorf("mounting %d MiB of shared memory at %s: %w", mib, dir, err)
	}
	return nil
}

// unmountShm unmounts the shared memory of a GPU that needs no daemon. Its memory is free when the last client is gone.
func unmountShm(dir string) error {
	mounted, err := isMount(dir)
	if err != nil || !mounted {
		return err
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting %s: %w", dir, err)
	}
	return nil
}

func isMount(dir string) (bool, error) {
	var at, above unix.Stat_t
	err := unix.Stat(dir, &at)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err = errors.Join(err, unix.Stat(filepath.Dir(dir), &above)); err != nil {
		return false, fmt.Errorf("looking at %s: %w", dir, err)
	}
	return at.Dev != above.Dev, nil
}

// startWithShm starts a command in a mount namespace of its own, with a directory at /dev/shm.
func startWithShm(command *exec.Cmd, dir string) error {
	result := make(chan error)
	go onThread(func() {
		result <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("making a mount namespace: %w", err)
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
				return fmt.Errorf("keeping mounts in the namespace: %w", err)
			}
			if err := unix.Mount(dir, sharedMemory, "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("mounting %s at %s: %w", dir, sharedMemory, err)
			}
			return command.Start()
		}()
	})
	return <-result
}

// onThread calls f on a thread that ends with it, because a thread cannot return to its old namespaces. A child that f starts has those of the thread.
func onThread(f func()) {
	runtime.LockOSThread() // Never unlocked, so that the thread ends with the goroutine.
	if unix.Gettid() != os.Getpid() {
		f()
		return
	}
	// The first thread cannot end. It is held while another one does the work.
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go func() {
		defer close(done)
		onThread(f)
	}()
	<-done
}
