// Package cdi reads specs of the Container Device Interface, which define the device names that the container runtime knows.
package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/node/limited"
	"karve.sh/karve/pkg/words"
)

// Dirs are the default directories of container runtimes.
var Dirs = []string{"/etc/cdi", "/var/run/cdi"}

// maxSpec is the largest size of a spec, in bytes. The spec of a machine with eight GPUs has about 50 KiB.
const maxSpec = 4 << 20

// Specs holds the devices that the specs of a machine define.
type Specs struct {
	dirs    []string
	devices map[string]bool
	// unreadable lists the files that could not be read, with the reasons.
	unreadable []string
}

// Read reads all specs in the directories. Directories that do not exist are ignored.
func Read(dirs ...string) Specs {
	s := Specs{dirs: dirs, devices: map[string]bool{}}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			s.unreadable = append(s.unreadable, err.Error())
		}
		for _, e := range entries {
			if extension := filepath.Ext(e.Name()); extension != ".json" && extension != ".yaml" {
				continue
			}
			if err := s.read(filepath.Join(dir, e.Name())); err != nil {
				s.unreadable = append(s.unreadable, err.Error())
			}
		}
	}
	return s
}

func (s *Specs) read(path string) error {
	data, err := limited.ReadFile(path, maxSpec)
	if err != nil {
		return err
	}
	var spec struct {
		Kind    string `json:"kind"`
		Devices []struct {
			Name string `json:"name"`
		} `json:"devices"`
	}
	if err := limited.YAML(data); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := yaml.Unmarshal(data, &spec); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, d := range spec.Devices {
		s.devices[spec.Kind+"="+d.Name] = true
	}
	return nil
}

// Missing returns an error that names the devices without a spec and the directories that were searched. It returns nil if all devices are defined.
func (s Specs) Missing(devices []string) error {
	var missing []string
	for _, d := range devices {
		if !s.devices[d] && !slices.Contains(missing, d) {
			missing = append(missing, d)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	where := words.Or(s.dirs)
	if len(s.unreadable) > 0 {
		where += " (" + strings.Join(s.unreadable, "; ") + ")"
	}
	return fmt.Errorf("no CDI spec in %s defines %s", where, strings.Join(missing, ", "))
}
