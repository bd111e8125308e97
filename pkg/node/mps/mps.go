// Package mps shares GPUs with NVIDIA's MPS. The unprivileged agent writes the limits of each GPU to a directory of the node. A privileged supervisor
// in a separate pod runs a control daemon for each of these GPUs, and writes to the same directory which of them answer.
package mps

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"karve.sh/karve/pkg/node/atomicfile"
	"karve.sh/karve/pkg/node/limited"
)

// Dir is the default directory that the agent, the supervisor and the containers of pods share. It is in memory, so that a reboot clears it.
const Dir = "/run/karve/mps"

const (
	wantedFile, statusFile = "wanted.json", "status.json"
	maxFile                = 1 << 20
	// AskEvery is how often the supervisor asks each daemon whether it answers, and writes the status.
	AskEvery = 5 * time.Second
	// freshFor is how long a status is valid. It tolerates two missed updates.
	freshFor = 3 * AskEvery
)

// Limits are the limits that the daemon of a GPU enforces for each client process.
type Limits struct {
	UUID string `json:"uuid"`
	// MemoryMiB is the device memory that a process may allocate, in MiB. With 0 there is no limit.
	MemoryMiB int64 `json:"memoryMiB"`
	// ThreadPercent is the share of the GPU's threads that a process may use, 1 to 100.
	ThreadPercent int64 `json:"threadPercent"`
	// MultiUser lets processes of several users share the GPU at the same time.
	MultiUser bool `json:"multiUser"`
}

// Wanted lists the GPUs that need a daemon. The agent writes it.
type Wanted struct {
	GPUs []Limits `json:"gpus"`
}

// Has reports whether the GPU needs a daemon.
func (w Wanted) Has(uuid string) bool { return find(w.GPUs, uuid) != nil }

// Status is what the supervisor knows about the daemons.
type Status struct {
	AsOf    time.Time `json:"asOf"`
	Daemons []Daemon  `json:"daemons"`
}

// Daemon is the control daemon of a GPU.
type Daemon struct {
	// Limits are the limits that it enforces, as far as it has been told.
	Limits Limits `json:"limits"`
	// Answers reports whether it answered when it was last asked.
	Answers bool `json:"answers"`
	// Problem is why it does not answer.
	Problem string `json:"problem,omitempty"`
	// OwnShm reports whether it has shared memory of its own, with a size. Its clients mount the same at /dev/shm: see [ClientShm].
	OwnShm bool `json:"ownShm,omitempty"`
	// Starts is how often it was started.
	Starts int `json:"starts"`
}

// Down returns the GPUs whose daemons do not answer, with the reasons.
func (s Status) Down(wanted []Limits, now time.Time) map[string]string {
	down := map[string]string{}
	for _, w := range wanted {
		i := slices.IndexFunc(s.Daemons, func(d Daemon) bool { return d.Limits.UUID == w.UUID })
		switch {
		case now.Sub(s.AsOf).Abs() > freshFor:
			down[w.UUID] = "nobody runs MPS daemons on the node: install them with mps.enabled=true of the chart karve-node, and see that their pod runs"
		case i < 0:
			down[w.UUID] = "its MPS daemon has not started yet"
		case !s.Daemons[i].Answers && s.Daemons[i].Problem != "":
			down[w.UUID] = s.Daemons[i].Problem
		case !s.Daemons[i].Answers:
			down[w.UUID] = "its MPS daemon does not answer yet"
		}
	}
	return down
}

// Unready is like Down, but also includes the GPUs whose daemons do not enforce the limits yet.
func (s Status) Unready(wanted []Limits, now time.Time) map[string]string {
	down := s.Down(wanted, now)
	for _, w := range wanted {
		if down[w.UUID] == "" && !slices.ContainsFunc(s.Daemons, func(d Daemon) bool { return d.Limits == w }) {
			down[w.UUID] = "its MPS daemon does not have the new limits yet"
		}
	}
	return down
}

// PipeDir returns the directory on the node with the pipes of a GPU's daemon.
func PipeDir(dir, uuid string) string { return filepath.Join(dir, uuid, "pipe") }

// ReadWanted reads what the agent wrote. Before the agent has written anything, it is empty.
func ReadWanted(dir string) (Wanted, error) { return read[Wanted](dir, wantedFile) }

// ReadStatus reads what the supervisor wrote. Before the supervisor has written anything, it is empty.
func ReadStatus(dir string) (Status, error) { return read[Status](dir, statusFile) }

// Write writes what the agent wants.
func (w Wanted) Write(dir string) error { return write(dir, wantedFile, w) }

// Write writes what the supervisor knows.
func (s Status) Write(dir string) error { return write(dir, statusFile, s) }

func read[T any](dir, name string) (T, error) {
	var value, none T
	data, err := limited.ReadFile(filepath.Join(dir, name), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &value)
	}
	if err != nil {
		return none, fmt.Errorf("reading %s: %w", filepath.Join(dir, name), err)
	}
	return value, nil
}

// write replaces the file atomically, because the other side may be reading it.
func write(dir, name string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // Clients of all users go through it.
		return fmt.Errorf("writing %s: %w", name, err)
	}
	if err := atomicfile.Write(filepath.Join(dir, name), data, 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

func find(all []Limits, uuid string) *Limits {
	i := slices.IndexFunc(all, func(l Limits) bool { return l.UUID == uuid })
	if i < 0 {
		return nil
	}
	return &all[i]
}
