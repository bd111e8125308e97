// Package cgroup creates and removes the cgroup of a test node, with cgroup v1 and v2.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const mounted = "/sys/fs/cgroup"

// hierarchies returns the roots that can contain a cgroup of a given name: one with cgroup v2, one per controller with v1.
func hierarchies() []string {
	if _, err := os.Stat(filepath.Join(mounted, "cgroup.controllers")); err == nil {
		return []string{mounted}
	}
	roots, _ := filepath.Glob(filepath.Join(mounted, "*"))
	return roots
}

// Make creates the root of a node's cgroups, which the kubelet requires.
func Make(name string) error {
	for _, root := range hierarchies() {
		path := filepath.Join(root, name)
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // As the others there.
			return fmt.Errorf("making the node's cgroup: %w", err)
		}
		// With v1, a new cpuset has no CPUs and no memory, and no process can run in it.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			content, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(path, file), content, 0o600); err != nil {
				return fmt.Errorf("making the node's cgroup: %w", err)
			}
		}
	}
	return nil
}

// Remove removes the cgroups of a node without processes. It retries, because the kernel takes a moment.
func Remove(name string) error {
	var last error
	for _, root := range hierarchies() {
		deadline := time.Now().Add(10 * time.Second)
		for last = removeTree(filepath.Join(root, name)); last != nil && time.Now().Before(deadline); {
			time.Sleep(20 * time.Millisecond)
			last = removeTree(filepath.Join(root, name))
		}
		if last != nil {
			return fmt.Errorf("removing the node's cgroups: %w", last)
		}
	}
	return nil
}

// removeTree removes the folders, the deepest first. The files in them cannot be removed.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(dirs) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
