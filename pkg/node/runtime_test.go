package node

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

const (
	mountsOnly   = "accept-nvidia-visible-devices-as-volume-mounts = true\naccept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
	neither      = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
	asInstalled  = "disable-require = false\n"
	bothAccepted = "accept-nvidia-visible-devices-as-volume-mounts = true\n"
)

// A runtime that ignores the environment of unprivileged containers gives them no GPUs that are listed there.
func TestDevicesArePassedAsRuntimeAcceptsThem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		runtime, flag string
		config        sharing.Config
		want          string
	}{
		"mounts only":             {mountsOnly, "", sharing.Config{}, "volume-mounts"},
		"mounts only, and a flag": {mountsOnly, "--device-list-strategy=cdi-cri", sharing.Config{}, "cdi-cri"},
		"mounts only, and a file": {mountsOnly, "", sharing.Config{Given: map[string][]string{sharing.KeyDeviceLists: {"envvar"}}}, "envvar"},
		"both":                    {bothAccepted, "", sharing.Config{}, "envvar"},
		"neither":                 {neither, "", sharing.Config{}, "envvar"},
		"as installed":            {asInstalled, "", sharing.Config{}, "envvar"},
		"no configuration":        {"", "", sharing.Config{}, "envvar"},
		"not readable":            {strings.Repeat("#", 1<<20), "", sharing.Config{}, "envvar"},
	} {
		args := []string{"--runtime-config=" + runtimeFile(t, c.runtime)}
		if c.flag != "" {
			args = append(args, c.flag)
		}
		o, err := Parse(args, func(string) (string, bool) { return "", false }, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		config, err := o.override(c.config)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := config.Settings(); err != nil || !slices.Equal(s.DeviceLists, []string{c.want}) {
			t.Errorf("%s: devices are passed by %v, %v, want %s", name, s.DeviceLists, err, c.want)
		}
	}
}

func TestNodeSaysWhetherContainersReachOtherGPUs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		mountsOnly: "True RuntimeIgnoresEnvironment", neither: "True RuntimeIgnoresEnvironment", bothAccepted: "False RuntimeAcceptsEnvironment", asInstalled: "False RuntimeAcceptsEnvironment",
		strings.Repeat("#", 1<<20): "Unknown RuntimeConfigurationUnreadable",
	} {
		var api *apiServer
		m := start(t, func(m *machine) {
			m.configure(replicas(10))
			api = m.withNode()
		}, "--runtime-config="+runtimeFile(t, text))
		m.untilCondition(api, nodecontract.AccessCondition, want)
	}
	if _, ok := accessCondition(Options{runtimeConfig: filepath.Join(t.TempDir(), "none")}.runtime()); ok {
		t.Error("there is a condition about a runtime that is not there")
	}
	if _, ok := accessCondition(Options{runtimeConfig: none}.runtime()); ok {
		t.Error("there is a condition although the option is none")
	}
}

// runtimeFile writes a configuration of the runtime, and returns a path without a file if it is empty.
func runtimeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if text != "" {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}
