// Command pod is the only program in the image of the tests. It prints its environment as JSON and runs until it gets a signal. If it is a client of an MPS
// daemon, it first asks the daemon for its percentage of threads, and adds the answer to the environment as "mps", the size of its shared memory as "shm", and
// why it cannot write to the directory with the pipes as "pipe".
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	environment := map[string]string{}
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		environment[name] = value
	}
	if dir := environment["CUDA_MPS_PIPE_DIRECTORY"]; dir != "" {
		environment["mps"] = ask(filepath.Join(dir, "control"))
		var shm syscall.Statfs_t
		if err := syscall.Statfs("/dev/shm", &shm); err != nil {
			environment["shm"] = err.Error()
		} else {
			environment["shm"] = fmt.Sprintf("%d MiB", shm.Blocks*uint64(shm.Bsize)>>20) //nolint:gosec // A block has a positive size.
		}
		if err := os.Rename(filepath.Join(dir, "control"), filepath.Join(dir, "mine")); err != nil {
			environment["pipe"] = err.Error()
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(environment); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	<-stop
}

// ask returns the answer of an MPS daemon, or the error.
func ask(socket string) string {
	conn, err := net.Dial("unix", socket) //nolint:noctx // The daemon is there or not.
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintln(conn, "get_default_active_thread_percentage"); err != nil {
		return err.Error()
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(answer)
}
