package sharing

import (
	"fmt"
	"strconv"
	"strings"
)

// Setting is a setting that can be given by flag, environment variable or file, in this order of precedence.
type Setting struct {
	// Flags are the names of the flag. Env are those of the environment variable. The first one is used in messages.
	Flags, Env []string
	Usage      string
	// Bool reports whether the flag needs no value. List reports whether it can be repeated.
	Bool, List bool
	// NoEffect is why a flag of NVIDIA's plugin has no effect, or "" if it has one.
	NoEffect string
	set      func(*Config, string) error
}

// AllSettings returns all settings, with the names of NVIDIA's plugin.
func AllSettings() []Setting {
	return []Setting{
		texts("mig-strategy", "MIG_STRATEGY", "how MIG instances are served: none (the whole GPU), single (as GPUs) or mixed (by profile)", func(c *Config) **string { return &c.Flags.MIGStrategy }),
		bools("fail-on-init-error", "FAIL_ON_INIT_ERROR", "exit if the driver does not answer at the start, instead of retrying", func(c *Config) **bool { return &c.Flags.FailOnInitError }),
		texts("nvidia-driver-root", "NVIDIA_DRIVER_ROOT", "where the driver is on the host, for instance / or /run/nvidia/driver", func(c *Config) **string { return &c.Flags.NvidiaDriverRoot }, "driver-root"),
		texts("nvidia-dev-root", "NVIDIA_DEV_ROOT", "where the device files are on the host; default: the driver root", func(c *Config) **string { return &c.Flags.NvidiaDevRoot }, "dev-root"),
		bools("pass-device-specs", "PASS_DEVICE_SPECS", "also pass the device files to containers", func(c *Config) **bool { return &c.plugin().PassDeviceSpecs }),
		{
			Flags: []string{"device-list-strategy"}, Env: []string{"DEVICE_LIST_STRATEGY"}, List: true,
			Usage: "how devices are passed to the container runtime: envvar, volume-mounts, cdi-annotations, cdi-cri, or several",
			set: func(c *Config, value string) error {
				c.plugin().DeviceListStrategy = splitList(value)
				return nil
			},
		},
		texts("device-id-strategy", "DEVICE_ID_STRATEGY", "how devices are identified to the container runtime: uuid or index", func(c *Config) **string { return &c.plugin().DeviceIDStrategy }),
		bools("gdrcopy-enabled", "GDRCOPY_ENABLED", "start containers with GDRCopy", func(c *Config) **bool { return &c.Flags.GDRCopyEnabled }),
		bools("gds-enabled", "GDS_ENABLED", "start containers with GPUDirect Storage", func(c *Config) **bool { return &c.Flags.GDSEnabled }),
		bools("mofed-enabled", "MOFED_ENABLED", "start containers with MOFED", func(c *Config) **bool { return &c.Flags.MOFEDEnabled }),
		texts("cdi-annotation-prefix", "CDI_ANNOTATION_PREFIX", "the prefix of annotations with CDI devices", func(c *Config) **string { return &c.plugin().CDIAnnotationPrefix }),
		texts("container-driver-root", "CONTAINER_DRIVER_ROOT", "where the driver root is mounted for the agent", func(c *Config) **string { return &c.plugin().ContainerDriverRoot }, "driver-root-ctr-path", "DRIVER_ROOT_CTR_PATH"),
		texts("device-discovery-strategy", "DEVICE_DISCOVERY_STRATEGY", "how GPUs are found: auto or nvml", func(c *Config) **string { return &c.Flags.DeviceDiscoveryStrategy }),
		texts("shared-devices-allocation-policy", "SHARED_DEVICES_ALLOCATION_POLICY", "from which GPU a replica is taken: distributed or packed", func(c *Config) **string { return &c.plugin().SharedDevicesAllocationPolicy }),
		{
			Flags: []string{"imex-channel-ids"}, Env: []string{"IMEX_CHANNEL_IDS"}, List: true,
			Usage: "the IMEX channels that each container gets: none, or 0", set: setChannels,
		},
		{
			Flags: []string{"imex-required"}, Env: []string{"IMEX_REQUIRED"}, Bool: true,
			Usage: "refuse a configuration whose IMEX channels the machine does not have", set: func(c *Config, value string) (err error) {
				c.IMEX.Required, err = parseBool(value)
				return err
			},
		},
		bools("no-timestamp", "GFD_NO_TIMESTAMP", "do not write the timestamp label", func(c *Config) **bool { return &c.gfd().NoTimestamp }),
		texts("machine-type-file", "GFD_MACHINE_TYPE_FILE", "file with the type of the machine", func(c *Config) **string { return &c.gfd().MachineTypeFile }),
		ignoredSetting("mps-root", "MPS_ROOT", "the agent and its MPS daemons use --mps-dir"),
		ignoredSetting("nvidia-cdi-hook-path", "NVIDIA_CDI_HOOK_PATH", noSpecs, "nvidia-ctk-path", "NVIDIA_CTK_PATH"),
		ignoredSetting("cdi-feature-flags", "CDI_FEATURE_FLAGS", noSpecs),
		ignoredSetting("cdi-disable-hooks", "CDI_DISABLE_HOOKS", noSpecs),
	}
}

