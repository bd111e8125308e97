package toolkit_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"karve.sh/karve/pkg/node/toolkit"
)

// asInstalled begins like the file that the toolkit installs.
const asInstalled = `
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false

[nvidia-container-cli]
environment = []
# A key of a table is another key.
accept-nvidia-visible-devices-as-volume-mounts = true
`

func TestConfigurationOfRuntimeIsRead(t *testing.T) {
	t.Parallel()
	const mounts, environment = "accept-nvidia-visible-devices-as-volume-mounts", "accept-nvidia-visible-devices-envvar-when-unprivileged"
	for name, c := range map[string]struct {
		text string
		want toolkit.Config
	}{
		"as installed":      {asInstalled, toolkit.Config{Environment: true}},
		"empty":             {"", toolkit.Config{Environment: true}},
		"mounts only":       {mounts + " = true\n" + environment + " = false\n" + asInstalled, toolkit.Config{Mounts: true}},
		"without spaces":    {mounts + "=true # isolated\n\"" + environment + "\"=false", toolkit.Config{Mounts: true}},
		"both":              {mounts + " = true\n", toolkit.Config{Environment: true, Mounts: true}},
		"neither":           {environment + " = false\n", toolkit.Config{}},
		"something strange": {"\x00\xff=\n= true\n[", toolkit.Config{Environment: true}},
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := toolkit.Read(path); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(strings.Repeat("#", 1<<20)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := toolkit.Read(path); err == nil {
		t.Error("a file of 1 MiB is read")
	}
}
