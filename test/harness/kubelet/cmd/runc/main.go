// Command runc wraps runc for containerd. The kubelet sets a seccomp filter for each sandbox, for which runc needs a C library that is not a Go module
// and is not built in. The wrapper removes the filter from the container's configuration before runc reads it.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

func main() {
	fmt.Fprintln(os.Stderr, run(os.Args[1:]))
	os.Exit(1)
}

// run returns only on an error.
func run(args []string) error {
	if i := slices.Index(args, "--bundle"); i >= 0 && i+1 < len(args) {
		if err := unfilter(filepath.Join(args[i+1], "config.json")); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	runc := filepath.Join(filepath.Dir(self), "runc")
	return syscall.Exec(runc, append([]string{runc}, args...), os.Environ()) //nolint:gosec // The tests' own.
}

func unfilter(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config, linux map[string]json.RawMessage
	if err := json.Unmarshal(content, &config); err != nil {
		return err
	}
	if err := json.Unmarshal(config["linux"], &linux); err != nil {
		return err
	}
	delete(linux, "seccomp")
	if config["linux"], err = json.Marshal(linux); err != nil {
		return err
	}
	if content, err = json.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}
