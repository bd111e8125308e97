// Package nvidia runs code of NVIDIA's device plugin beside the agent's on the same input.
package nvidia

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	spec "github.com/NVIDIA/k8s-device-plugin/api/config/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"
	"k8s.io/klog/v2"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/labels"
	"karve.sh/karve/pkg/node/sharing"
)

// served is what a machine with two T4s serves under a configuration.
type served struct {
	Err       error
	Resources map[string]offered
	// Own reports whether the document has a key that only the agent applies: devices or rename.
	Own bool
}

// offered is a resource of the machine: the replicas of each GPU, and, with time-slicing, whether a container can have only one of them. With MPS, v0.19 of
// the plugin allows only one in any case, and v0.20 follows the configuration as the agent does.
type offered struct {
	Replicas  int
	AtMostOne bool
}

// nvidias returns what NVIDIA's plugin serves. Its parser is called as its command calls it, without flags.
func nvidias(t *rapid.T, dir, document string) served {
	path := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	var out served
	flags := []cli.Flag{
		&cli.StringFlag{Name: "config-file", Value: path}, &cli.StringFlag{Name: "mig-strategy", Value: spec.MigStrategyNone},
		&cli.StringSliceFlag{Name: "device-list-strategy", Value: cli.NewStringSlice(spec.DeviceListStrategyEnvVar)},
		&cli.StringFlag{Name: "device-id-strategy", Value: spec.DeviceIDStrategyUUID}, &cli.StringFlag{Name: "device-discovery-strategy", Value: "auto"},
		&cli.StringFlag{Name: "mps-root", Value: "/run/nvidia/mps"},
	}
	app := &cli.App{Writer: io.Discard, ErrWriter: io.Discard, Flags: flags, Action: func(c *cli.Context) error {
		config, err := spec.NewConfig(c, flags)
		if err != nil {
			return err
		}
		before := own(config)
		spec.DisableResourceNamingInConfig(config)
		out = serve(config)
		out.Own = before
		return out.Err
	}}
	if err := app.Run([]string{"plugin"}); err != nil {
		out.Err = err
	}
	return out
}

func own(c *spec.Config) bool {
	for _, part := range []*spec.ReplicatedResources{&c.Sharing.TimeSlicing, c.Sharing.MPS} {
		if part == nil {
			continue
		}
		for _, r := range part.Resources {
			named := spec.ResourceName("")
			if part.RenameByDefault {
				named = r.Name.DefaultSharedRename()
			}
			if !r.Devices.All || r.Rename != named {
				return true
			}
		}
	}
	return false
}

// errMPS is a refusal of the plugin that the agent does not need: it refuses MPS on MIG instances, where there are some, and has a directory of its own.
var errMPS = errors.New("MPS with MIG strategy mixed, or without a root")

// serve follows the plugin's command and its internal/rm, which other modules cannot import: the settings must be valid, and each entry whose resource the
// machine has replaces the GPUs of that resource with replicas. Of several such entries, all replicas are served.
func serve(c *spec.Config) served {
	mps := c.Sharing.SharingStrategy() == spec.SharingStrategyMPS
	mixed := *c.Flags.MigStrategy == spec.MigStrategyMixed
	_, lists := spec.NewDeviceListStrategies(*c.Flags.Plugin.DeviceListStrategy)
	switch {
	case lists != nil:
		return served{Err: lists}
	case !slices.Contains([]string{spec.MigStrategyNone, spec.MigStrategySingle, spec.MigStrategyMixed}, *c.Flags.MigStrategy):
		return served{Err: fmt.Errorf("MIG strategy %q", *c.Flags.MigStrategy)}
	case !slices.Contains([]string{spec.DeviceIDStrategyUUID, spec.DeviceIDStrategyIndex}, *c.Flags.Plugin.DeviceIDStrategy):
		return served{Err: fmt.Errorf("device ID strategy %q", *c.Flags.Plugin.DeviceIDStrategy)}
	case !slices.Contains([]string{"auto", "nvml", "tegra"}, *c.Flags.DeviceDiscoveryStrategy):
		return served{Err: fmt.Errorf("discovery strategy %q", *c.Flags.DeviceDiscoveryStrategy)}
	case mps && (mixed || *c.Flags.MpsRoot == ""):
		return served{Err: errMPS}
	}
	if err := spec.AssertChannelIDsValid(c.Imex.ChannelIDs); err != nil {
		return served{Err: err}
	}
	out := served{Resources: map[string]offered{}}
	part := c.Sharing.ReplicatedResources()
	for _, r := range part.Resources {
		if r.Name != "nvidia.com/gpu" {
			continue
		}
		name := string(r.Name)
		if r.Rename != "" {
			name = string(r.Rename)
		}
		// Entries of one name are merged by device ID, so the larger number counts.
		now := out.Resources[name]
		out.Resources[name] = offered{Replicas: max(now.Replicas, r.Replicas), AtMostOne: part.FailRequestsGreaterThanOne && !mps}
	}
	if len(out.Resources) == 0 {
		out.Resources["nvidia.com/gpu"] = offered{Replicas: 1}
	}
	return out
}

