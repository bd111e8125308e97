//go:build cgo && gpu

package gpu_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// container makes this program run its arguments as a container does, as JSON in the environment.
const container = "KARVE_GPU_CONTAINER"

// isolation is what a container has.
type isolation struct {
	// Devices are the device files that /dev has. If it is nil, /dev is that of the machine.
	Devices []string
	// ReadOnly is a directory that it can only read.
	ReadOnly string
	// User is the user and the group.
	User int
}

func TestMain(m *testing.M) {
	if bundle == "" {
		fmt.Fprintln(os.Stderr, "The suite needs its programs: use make test-gpu.")
		os.Exit(2)
	}
	if text, ok := os.LookupEnv(container); ok {
		var c isolation
		err := json.Unmarshal([]byte(text), &c)
		if err == nil {
			err = c.exec(os.Args[1:])
		}
		fmt.Println("error", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// exec replaces this process, which has a mount namespace of its own. It returns only errors.
func (c isolation) exec(command []string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	if c.Devices != nil {
		if err := c.makeDev(); err != nil {
			return err
		}
	}
	if c.ReadOnly != "" {
		err := syscall.Mount(c.ReadOnly, c.ReadOnly, "", syscall.MS_BIND, "")
		if err == nil {
			err = syscall.Mount("", c.ReadOnly, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
		}
		if err != nil {
			return fmt.Errorf("mounting %s read-only: %w", c.ReadOnly, err)
		}
	}
	// Without this capability of containers, the driver's library cannot make the files that are missing. A thread has it, and Exec keeps the thread.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_MKNOD, 0, 0, 0); err != nil {
		return fmt.Errorf("dropping a capability: %w", err)
	}
	if err := errors.Join(syscall.Setgroups([]int{c.User}), syscall.Setgid(c.User), syscall.Setuid(c.User)); c.User != 0 && err != nil {
		return fmt.Errorf("becoming user %d: %w", c.User, err)
	}
	return syscall.Exec(command[0], command, os.Environ()) //nolint:gosec // The suite's own programs.
}

// makeDev mounts a /dev with the device files.
func (c isolation) makeDev() error {
	dir, err := os.MkdirTemp("", "dev")
	if err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	for _, device := range append(c.Devices, "/dev/null", "/dev/zero", "/dev/urandom") {
		var s syscall.Stat_t
		if err := syscall.Stat(device, &s); err != nil {
			return fmt.Errorf("reading %s: %w", device, err)
		}
		path := filepath.Join(dir, strings.TrimPrefix(device, "/dev/"))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := syscall.Mknod(path, s.Mode, int(s.Rdev)); err != nil { //nolint:gosec // A device number.
			return fmt.Errorf("making %s: %w", device, err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "shm"), 0o700); err != nil {
		return err
	}
	if err := syscall.Mount(dir, "/dev", "", syscall.MS_MOVE, ""); err != nil {
		return fmt.Errorf("mounting /dev: %w", err)
	}
	return nil
}

// in returns a command that runs a program isolated. It skips the test if only root can.
func (w *world) in(c isolation, environment []string, command ...string) *exec.Cmd {
	w.t.Helper()
	if os.Geteuid() != 0 {
		w.t.Skip("only root may isolate a program")
	}
	self, err := os.Executable()
	w.must(err)
	text, err := json.Marshal(c)
	w.must(err)
	cmd := exec.CommandContext(w.t.Context(), self, command...)
	cmd.Env = append(append(os.Environ(), container+"="+string(text)), environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	return cmd
}

// TestOnlyItsDevices lets a program use a GPU with nothing but the device files and variables that the agent answers to the kubelet.
func TestOnlyItsDevices(t *testing.T) {
	w := newWorld(t)
	w.whole(3)
	w.configure(fmt.Sprintf("version: v1\nflags: {plugin: {passDeviceSpecs: true}}\nsharing: {timeSlicing: {resources: [{name: %s, replicas: 4}]}}\n", resource))
	w.run()
	w.allocatable(4 * len(w.devices))
	grant, err := w.kubelet.Admit(t.Context(), "pod", resource, 1)
	w.must(err)
	uuid := grant.Response.GetEnvs()["NVIDIA_VISIBLE_DEVICES"]
	var files, others []string
	own := ""
	for _, d := range w.devices {
		if d.UUID == uuid {
			own = fmt.Sprintf("/dev/nvidia%d", d.Minor)
		} else {
			others = append(others, fmt.Sprintf("/dev/nvidia%d", d.Minor))
		}
	}
	for _, d := range grant.Response.GetDevices() {
		for _, other := range others {
			if d.GetHostPath() == other {
				t.Errorf("the answer has the device file %s of another GPU", other)
			}
		}
		files = append(files, d.GetHostPath())
	}
	attr(t, "files", files)
	use := func(files []string) *process {
		return w.start(&process{cmd: w.in(isolation{Devices: files}, []string{"CUDA_VISIBLE_DEVICES=" + uuid}, w.client, "64")})
	}
	p := use(files)
	if strings.HasPrefix(p.problem, "error mounting") || strings.HasPrefix(p.problem, "error making") {
		t.Skip(p.problem)
	}
	if p.problem != "" {
		t.Errorf("a program with the files %q: %s", files, p.problem)
	} else if err := p.end(); err != nil {
		t.Error(err)
	}
	rest := []string{}
	for _, file := range files {
		if file != own {
			rest = append(rest, file)
		}
	}
	if p := use(rest); p.problem == "" {
		t.Errorf("a program without %s uses the GPU", own)
	} else {
		t.Logf("without %s: %s", own, p.problem)
	}
}
