package mig

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// User is a process that has the device file of a GPU open.
type User struct {
	// PID is the process ID on the machine.
	PID  int
	Name string
	// Computes reports whether it has the device file for computing open. Programs that monitor GPUs do not.
	Computes bool
}

func (u User) String() string { return fmt.Sprintf("%s (process %d)", u.Name, u.PID) }

// Users returns the processes, other than this one, that have device files of the GPUs open, sorted by PID. It reads proc, the proc file system of the
// machine, because in a container the driver does not list processes of other containers. Processes that end meanwhile are left out.
func Users(proc string, minors []int) []User {
	var files []string
	for _, minor := range minors {
		files = append(files, "/dev/nvidia"+strconv.Itoa(minor))
	}
	entries, _ := os.ReadDir(proc) // Without it no process is found, but the driver still refuses.
	var all []User
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, e.Name())
		fds, _ := os.ReadDir(filepath.Join(dir, "fd"))
		u, uses := User{PID: pid}, false
		for _, fd := range fds {
			file, _ := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
			uses = uses || slices.Contains(files, file)
			u.Computes = u.Computes || file == "/dev/nvidia-uvm"
		}
		if uses && !isSelf(dir) {
			name, _ := os.ReadFile(filepath.Join(dir, "comm"))
			u.Name = strings.TrimSpace(string(name))
			all = append(all, u)
		}
	}
	slices.SortFunc(all, func(a, b User) int { return a.PID - b.PID })
	return all
}

// isSelf reports whether a process directory is that of this process: it has the same PID namespace and the same PID in it.
func isSelf(dir string) bool {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return false
	}
	if namespace, err := os.Readlink(filepath.Join(dir, "ns", "pid")); err != nil || namespace != own {
		return false
	}
	status, _ := os.ReadFile(filepath.Join(dir, "status"))
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			pids := strings.Fields(rest)
			return len(pids) > 0 && pids[len(pids)-1] == strconv.Itoa(os.Getpid())
		}
	}
	return false
}