// ours returns what the agent serves, and its warnings.
func ours(document string) (served, []string) {
	config, warnings, err := sharing.Read([]byte(document), false)
	if err != nil {
		return served{Err: err}, warnings
	}
	resources, err := config.Resources(gputest.T4s(2))
	if err != nil {
		return served{Err: err}, warnings
	}
	out := served{Resources: map[string]offered{}}
	for _, r := range resources {
		out.Resources[r.Name] = offered{Replicas: r.GPUs[0].Replicas, AtMostOne: r.FailRequestsGreaterThanOne && config.Label() != labels.MPS}
	}
	return out, warnings
}

// scalars are values as they are written in YAML, right and wrong.
var scalars = []string{
	"4", "4", "10", "2", "1", "0", "-1", "4.0", "4.5", `"4"`, "'4'", "0x4", "0o4", "04", "4_0", "1e1", "+4", "4096", "4097", "99999999999", "99999999999999999999",
	".inf", ".nan", "true", "false", "True", "yes", "on", "NO", "y", `"true"`, "null", "~", "", `""`, "[]", "{}", "[4]", "{a: 4}", "all", "gpu", "nvidia.com/gpu", "2024-01-01",
	"!!str 4", `!!int "4"`, "!!float 4", "1m", "60s", "infinite", "0:0", "<<", "=",
}

// fits are values for a key. The first one is right, and drawn most often: a document with two wrong values says little.
var fits = map[string][]string{
	"failOnInitError": {"true", "false"}, "gdsEnabled": {"true", "false"}, "mofedEnabled": {"false"}, "nvidiaDriverRoot": {"/"}, "nvidiaCTKPath": {"/usr/bin/nvidia-ctk"},
	"passDeviceSpecs": {"false"}, "oneshot": {"false"}, "noTimestamp": {"true"},
	"version": {"v1", `"v1"`, "v2", "1", ""}, "migStrategy": {"none", "single", "mixed", "None", ""}, "replicas": {"4", "2", "10", "1", "5000"}, "name": {"nvidia.com/gpu", "gpu", "nvidia.com/mig-1g.5gb", "gpu.shared", "example.com/gpu", "GPU"},
	"rename": {"nvidia.com/gpu.shared", "gpu.shared", "nvidia.com/gpu.shared", "mine", ""}, "devices": {"all", "1", "2", "3", "[0]", `["1"]`, "[0, 1]", "[GPU-00000000-0000-0000-0000-000000000000]"},
	"renameByDefault": {"true", "false"}, "failRequestsGreaterThanOne": {"true", "false"}, "deviceListStrategy": {"envvar", "[envvar]", "[envvar, volume-mounts]", "[envvar, none]", "[]"},
	"deviceIDStrategy": {"uuid", "index", "UUID"}, "deviceDiscoveryStrategy": {"auto", "nvml", "tegra"}, "channelIDs": {"[]", "[0]", "[1]", "[0, 1]"}, "required": {"true", "false"},
	"sleepInterval": {"60s", "infinite", "1000", "1.5", "soon"}, "mpsRoot": {"/run/nvidia/mps", ""}, "pattern": {`"*"`, "T4"},
}

// shape is the keys of each mapping of the configuration. Keys that end in "[]" are lists of mappings.
var shape = map[string][]string{
	"":            {"version", "flags", "resources", "sharing", "sharing", "imex"},
	"flags":       {"migStrategy", "failOnInitError", "mpsRoot", "nvidiaDriverRoot", "gdsEnabled", "mofedEnabled", "deviceDiscoveryStrategy", "plugin", "gfd"},
	"plugin":      {"passDeviceSpecs", "deviceListStrategy", "deviceIDStrategy", "nvidiaCTKPath"},
	"gfd":         {"oneshot", "noTimestamp", "sleepInterval"},
	"resources":   {"gpus[]", "mig[]"},
	"sharing":     {"timeSlicing", "timeSlicing", "timeSlicing", "mps"},
	"timeSlicing": {"renameByDefault", "failRequestsGreaterThanOne", "resources[]", "resources[]", "resources[]"},
	"imex":        {"channelIDs", "required"},
	"gpus[]":      {"pattern", "name"},
	"entry":       {"name", "devices", "replicas", "rename"},
}

// rarely is true about once in n times. Small numbers are drawn most often.
func rarely(t *rapid.T, n int, label string) bool {
	return rapid.Uint64().Draw(t, label)%uint64(n) == uint64(n)-1
}

