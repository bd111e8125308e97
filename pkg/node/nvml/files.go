package nvml

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// errFile means that a device file is missing, or that the container may no longer use it, as after systemd's daemon-reload. Open files stay open, but
// neither this process nor those of pods can open the file again.
var errFile = errors.New("restart the pod: only a new container is given it again")

// checkFiles checks the device files that existed before. If there were none, as on a machine without GPUs, it checks nothing.
func (l *Library) checkFiles() error {
	control := filepath.Join(l.options.Dev, "nvidiactl")
	err := unix.Access(control, unix.R_OK|unix.W_OK)
	l.mu.Lock()
	l.files = l.files || err == nil
	files := l.files
	l.mu.Unlock()
	if !files {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %w", control, err, errFile)
	}
	for _, k := range l.alive() {
		path := filepath.Join(l.options.Dev, fmt.Sprintf("nvidia%d", k.device.Minor))
		if err := unix.Access(path, unix.R_OK|unix.W_OK); err != nil {
			return fmt.Errorf("%s: %w: %w", path, err, errFile)
		}
	}
	return nil
}
