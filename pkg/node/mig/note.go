package mig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

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
