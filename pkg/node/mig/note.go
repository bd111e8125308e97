package mig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/atomicfile"
	"karve.sh/karve/pkg/node/limited"
)

// Note records on the machine that it was rebooted to turn MIG on, so that it is rebooted only once.
type Note struct {
	// Dir is a directory that survives a reboot.
	Dir string
	// Boot is the ID of this boot, or "" if unknown.
	Boot string
	// Now returns the time.
	Now func() time.Time
}

// noted is the content of the file.
type noted struct {
	// Boot is the boot that ended with the reboot.
	Boot string    `json:"boot"`
	At   time.Time `json:"at"`
}

// maxNote bounds the file.
const maxNote = 4 << 10

func (n Note) path() string { return filepath.Join(n.Dir, "mig-reboot.json") }

// read returns the note, or nil if there is none.
func (n Note) read() (*noted, error) {
	data, err := limited.ReadFile(n.path(), maxNote)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // That there is none is an answer.
	}
	var was noted
	if err == nil {
		err = json.Unmarshal(data, &was)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", n.path(), err)
	}
	return &was, nil
}

func (n Note) write() error {
	data, err := json.Marshal(noted{Boot: n.Boot, At: n.Now()})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(n.Dir, 0o750); err != nil {
		return err
	}
	return atomicfile.Write(n.path(), data, 0o600)
}

// Clear removes the note.
func (n Note) Clear() {
	_ = os.Remove(n.path()) // Usually there is none.
}

// reboot reboots the machine unless it has already been rebooted for this. It always returns a *Failure.
func (m *Machine) reboot(ctx context.Context, s *state, failed error) error {
	why := fmt.Sprintf("%s turns MIG on when it is reset, and a reset failed (%s)", s.name(), failed)
	was, err := m.Note.read()
	switch {
	case err != nil:
		return pendingError("%s: reboot the machine; it is not known whether it was: %s", why, err)
	case was != nil && was.Boot != m.Note.Boot:
		return pendingError("%s. The machine was rebooted, and MIG is still off: replace it", why)
	case was != nil:
		return pendingError("%s. The machine was asked at %s to reboot: reboot it if it does not", why, was.At.UTC().Format(time.RFC3339))
	case m.Reboot == nil || m.Note.Boot == "":
		return pendingError("%s: drain the node and reboot it, or replace it", why)
	}
	if err := m.Note.write(); err != nil {
		return pendingError("%s: reboot the machine; it is not done because it cannot be noted: %s", why, err)
	}
	logr.FromContextOrDiscard(ctx).Info("Rebooting the machine, once", "reason", why)
	if err := m.Reboot(ctx); err != nil {
		return pendingError("%s, and the machine cannot be asked to reboot (%s): reboot it", why, err)
	}
	return pendingError("%s. The machine reboots, once", why)
}
