package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// Store keeps a State in a folder of the machine, in a file that has the boot in its name. So there are three cases, each with an answer:
//
//   - No file of this boot: this is the first agent since the machine started. Starting reset the GPUs, they are in service.
//   - A file of this boot: what is in it holds.
//   - A file of this boot that cannot be read: an agent has looked at the GPUs since the machine started, and what it found is not known.
//     They are out of service until they are reset, the machine is, or somebody who knows better removes the file.
type Store struct {
	Dir string
	// Boot is /proc/sys/kernel/random/boot_id.
	Boot string
}

// ErrUnreadable says that there is a record of this boot that cannot be read.
var ErrUnreadable = errors.New("what an earlier agent found since the machine started cannot be read")

var notInNames = regexp.MustCompile(`[^0-9A-Za-z-]+`)

// Path is the file of this boot.
func (s Store) Path() string {
	boot := notInNames.ReplaceAllString(strings.TrimSpace(s.Boot), "")
	if boot == "" {
		boot = "unknown" // Then every boot is taken for the same one.
	}
	return filepath.Join(s.Dir, "health-"+boot+".json")
}

// Load reads the State of this boot. When there is none it is that of an earlier boot, by which New tells what is back, or the zero value. With ErrUnreadable comes a State that trusts no GPU.
func (s Store) Load() (State, error) {
	data, err := os.ReadFile(s.Path())
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) { // With no folder, Save says so.
		return s.before(), nil
	}
	var state State
	if err == nil {
		err = json.Unmarshal(data, &state)
	}
	if err == nil && state.Boot != s.Boot {
		err = fmt.Errorf("it is of the boot %q", state.Boot)
	}
	if err != nil {
		return State{Boot: s.Boot, Distrust: true}, fmt.Errorf("%s: %w: %w", s.Path(), ErrUnreadable, err)
	}
	return state, nil
}

// before reads what is there of earlier boots.
func (s Store) before() State {
	old, _ := filepath.Glob(filepath.Join(s.Dir, "health-*.json")) // Save leaves one.
	for _, path := range old {
		data, err := os.ReadFile(path)
		var state State
		if err == nil && json.Unmarshal(data, &state) == nil && state.Boot != "" {
			return state
		}
	}
	return State{}
}

// Save replaces the file of this boot at once, and removes those of others.
func (s Store) Save(state State) error {
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.Dir, 0o750); err != nil {
		return err
	}
	next, err := os.CreateTemp(s.Dir, ".health-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(next.Name()) }() // It is gone if all went well.
	_, err = next.Write(data)
	if err = errors.Join(err, next.Sync(), next.Close()); err != nil {
		return err
	}
	if err := os.Rename(next.Name(), s.Path()); err != nil {
		return err
	}
	old, _ := filepath.Glob(filepath.Join(s.Dir, "health-*.json"))
	for _, path := range old {
		if path != s.Path() {
			_ = os.Remove(path) // It is in nobody's way.
		}
	}
	return nil
}
