//go:build cgo

package nvml

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// errFile is that a device file is gone, or that the container must not use it any more, as after systemd's daemon-reload. What is open stays open, and
// nobody can open it again: neither this process nor a pod's.
var errFile = errors.New("restart the pod: only a new container is given it again")

// checkFiles looks for the device files that were there before. Where there was none, as on a machine without GPUs, there is nothing to look for.
func (l *Library) checkFiles() error {
	control := filepath.Join(l.options.Dev, "nvidiactl")
	err := unix.Access(control, unix.R_OK|unix.W_OK)
	l.mu.Lock()
	l.files = l.files || err == nil
	files := l.files
	var minors []int
	for uuid, k := range l.known {
		if !l.lost[uuid] {
			minors = append(minors, k.device.Minor)
		}
	}
	l.mu.Unlock()
	if !files {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %w", control, err, errFile)
	}
	for _, minor := range minors {
		path := filepath.Join(l.options.Dev, fmt.Sprintf("nvidia%d", minor))
		if err := unix.Access(path, unix.R_OK|unix.W_OK); err != nil {
			return fmt.Errorf("%s: %w: %w", path, err, errFile)
		}
	}
	return nil
}
