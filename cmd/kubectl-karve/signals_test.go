//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asProgram makes the test binary the program itself: with the value main as it ships, and with endless one whose only verb computes for ever.
const asProgram = "KARVE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(asProgram) {
	case "main":
		main()
	case "endless":
		os.Exit(untilSignal(func(context.Context) int {
			fmt.Println("computing")
			for n := 0; ; n++ {
			}
		}))
	}
	os.Exit(m.Run())
}

// program returns a command that runs the test binary as the program.
func program(t *testing.T, as string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asProgram+"="+as, "HOME="+t.TempDir())
	return cmd
}

// promptly is far more than the program takes to end, and far less than what holds it up.
const promptly = 10 * time.Second

// interrupt sends a signal to the program, and checks that it ends promptly, quietly, and with the signal's status.
func interrupt(t *testing.T, cmd *exec.Cmd, s syscall.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(promptly, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	err := cmd.Wait()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 128+int(s) {
		t.Errorf("after %s it ended with %v", s, err)
	}
	if said, ok := cmd.Stderr.(*bytes.Buffer); ok && strings.Contains(said.String(), "error") {
		t.Errorf("it says %s", said)
	}
}

// silent starts a server that never answers a request for an object. It returns the path of its kubeconfig, and a channel that receives when one is asked for.
func silent(t *testing.T) (kubeconfig string, asked <-chan struct{}) {
	t.Helper()
	requests := make(chan struct{}, 1000)
	return serving(t, func(_ http.ResponseWriter, r *http.Request) {
		requests <- struct{}{}
		<-r.Context().Done()
	}), requests
}

// mute starts a server that accepts connections and never answers. It returns its address, and a channel that receives when it has accepted one.
func mute(t *testing.T) (address string, asked <-chan struct{}) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	accepted := make(chan struct{}, 1000)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			accepted <- struct{}{}
		}
	}()
	return listener.Addr().String(), accepted
}

// TestEachVerbEndsAtASignal interrupts verbs while they wait for a server that does not answer.
func TestEachVerbEndsAtASignal(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{
		"plan", "inspect", "inspect -d a", "top nodes", "top pods", "nodes", "pods", "explain pod/a", "explain node/a", "doctor", "ui", "version", "rollout status", "rollout status a",
		"rollout pause a", "rollout resume a", "rollout promote a", "rollout undo a", "__complete rollout undo g", "__complete explain node/",
	} {
		for name, server := range map[string]func(*testing.T) (string, <-chan struct{}){
			"no object": silent,
			"nothing": func(t *testing.T) (string, <-chan struct{}) {
				t.Helper()
				address, asked := mute(t)
				return kubeconfigFor(t, "http://"+address), asked
			},
		} {
			if name == "nothing" && !slices.Contains([]string{"plan", "nodes", "doctor", "ui", "version"}, verb) {
				continue // The others connect as plan does.
			}
			t.Run(verb+", of which the server answers "+name, func(t *testing.T) {
				t.Parallel()
				kubeconfig, asked := server(t)
				args := strings.Fields(verb)
				waits(t, asked, slices.Insert(args, max(1, len(args)-1), "--kubeconfig="+kubeconfig)...) // What is completed comes last.
			})
		}
	}
	for _, verb := range []string{"replay --prometheus=http://%s", "plan -f http://%s/pods.yaml"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			address, asked := mute(t)
			waits(t, asked, strings.Fields(fmt.Sprintf(verb, address))...)
		})
	}
}

// waits starts the program, waits until it has asked, and interrupts it.
func waits(t *testing.T, asked <-chan struct{}, args ...string) {
	t.Helper()
	cmd := program(t, "main", args...)
	cmd.Stderr = &bytes.Buffer{}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-asked:
	case <-time.After(time.Minute):
		t.Fatalf("nothing was asked: %s", cmd.Stderr)
	}
	interrupt(t, cmd, syscall.SIGINT)
}

func TestAComputationEndsAtASignal(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		cmd := program(t, "endless")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "computing\n" {
			t.Fatalf("%q, %v", line, err)
		}
		interrupt(t, cmd, s)
	}
}

func TestAReadThatNobodyEndsEndsAtASignal(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "pods.yaml")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"plan", "-f", "-"}, {"plan", "-f", fifo}, {"replay", "-"}, {"replay", fifo}} {
		cmd := program(t, "main", args...)
		cmd.Stderr = &bytes.Buffer{}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		to := io.Writer(in)
		if args[len(args)-1] == fifo {
			file, err := os.OpenFile(fifo, os.O_WRONLY, 0) // It waits for the reader.
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			to = file
		}
		line := "# a comment\n"
		if args[0] == "replay" {
			line = "cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n"
		}
		// It is more than a pipe holds, so the program has read some of it.
		if _, err := io.WriteString(to, strings.Repeat(line, 50_000)); err != nil {
			t.Fatal(err)
		}
		interrupt(t, cmd, syscall.SIGTERM)
	}
}

func TestAPlanEndsAtASignal(t *testing.T) {
	t.Parallel()
	cmd := program(t, "main", "plan", "-f", "-", "-f", "../../examples/nodepool.yaml", "-f", "../../examples/gpunodeclass.yaml", "--replicas", "1..128")
	cmd.Stderr = &bytes.Buffer{}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		fmt.Fprintf(in, "---\n{apiVersion: v1, kind: Pod, metadata: {name: p%d}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: %dm, memory: %dMi}, limits: {nvidia.com/gpu.shared: 1}}}]}}\n",
			i, 100+7*i%1009, 100+13*i%977)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // It takes minutes.
	interrupt(t, cmd, syscall.SIGINT)
}
