package mig

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Capabilities reads the device files through which the driver gives access to MIG instances, one for each GPU instance and each compute instance.
type Capabilities struct {
	// Proc is the proc file system. It defaults to /proc.
	Proc string
}

func (c Capabilities) proc() string {
	if c.Proc == "" {
		return "/proc"
	}
	return c.Proc
}

// Minors returns the minor numbers of the device files by capability, for example "gpu0/gi7/ci0/access".
func (c Capabilities) Minors() (map[string]int, error) {
	path := filepath.Join(c.proc(), "driver", "nvidia-caps", "mig-minors")
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	minors := map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, number, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		minor, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %q is no number", path, number)
		}
		minors[name] = minor
	}
	return minors, nil
}

// Paths returns the device files in /dev of a MIG instance, given the minor number of its GPU and the driver's numbers of the instance.
func (c Capabilities) Paths(gpuMinor, instance, compute int) ([]string, error) {
	minors, err := c.Minors()
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, name := range deviceNames(gpuMinor, instance, compute) {
		minor, ok := minors[name]
		if !ok {
			return nil, fmt.Errorf("the driver has no capability %s", name)
		}
		paths = append(paths, "/dev/nvidia-caps/nvidia-cap"+strconv.Itoa(minor))
	}
	return paths, nil
}

// deviceNames returns the capabilities of an instance.
func deviceNames(gpuMinor, instance, compute int) []string {
	return []string{fmt.Sprintf("gpu%d/gi%d/access", gpuMinor, instance), fmt.Sprintf("gpu%d/gi%d/ci%d/access", gpuMinor, instance, compute)}
}

// Create creates the missing device files of all existing instances in a directory, the machine's /dev/nvidia-caps. Container runtimes also create
// them, but device files that are passed by name must exist before.
func (c Capabilities) Create(dir string, mknod func(path string, major, minor int) error) error {
	minors, err := c.Minors()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // The driver has none.
	}
	if err != nil {
		return err
	}
	major, err := c.major()
	if err != nil {
		return err
	}
	for name, minor := range minors {
		if _, err := os.Stat(filepath.Join(c.proc(), "driver", "nvidia", "capabilities", migCapability(name))); err != nil {
			continue // There is a number for each possible instance.
		}
		if err := mknod(filepath.Join(dir, "nvidia-cap"+strconv.Itoa(minor)), major, minor); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// migCapability returns the driver's file for a capability: "gpu0/gi7/access" is gpu0/mig/gi7/access, and "config" is mig/config.
func migCapability(name string) string {
	gpu, rest, ok := strings.Cut(name, "/")
	if !ok {
		return filepath.Join("mig", name)
	}
	return filepath.Join(gpu, "mig", rest)
}

// major returns the major number of the device files.
func (c Capabilities) major() (int, error) {
	data, err := os.ReadFile(filepath.Join(c.proc(), "devices"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if number, ok := strings.CutSuffix(strings.TrimSpace(line), " nvidia-caps"); ok {
			return strconv.Atoi(number)
		}
	}
	return 0, errors.New("the kernel has no devices nvidia-caps: the driver is not loaded, or is too old for MIG")
}

// mknod creates a device file that everybody may read, like the driver's own: read access gives access to an instance.
func mknod(path string, major, minor int) error {
	number := uint64(minor&0xff) | uint64(major&0xfff)<<8 | uint64(minor&^0xff)<<12
	if err := syscall.Mknod(path, syscall.S_IFCHR|0o444, int(number)); err != nil {
		return &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return os.Chmod(path, 0o444) //nolint:gosec // The umask may have taken it away.
}
