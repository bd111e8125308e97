package health

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"karve.sh/karve/pkg/node/atomicfile"
	"karve.sh/karve/pkg/node/limited"
)

// Store saves a State to a directory of the machine, in a file with the boot ID in its name. There are three cases:
//
//   - If there is no file for this boot, this is the first agent since the machine started. The GPUs are in service, because the start has reset them.
//   - If there is a file for this boot, its content applies.
//   - If the file for this boot cannot be read, an earlier agent has checked the GPUs and the result is unknown. They are out of service until they are
//     reset, the machine is rebooted, or someone removes the file.
type Store struct {
	Dir string
	// Boot is the content of /proc/sys/kernel/random/boot_id.
	Boot string
}

// ErrUnreadable means that the record of this boot cannot be read.
var ErrUnreadable = errors.New("what an earlier agent found since the machine started cannot be read")

// maxFile bounds the file. A GPU has a few hundred bytes.
const maxFile = 1 << 20

var notInNames = regexp.MustCompile(`[^0-9A-Za-z-]+`)

// Path returns the path of the file for this boot.
func (s Store) Path() string {
	boot := cmp.Or(notInNames.ReplaceAllString(strings.TrimSpace(s.Boot), ""), "unknown") // Without a name, all boots count as the same.
	return filepath.Join(s.Dir, "health-"+boot+".json")
}

// Load returns the State of this boot. If there is none, it returns the State of an earlier boot, from which New knows which GPUs are back, or the zero
// value. With ErrUnreadable, it returns a State in which no GPU is trusted.
func (s Store) Load() (State, error) {
	data, err := limited.ReadFile(s.Path(), maxFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) { // If the directory does not exist, Save fails.
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

// before returns the State of an earlier boot, or the zero value if there is none.
func (s Store) before() State {
	old, _ := filepath.Glob(filepath.Join(s.Dir, "health-*.json")) // Save leaves only one file.
	for _, path := range old {
		data, err := limited.ReadFile(path, maxFile)
		var state State
		if err == nil && json.Unmarshal(data, &state) == nil && state.Boot != "" {
			return state
		}
	}
	return State{}
}

// Save atomically replaces the file of this boot, and removes those of other boots.
func (s Store) Save(state State) error {
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.Dir, 0o750); err != nil {
		return err
	}
	if err := atomicfile.Write(s.Path(), data, 0o600); err != nil {
		return err
	}
	old, _ := filepath.Glob(filepath.Join(s.Dir, "health-*.json"))
	for _, path := range old {
		if path != s.Path() {
			_ = os.Remove(path) // A file that remains does no harm.
		}
	}
	return nil
}
