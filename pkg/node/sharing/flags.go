package sharing

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// Setting is a setting that can be given by flag, environment variable or file, in this order of precedence.
type Setting struct {
	// Key is the key in the file, or "" if it has none.
	Key string
	// Flags are the names of the flag. Env are those of the environment variable. The first one is used in messages. Without them, the setting is only read
	// from the file, as NVIDIA's plugin does, and has no effect.
	Flags, Env []string
	Usage      string
	kind       kind
	// NoEffect is why a flag of NVIDIA's plugin has no effect, or "" if it has one.
	NoEffect string
}

// kind is the kind of the values of a setting.
type kind int

const (
	text kind = iota
	truth
	list     // of texts
	numbers  // a list of whole numbers
	duration // as "60s" or "infinite", or a number of nanoseconds
)

// Bool reports whether the flag needs no value.
func (s Setting) Bool() bool { return s.kind == truth }

// List reports whether the flag can be repeated.
func (s Setting) List() bool { return s.kind == list || s.kind == numbers || s.NoEffect != "" }

// Keys of settings.
const (
	keyMIGStrategy     = "flags.migStrategy"
	keyFailOnInitError = "flags.failOnInitError"
	keyDriverRoot      = "flags.nvidiaDriverRoot"
	keyDevRoot         = "flags.nvidiaDevRoot"
	keyPassDeviceSpecs = "flags.plugin.passDeviceSpecs"
	// KeyDeviceLists is the key of how devices are passed to the container runtime.
	KeyDeviceLists         = "flags.plugin.deviceListStrategy"
	keyDeviceID            = "flags.plugin.deviceIDStrategy"
	keyGDRCopy             = "flags.gdrcopyEnabled"
	keyGDS                 = "flags.gdsEnabled"
	keyMOFED               = "flags.mofedEnabled"
	keyCDIPrefix           = "flags.plugin.cdiAnnotationPrefix"
	keyContainerDriverRoot = "flags.plugin.containerDriverRoot"
	keyDiscovery           = "flags.deviceDiscoveryStrategy"
	keyPolicy              = "flags.plugin.sharedDevicesAllocationPolicy"
	keyIMEXChannels        = "imex.channelIDs"
	keyIMEXRequired        = "imex.required"
	keyNoTimestamp         = "flags.gfd.noTimestamp"
	keyMachineTypeFile     = "flags.gfd.machineTypeFile"
)

// noSpecs is why the CDI spec settings of NVIDIA's plugin have no effect.
const noSpecs = "the agent writes no CDI specs; give the same to nvidia-ctk cdi generate, which does"

