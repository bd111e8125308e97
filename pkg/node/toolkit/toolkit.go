// Package toolkit reads the configuration of NVIDIA's container runtime.
package toolkit

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"

	"karve.sh/karve/pkg/node/limited"
)

// File is where the runtime of a machine has its configuration.
const File = "/etc/nvidia-container-runtime/config.toml"

// maxBytes bounds the file. The real ones have about 1 KiB.
const maxBytes = 64 << 10

// Config is how an unprivileged container can name its GPUs to the runtime.
type Config struct {
	// Environment reports whether it can with NVIDIA_VISIBLE_DEVICES. Whoever writes a pod or an image can set that to any GPU of the machine.
	Environment bool
	// Mounts reports whether it can with mounts of /dev/null, which need the right to mount paths of the host.
	Mounts bool
}

// Read reads the configuration of the runtime, with its defaults for what the file does not say.
func Read(path string) (Config, error) {
	text, err := limited.ReadFile(path, maxBytes)
	if err != nil {
		return Config{}, fmt.Errorf("reading the configuration of NVIDIA's container runtime: %w", err)
	}
	c := Config{Environment: true}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "[") {
			break // A table. Both keys are above the first one.
		}
		key, value, _ := strings.Cut(line, "=")
		on := strings.TrimSpace(value) == "true"
		switch strings.Trim(strings.TrimSpace(key), `"'`) {
		case "accept-nvidia-visible-devices-envvar-when-unprivileged":
			c.Environment = on
		case "accept-nvidia-visible-devices-as-volume-mounts":
			c.Mounts = on
		}
	}
	return c, lines.Err()
}
