//go:build unix

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// endless is a stream of one byte without an end.
type endless byte

func (e endless) Read(to []byte) (int, error) {
	for i := range to {
		to[i] = byte(e)
	}
	return len(to), nil
}

// endlessServer starts a server whose answers begin with some text and never end. It returns its URL.
func endlessServer(t *testing.T, begin string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(begin))
		chunk := bytes.Repeat([]byte(" "), 1<<20)
		for {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// fails runs a verb, and checks that it fails with an error.
func fails(t *testing.T, want string, args ...string) {
	t.Helper()
	var out, errOut bytes.Buffer
	if status := run(t.Context(), args, streams{endless('#'), &out, &errOut}); status != 1 || out.Len() > 0 || errOut.String() != "error: "+want+"\n" {
		t.Errorf("%v: status %d, %.300s, want %s", args, status, &errOut, want)
	}
}

func TestWhatNeverEndsIsNotReadToItsEnd(t *testing.T) {
	t.Parallel()
	url := endlessServer(t, "")
	const tooMuch = ": the manifests have more than 128 MiB"
	fails(t, "reading standard input"+tooMuch, "plan", "-f", "-")
	fails(t, "reading /dev/zero"+tooMuch, "plan", "-f", "/dev/zero")
	fails(t, "reading "+url+tooMuch, "plan", "-f", url)
	fails(t, "--instance-types: reading /dev/zero: the instance types have more than 64 MiB", "plan", "-f", "../../examples/nodepool.yaml", "--instance-types", "/dev/zero")
}

func TestSomeManifestsTogetherAreTooMuch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), bytes.Repeat([]byte("#"), 1<<20-1), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := newBounded("the manifests", 2<<20).readPath(dir, false)
	if want := "reading " + dir + "/2.yaml: the manifests have more than 2 MiB"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestADirectoryOfManifestsHasOnlyFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, dir+"/pipe.yaml in a directory of manifests is not a file", "plan", "-f", dir)
	if err := checkUsable(filepath.Join(dir, "pipe.yaml"), maxFiles+1, dir); err == nil || err.Error() != dir+" has more than 10000 files named *.yaml, *.yml or *.json" {
		t.Error(err)
	}
}

// TestAPipeOfManifestsIsRead reads what a shell passes for <(command).
func TestAPipeOfManifestsIsRead(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		text, err := os.ReadFile("../../examples/two-pools/shared.yaml")
		if err == nil {
			err = os.WriteFile(pipe, text, 0o600)
		}
		if err != nil {
			t.Error(err)
		}
	}()
	var out, errOut bytes.Buffer
	if status := run(t.Context(), []string{"plan", "-f", pipe}, streams{strings.NewReader(""), &out, &errOut}); status != 0 || !strings.Contains(out.String(), "default/test-gpu-shared (10)") {
		t.Errorf("status %d, %s%s", status, &out, &errOut)
	}
}