// AllSettings are all settings, with the names of NVIDIA's plugin.
var AllSettings = []Setting{
	{keyMIGStrategy, []string{"mig-strategy"}, []string{"MIG_STRATEGY"}, "how MIG instances are served: none (the whole GPU), single (as GPUs) or mixed (by profile)", text, ""},
	{keyFailOnInitError, []string{"fail-on-init-error"}, []string{"FAIL_ON_INIT_ERROR"}, "exit if the driver does not answer at the start, instead of retrying", truth, ""},
	{keyDriverRoot, []string{"nvidia-driver-root", "driver-root"}, []string{"NVIDIA_DRIVER_ROOT"}, "where the driver is on the host, for instance / or /run/nvidia/driver", text, ""},
	{keyDevRoot, []string{"nvidia-dev-root", "dev-root"}, []string{"NVIDIA_DEV_ROOT"}, "where the device files are on the host; default: the driver root", text, ""},
	{keyPassDeviceSpecs, []string{"pass-device-specs"}, []string{"PASS_DEVICE_SPECS"}, "also pass the device files to containers", truth, ""},
	{KeyDeviceLists, []string{"device-list-strategy"}, []string{"DEVICE_LIST_STRATEGY"}, "how devices are passed to the container runtime: envvar, volume-mounts, cdi-annotations, cdi-cri, or several", list, ""},
	{keyDeviceID, []string{"device-id-strategy"}, []string{"DEVICE_ID_STRATEGY"}, "how devices are identified to the container runtime: uuid or index", text, ""},
	{keyGDRCopy, []string{"gdrcopy-enabled"}, []string{"GDRCOPY_ENABLED"}, "start containers with GDRCopy", truth, ""},
	{keyGDS, []string{"gds-enabled"}, []string{"GDS_ENABLED"}, "start containers with GPUDirect Storage", truth, ""},
	{keyMOFED, []string{"mofed-enabled"}, []string{"MOFED_ENABLED"}, "start containers with MOFED", truth, ""},
	{keyCDIPrefix, []string{"cdi-annotation-prefix"}, []string{"CDI_ANNOTATION_PREFIX"}, "the prefix of annotations with CDI devices", text, ""},
	{keyContainerDriverRoot, []string{"container-driver-root", "driver-root-ctr-path"}, []string{"CONTAINER_DRIVER_ROOT", "DRIVER_ROOT_CTR_PATH"}, "where the driver root is mounted for the agent", text, ""},
	{keyDiscovery, []string{"device-discovery-strategy"}, []string{"DEVICE_DISCOVERY_STRATEGY"}, "how GPUs are found: auto or nvml", text, ""},
	{keyPolicy, []string{"shared-devices-allocation-policy"}, []string{"SHARED_DEVICES_ALLOCATION_POLICY"}, "from which GPU a replica is taken: distributed or packed", text, ""},
	{keyIMEXChannels, []string{"imex-channel-ids"}, []string{"IMEX_CHANNEL_IDS"}, "the IMEX channels that each container gets: none, or 0", numbers, ""},
	{keyIMEXRequired, []string{"imex-required"}, []string{"IMEX_REQUIRED"}, "refuse a configuration whose IMEX channels the machine does not have", truth, ""},
	{keyNoTimestamp, []string{"no-timestamp"}, []string{"GFD_NO_TIMESTAMP"}, "do not write the timestamp label", truth, ""},
	{keyMachineTypeFile, []string{"machine-type-file"}, []string{"GFD_MACHINE_TYPE_FILE"}, "file with the type of the machine", text, ""},
	{"flags.mpsRoot", []string{"mps-root"}, []string{"MPS_ROOT"}, "", text, "the agent and its MPS daemons use --mps-dir"},
	{"flags.plugin.nvidiaCTKPath", []string{"nvidia-cdi-hook-path", "nvidia-ctk-path"}, []string{"NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"}, "", text, noSpecs},
	{"", []string{"cdi-feature-flags"}, []string{"CDI_FEATURE_FLAGS"}, "", text, noSpecs},
	{"", []string{"cdi-disable-hooks"}, []string{"CDI_DISABLE_HOOKS"}, "", text, noSpecs},
	{Key: "flags.useNodeFeatureAPI", kind: truth},
	{Key: "flags.gfd.oneshot", kind: truth},
	{Key: "flags.gfd.sleepInterval", kind: duration},
	{Key: "flags.gfd.outputFile"},
}

// Override applies flags and environment variables to the configuration of the file. flag and env report whether a name was set. Empty environment
// variables count as not set.
func (c Config) Override(flag, env func(name string) (string, bool)) (Config, error) {
	for _, s := range AllSettings {
		value, name := s.given(flag, env)
		if name == "" || s.NoEffect != "" {
			continue
		}
		values, err := s.parse(value)
		if err != nil {
			return Config{}, fmt.Errorf("%s: %w", name, err)
		}
		c = c.with(s.Key, values)
	}
	return c, nil
}

// with returns the configuration with the values of a setting.
func (c Config) with(key string, values []string) Config {
	given := map[string][]string{key: nil}
	maps.Copy(given, c.Given)
	given[key] = values
	c.Given = given
	return c
}

// parse returns the values of a flag or an environment variable.
func (s Setting) parse(value string) ([]string, error) {
	if s.kind == truth {
		b, err := strconv.ParseBool(value)
		if err != nil {
			return nil, fmt.Errorf("is %q, and must be true or false", value)
		}
		return []string{strconv.FormatBool(b)}, nil
	}
	if !s.List() {
		return []string{value}, nil
	}
	var values []string
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		if _, err := strconv.ParseInt(item, 10, 32); err != nil && s.kind == numbers {
			return nil, fmt.Errorf("is %q, and must be numbers with commas", value)
		}
		values = append(values, item)
	}
	return values, nil
}

// WithDefaultDeviceList returns a configuration in which devices are passed to the container runtime in the given way, unless it has one already.
func (c Config) WithDefaultDeviceList(list string) Config {
	if len(c.Given[KeyDeviceLists]) > 0 {
		return c
	}
	return c.with(KeyDeviceLists, []string{list})
}

// given returns the value of a setting and the name that it was given with. The name is "" if it was not given.
func (s Setting) given(flag, env func(string) (string, bool)) (value, name string) {
	for _, name := range s.Flags {
		if value, ok := flag(name); ok {
			return value, "--" + name
		}
	}
	for _, name := range s.Env {
		if value, ok := env(name); ok && value != "" {
			return value, name + " in the environment"
		}
	}
	return "", ""
}

// WithoutEffect returns a message for each setting that was given and has no effect.
func WithoutEffect(flag, env func(name string) (string, bool)) []string {
	var out []string
	for _, s := range AllSettings {
		if _, name := s.given(flag, env); name != "" && s.NoEffect != "" {
			out = append(out, name+" has no effect: "+s.NoEffect)
		}
	}
	return out
}