// drawMapping writes a mapping as a flow mapping, or sometimes another value in its place.
func drawMapping(t *rapid.T, name string, all bool) string {
	if rarely(t, 60, "another value") {
		return rapid.SampledFrom(scalars).Draw(t, "scalar")
	}
	var parts []string
	seen := map[string]bool{}
	for _, key := range shape[name] {
		if rarely(t, map[bool]int{true: 12, false: 3}[all], "left out") || seen[key] && !rarely(t, 20, "twice") {
			continue
		}
		seen[key] = true
		parts = append(parts, drawKey(t, strings.TrimSuffix(key, "[]"))+": "+drawValue(t, key))
	}
	if rarely(t, 20, "unknown") {
		parts = append(parts, rapid.SampledFrom([]string{"foo", "Replicas2", "x-y", "1", "true", "null", "renamebydefault", "*a", "&a b"}).Draw(t, "key")+": "+rapid.SampledFrom(scalars).Draw(t, "value"))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// drawKey writes a key, sometimes in another case or style.
func drawKey(t *rapid.T, key string) string {
	if !rarely(t, 30, "style") {
		return key
	}
	return rapid.SampledFrom([]string{strings.ToLower(key), strings.ToUpper(key[:1]) + key[1:], `"` + key + `"`}).Draw(t, "key")
}

func drawValue(t *rapid.T, key string) string {
	below := map[string]string{"flags": "flags", "plugin": "plugin", "gfd": "gfd", "resources": "resources", "sharing": "sharing", "timeSlicing": "timeSlicing", "mps": "timeSlicing", "imex": "imex"}
	if of, ok := below[key]; ok {
		return drawMapping(t, of, key == "sharing" || of == "timeSlicing")
	}
	if strings.HasSuffix(key, "[]") {
		of := map[bool]string{true: "entry", false: "gpus[]"}[key == "resources[]"]
		var items []string
		for range rapid.SampledFrom([]int{1, 1, 1, 1, 2, 0}).Draw(t, "items") {
			items = append(items, drawMapping(t, of, true))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	switch right := fits[key]; {
	case rarely(t, 40, "any value") || right == nil:
		return rapid.SampledFrom(scalars).Draw(t, "scalar")
	case rarely(t, 8, "other value"):
		return rapid.SampledFrom(right).Draw(t, "value")
	default:
		return right[0]
	}
}

// drawDocument writes a configuration file, sometimes with several documents or unusual characters around them.
func drawDocument(t *rapid.T) string {
	one := func() string { return drawMapping(t, "", false) }
	if !rarely(t, 8, "file") {
		return one() + "\n"
	}
	switch rapid.IntRange(0, 6).Draw(t, "file") {
	case 0:
		return one() + "\n---\n" + one() + "\n"
	case 1:
		return "---\n" + one() + "\n"
	case 2:
		return "\ufeff" + one() + "\r\n"
	case 3:
		return "# " + one() + "\n"
	case 4:
		return "%YAML 1.1\n---\n" + one() + "\n...\n"
	case 5:
		return "---\n---\n" + one() + "\n"
	default:
		return one() + "\n---\n"
	}
}

// TestConfigurationsMeanWhatTheyMeanToNVIDIA reads generated files with both parsers. It allows refusedByAgentAlone, and what it counts apart.
func TestConfigurationsMeanWhatTheyMeanToNVIDIA(t *testing.T) {
	klog.SetLogger(klog.Logger{})
	klog.SetOutput(io.Discard)
	dir := t.TempDir()
	outcomes := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		document := drawDocument(t)
		theirs := nvidias(t, dir, document)
		got, warnings := ours(document)
		switch {
		case theirs.Err != nil && got.Err != nil:
			outcomes["refused by both"]++
		case errors.Is(theirs.Err, errMPS):
			outcomes["refused by NVIDIA's plugin alone"]++
		case theirs.Err != nil:
			t.Fatalf("%s\nNVIDIA's plugin refuses it (%v); the agent serves %v with warnings %q", document, theirs.Err, got.Resources, warnings)
		case got.Err != nil:
			for _, known := range refusedByAgentAlone {
				if strings.Contains(got.Err.Error(), known) {
					outcomes["refused by the agent alone"]++
					return
				}
			}
			t.Fatalf("%s\nNVIDIA's plugin serves %v; the agent refuses it: %v", document, theirs.Resources, got.Err)
		case theirs.Own:
			outcomes["devices or names that only the agent applies"]++
		default:
			if diff := cmp.Diff(theirs.Resources, got.Resources); diff != "" {
				t.Fatalf("%s\nwarnings %q\n(-NVIDIA +agent)\n%s", document, warnings, diff)
			}
			outcomes[fmt.Sprintf("served alike, shared: %t", theirs.Resources["nvidia.com/gpu"].Replicas != 1)]++
		}
	})
	for _, outcome := range slices.Sorted(maps.Keys(outcomes)) {
		t.Logf("%s: %d", outcome, outcomes[outcome])
	}
}

// refusedByAgentAlone are parts of the agent's messages for files that NVIDIA's plugin accepts.
var refusedByAgentAlone = []string{
	"a GPU can have at most 4096", "must be from 2 to 48", // Too many replicas.
	"are to be shared, and there are", "there is no", "is an empty list", // The agent applies devices.
	"both share GPU", // Two entries for a GPU: the plugin applies the larger one.
	"; keep one",     // A key in two spellings.
	`"tegra", and can be auto, nvml`,
}
