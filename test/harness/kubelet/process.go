package kubelet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a program that runs in the node's namespaces, where /var/lib/kubelet is the node's.
type Process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended and was reaped
	err  error         // how it ended; read after done
}

// Program is a program to run on the node.
type Program struct {
	// Name is the name of its log.
	Name string
	Path string
	Args []string
	Env  []string
	// Stdin is what it reads.
	Stdin string
}

// Run starts a program on the node, like a DaemonSet that mounts the node's paths. The program ends with the node.
func (n *Node) Run(p Program) (*Process, error) {
	log, err := os.OpenFile(n.Log(p.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.Name, err)
	}
	defer func() { _ = log.Close() }()
	// Do not use CommandContext: the process outlives the context of Start.
	cmd := exec.Command(p.Path, p.Args...) //nolint:noctx // The tests' own programs.
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(p.Stdin), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := inNamespaces(n.init.Process.Pid, cmd.Start); err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.Name, err)
	}
	process := &Process{cmd: cmd, log: log.Name(), done: make(chan struct{})}
	go func() {
		process.err = cmd.Wait()
		close(process.done)
	}()
	return process, nil
}

// inNamespaces calls f on a thread in the mount namespace of the process pid, whose children are in its PID namespace. Go starts a child from the
// calling thread. The thread ends with f, because it cannot return to its old namespaces.
func inNamespaces(pid int, f func() error) error {
	result := make(chan error)
	var work func()
	work = func() {
		runtime.LockOSThread() // Never unlocked, so that the thread ends with the goroutine.
		if unix.Gettid() == os.Getpid() {
			// The first thread cannot end. Hold it while another thread does the work.
			defer runtime.UnlockOSThread()
			next := make(chan struct{})
			go func() {
				defer close(next)
				work()
			}()
			<-next
			return
		}
		result <- func() error {
			// A thread that shares its working directory with others cannot change its mount namespace.
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("leaving the file system: %w", err)
			}
			// Enter the PID namespace first: afterwards /proc is that of the mount namespace.
			for _, ns := range []struct {
				name string
				kind int
			}{{"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}} {
				file, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "ns", ns.name))
				if err != nil {
					return err
				}
				err = unix.Setns(int(file.Fd()), ns.kind)
				_ = file.Close()
				if err != nil {
					return fmt.Errorf("entering the %s namespace: %w", ns.name, err)
				}
			}
			return f()
		}()
	}
	go work()
	return <-result
}

// startInit starts process 1 of new namespaces and returns when it has created the mounts. When the pipe is closed, it ends together with everything in
// the namespaces.
func startInit(bin, dir, group string) (*exec.Cmd, io.Closer, error) {
	cmd := exec.Command(bin, dir, group) //nolint:noctx // As in Run.
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	life, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("starting init: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("starting init: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("starting init: %w", err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		_ = life.Close()
		return nil, nil, fmt.Errorf("starting init: it said %q (%w): %w", line, err, cmd.Wait())
	}
	return cmd, life, nil
}

// PID returns the process ID outside the node's namespaces.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log returns the path of the log.
func (p *Process) Log() string { return p.log }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends a signal to the process.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signaling %s: %w", filepath.Base(p.cmd.Path), err)
	}
	return nil
}

// Kill kills the process, as a crash does.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL)
	<-p.done
}

// Stop sends SIGTERM, and kills the process after the grace period.
func (p *Process) Stop(grace time.Duration) {
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		p.Kill()
	}
}

// ResidentKiB returns the resident memory of the process, in KiB.
func (p *Process) ResidentKiB() (int64, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0, fmt.Errorf("reading the memory of %s: %w", filepath.Base(p.cmd.Path), err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var kib int64
		if _, err := fmt.Sscanf(lines.Text(), "VmRSS: %d kB", &kib); err == nil {
			return kib, nil
		}
	}
	return 0, fmt.Errorf("reading the memory of %s: no VmRSS", filepath.Base(p.cmd.Path))
}
