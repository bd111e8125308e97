// Command init is process 1 of the PID and mount namespaces of a test node. It creates the mounts, reports that, and reaps processes until its standard
// input ends, which also happens when the test is killed. It then kills all processes in its namespaces, and removes the cgroup and containerd's files.
// The mounts disappear with the namespace.
//
//	init <folder of the node> <cgroup of the node>
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"karve.sh/karve/test/harness/kubelet/cgroup"
)

// hidden are the folders to which containerd, runc, the CNI plugins and the kubelet write regardless of their configuration. In the namespace they are
// empty, and their content is discarded.
var hidden = []string{"/run", "/var/lib", "/var/log"}

// tunables are the sysctls that the kubelet and the CNI plugins set for the whole machine. In the namespace they set copies.
var tunables = []string{
	"kernel/keys/root_maxbytes", "kernel/keys/root_maxkeys", "kernel/panic", "kernel/panic_on_oops",
	"vm/overcommit_memory", "vm/panic_on_oom", "net/ipv4/ip_forward",
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir, group string) error {
	if os.Getpid() != 1 {
		return errors.New("init: not process 1 of a namespace of its own")
	}
	dead := make(chan os.Signal, 1)
	signal.Notify(dead, syscall.SIGCHLD)
	if err := mounts(dir); err != nil {
		return err
	}
	if _, err := fmt.Println("ready"); err != nil {
		return err
	}
	go func() {
		for range dead {
			reap(syscall.WNOHANG)
		}
	}()
	_, err := io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, end(dir, group))
}

// reap reaps dead processes. With options 0 it waits until no process is left.
func reap(options int) {
	for {
		pid, err := syscall.Wait4(-1, nil, options, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}

// end kills the node's processes and leaves only files that a user may want to read.
func end(dir, group string) error {
	// A signal to -1 goes to all processes in the namespace except process 1.
	if err := syscall.Kill(-1, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("ending the node: %w", err)
	}
	reap(0)
	err := cgroup.Remove(group)
	mounted, readErr := os.ReadFile("/proc/self/mountinfo")
	for _, line := range slices.Backward(strings.Split(string(mounted), "\n")) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			err = errors.Join(err, syscall.Unmount(fields[4], syscall.MNT_DETACH))
		}
	}
	return errors.Join(err, readErr, os.RemoveAll(filepath.Join(dir, "containerd")))
}

func mounts(dir string) error {
	if err := mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return err
	}
	for _, path := range hidden {
		if err := mount("tmpfs", path, "tmpfs", 0, "mode=755"); err != nil {
			return err
		}
	}
	// Not all device plugins have an option for the kubelet's folder.
	if err := bind(filepath.Join(dir, "kubelet"), "/var/lib/kubelet"); err != nil {
		return err
	}
	for i, name := range tunables {
		path := filepath.Join("/proc/sys", name)
		content, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		own := fmt.Sprintf("/run/tunable-%d", i)
		if err := os.WriteFile(own, content, 0o600); err != nil {
			return err
		}
		if err := mount(own, path, "", syscall.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

func bind(source, target string) error {
	if err := os.MkdirAll(target, 0o755); err != nil { //nolint:gosec // As the kubelet's is.
		return err
	}
	return mount(source, target, "", syscall.MS_BIND|syscall.MS_REC, "")
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := syscall.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mounting %s: %w", target, err)
	}
	return nil
}