// Override applies flags and environment variables to the configuration of the file. flag and env report whether a name was set. Empty environment
// variables count as not set.
func (c Config) Override(flag, env func(name string) (string, bool)) (Config, error) {
	if c.Flags.Plugin != nil {
		c.Flags.Plugin = new(*c.Flags.Plugin)
	}
	if c.Flags.GFD != nil {
		c.Flags.GFD = new(*c.Flags.GFD)
	}
	for _, s := range AllSettings() {
		if err := s.override(&c, flag, env); err != nil {
			return Config{}, err
		}
	}
	return c, nil
}

func (s Setting) override(c *Config, flag, env func(string) (string, bool)) error {
	value, name := s.given(flag, env)
	if name == "" || s.NoEffect != "" {
		return nil
	}
	if err := s.set(c, value); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// WithDefaultDeviceList returns a configuration in which devices are passed to the container runtime in the given way, unless it has one already.
func (c Config) WithDefaultDeviceList(list string) Config {
	if c.Flags.Plugin != nil {
		c.Flags.Plugin = new(*c.Flags.Plugin)
	}
	if p := c.plugin(); len(p.DeviceListStrategy) == 0 {
		p.DeviceListStrategy = []string{list}
	}
	return c
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
	for _, s := range AllSettings() {
		if _, name := s.given(flag, env); name != "" && s.NoEffect != "" {
			out = append(out, name+" has no effect: "+s.NoEffect)
		}
	}
	return out
}

func (c *Config) plugin() *PluginFlags {
	if c.Flags.Plugin == nil {
		c.Flags.Plugin = &PluginFlags{}
	}
	return c.Flags.Plugin
}

func (c *Config) gfd() *GFDFlags {
	if c.Flags.GFD == nil {
		c.Flags.GFD = &GFDFlags{}
	}
	return c.Flags.GFD
}

// noSpecs is why the CDI spec settings of NVIDIA's plugin have no effect.
const noSpecs = "the agent writes no CDI specs; give the same to nvidia-ctk cdi generate, which does"

// ignoredSetting returns a Setting of NVIDIA's plugin that has no effect.
func ignoredSetting(flag, env, why string, others ...string) Setting {
	s := Setting{Flags: []string{flag}, Env: []string{env}, Usage: "of no effect: " + why, NoEffect: why, List: true}
	return s.with(others)
}

// splitList splits a comma-separated list.
func splitList(value string) []string {
	var out []string
	for item := range strings.SplitSeq(value, ",") {
		out = append(out, strings.TrimSpace(item))
	}
	return out
}

func setChannels(c *Config, value string) error {
	c.IMEX.ChannelIDs = nil
	for _, item := range splitList(value) {
		if item == "" {
			continue
		}
		n, err := strconv.ParseInt(item, 10, 32)
		if err != nil {
			return fmt.Errorf("is %q, and must be numbers with commas", value)
		}
		c.IMEX.ChannelIDs = append(c.IMEX.ChannelIDs, int(n))
	}
	return nil
}

// texts returns a Setting with a text value. Names in others are environment variables if they are in capitals, and flags otherwise.
func texts(flag, env, usage string, field func(*Config) **string, others ...string) Setting {
	s := Setting{Flags: []string{flag}, Env: []string{env}, Usage: usage, set: func(c *Config, value string) error {
		*field(c) = &value
		return nil
	}}
	return s.with(others)
}

func (s Setting) with(others []string) Setting {
	for _, other := range others {
		if strings.ToUpper(other) == other {
			s.Env = append(s.Env, other)
		} else {
			s.Flags = append(s.Flags, other)
		}
	}
	return s
}

func bools(flag, env, usage string, field func(*Config) **bool) Setting {
	return Setting{Flags: []string{flag}, Env: []string{env}, Usage: usage, Bool: true, set: func(c *Config, value string) error {
		b, err := parseBool(value)
		*field(c) = &b
		return err
	}}
}

func parseBool(value string) (bool, error) {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, fmt.Errorf("is %q, and must be true or false", value)
	}
	return b, nil
}
