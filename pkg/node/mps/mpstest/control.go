// Package mpstest is a fake nvidia-cuda-mps-control. It behaves as NVIDIA documents it, as far as Karve uses it: a daemon in the foreground, and a
// client that sends it commands. It runs no GPU work.
package mpstest

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Env turns a test program into the fake: see [Install].
const Env = "KARVE_FAKE_MPS"

// Install writes nvidia-cuda-mps-control to a directory and returns its path. The file runs the test program with Env set. The test's TestMain must
// call Main if Env is set.
func Install(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "nvidia-cuda-mps-control")
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec %s \"$@\"\n", Env, self)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil { // A program.
		t.Fatal(err)
	}
	return path
}

// Main runs the fake and returns the exit status.
func Main(args []string, in io.Reader, out io.Writer) int {
	socket := filepath.Join(cmp.Or(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "/tmp/nvidia-mps"), "control")
	switch {
	case len(args) == 0:
		return client(socket, in, out)
	case args[0] == "-f":
		return foreground(socket, slices.Contains(args[1:], "-multiuser-server"), out)
	default:
		fmt.Fprintln(out, "usage: nvidia-cuda-mps-control -f [-multiuser-server]")
		return 1
	}
}

func client(socket string, in io.Reader, out io.Writer) int {
	conn, err := net.Dial("unix", socket) //nolint:noctx // The daemon answers or is not there.
	if err != nil {
		fmt.Fprintln(out, "Cannot find MPS control daemon process")
		return 1
	}
	defer func() { _ = conn.Close() }()
	commands, err := io.ReadAll(in)
	if err != nil {
		return 1
	}
	if _, err := conn.Write(commands); err != nil {
		return 1
	}
	_ = conn.(*net.UnixConn).CloseWrite()
	_, _ = io.Copy(out, conn) // A daemon that quits closes it.
	return 0
}

// control is the daemon.
type control struct {
	mu        sync.Mutex
	multiUser bool
	threads   int
	memory    map[string]string // by device
	servers   []*server
}

// server is an MPS server. The real servers are processes that the daemon starts when a client connects.
type server struct {
	pid, uid, threads int
	memory            map[string]string
}

func foreground(socket string, multiUser bool, out io.Writer) int {
	if conn, err := net.Dial("unix", socket); err == nil { //nolint:noctx // As above.
		_ = conn.Close()
		fmt.Fprintln(out, "An instance of this daemon is already running")
		return 1
	}
	_ = os.Remove(socket)                       // It was left by one that was killed.
	listener, err := net.Listen("unix", socket) //nolint:noctx // Until it is told to quit.
	if err != nil {
		fmt.Fprintln(out, err)
		return 1
	}
	pid := filepath.Join(filepath.Dir(socket), "nvidia-cuda-mps-control.pid")
	if err := errors.Join(os.Chmod(socket, 0o666), os.WriteFile(pid, []byte(strconv.Itoa(os.Getpid())), 0o600)); err != nil { // As the real one's.
		fmt.Fprintln(out, err)
		return 1
	}
	c := &control{multiUser: multiUser, threads: 100, memory: map[string]string{}}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return 1
		}
		go c.serve(conn)
	}
}

func (c *control) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		if refusal := refuse(conn, words[0]); refusal != "" {
			fmt.Fprintln(conn, refusal)
			continue
		}
		if words[0] == "quit" {
			_ = conn.Close()
			os.Exit(0) //nolint:forbidigo // As the real one.
		}
		if answer := c.do(words[0], words[1:]); answer != "" {
			fmt.Fprintln(conn, answer)
		}
	}
}

// refuse returns why another user than root and the daemon's may not send a command, or "". The words are those of driver 580.
func refuse(conn net.Conn, command string) string {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err.Error()
	}
	var peer *syscall.Ucred
	if callErr := raw.Control(func(fd uintptr) {
		peer, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); callErr != nil || err != nil {
		return "the user is not known"
	}
	switch {
	case peer.Uid == 0 || int(peer.Uid) == os.Getuid():
		return ""
	case command == "quit":
		return "Not enough privilege to execute quit command"
	case strings.HasPrefix(command, "set_"):
		return fmt.Sprintf("Insufficient privileges for UID %d. Control deamon settings can only be modified by the user who started it or by the root user.", peer.Uid)
	}
	return ""
}

func (c *control) do(command string, args []string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	words := arguments(args)
	usage := "Invalid arguments to " + command
	switch command {
	case "get_server_list":
		var pids []string
		for _, s := range c.servers {
			pids = append(pids, strconv.Itoa(s.pid))
		}
		return strings.Join(pids, "\n")
	case "start_server": // -uid <user>
		uid, err := strconv.Atoi(words.at(1))
		if words.at(0) != "-uid" || err != nil {
			return usage
		}
		c.startServer(uid)
		return ""
	case "get_default_active_thread_percentage":
		return fmt.Sprintf("%d.0", c.threads)
	case "set_default_active_thread_percentage":
		return words.setPercent(0, &c.threads, usage)
	case "get_default_device_pinned_mem_limit":
		return c.memory[words.at(0)]
	case "set_default_device_pinned_mem_limit":
		return words.setMemory(0, c.memory, usage)
	}
	s := c.server(words.at(0))
	switch {
	case s == nil:
		return "Server " + words.at(0) + " not found"
	case command == "get_active_thread_percentage":
		return fmt.Sprintf("%d.0", s.threads)
	case command == "get_device_pinned_mem_limit":
		return s.memory[words.at(1)]
	case command == "set_active_thread_percentage":
		return words.setPercent(1, &s.threads, usage)
	case command == "set_device_pinned_mem_limit":
		return words.setMemory(1, s.memory, usage)
	default:
		return usage
	}
}

// startServer starts the server of a user, unless it waits until the clients of another user are gone.
func (c *control) startServer(uid int) {
	if c.multiUser {
		uid = 0
	}
	if len(c.servers) == 0 {
		c.servers = append(c.servers, &server{pid: 4000, uid: uid, threads: c.threads, memory: map[string]string{"0": c.memory["0"]}})
	}
}

// arguments are the words after a command.
type arguments []string

func (a arguments) at(i int) string {
	if i < len(a) {
		return a[i]
	}
	return ""
}

// setPercent sets a percentage to the i-th argument, and returns the answer.
func (a arguments) setPercent(i int, percentage *int, usage string) string {
	n, err := strconv.Atoi(a.at(i))
	if err != nil || n <= 0 || n > 100 {
		return usage
	}
	*percentage = n
	return fmt.Sprintf("%d.0", n)
}

// setMemory sets the limit of the device that the i-th argument names to the next argument, and returns the answer.
func (a arguments) setMemory(i int, limits map[string]string, usage string) string {
	limit := a.at(i + 1)
	if n, err := strconv.Atoi(strings.TrimRight(limit, "MG")); err != nil || n <= 0 || !strings.ContainsAny(limit, "MG") {
		return usage
	}
	limits[a.at(i)] = limit
	return ""
}

func (c *control) server(pid string) *server {
	for _, s := range c.servers {
		if strconv.Itoa(s.pid) == pid {
			return s
		}
	}
	return nil
}
