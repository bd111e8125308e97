package sharing

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Settings is what the flags come to, with everything that was not said at NVIDIA's default. It is valid.
type Settings struct {
	MIGStrategy string
	// FailOnInitError ends the agent when the driver does not answer at start. Unlike NVIDIA's it is off unless asked for: staying and
	// trying again has the node ready seconds after the driver is, and a crash loop minutes after.
	FailOnInitError bool
	// DriverRoot and DevRoot are where the driver and the device files are on the host.
	DriverRoot, DevRoot string
	// ContainerDriverRoot is where the driver root is mounted for the agent.
	ContainerDriverRoot string
	// GDRCopy, GDS and MOFED ask the container runtime for these. They are off unless set: MOFED mounts every /dev/infiniband/uverbs*, which
	// AWS's EFA needs for itself.
	GDRCopy, GDS, MOFED bool
	PassDeviceSpecs     bool
	// DeviceLists are the ways in which a container's devices are told to the runtime.
	DeviceLists         []string
	DeviceIDStrategy    string
	CDIAnnotationPrefix string
	AllocationPolicy    string
}

// How devices are told to the container runtime, named, and chosen.
const (
	ListEnvVar         = "envvar"
	ListVolumeMounts   = "volume-mounts"
	ListCDIAnnotations = "cdi-annotations"
	ListCDICRI         = "cdi-cri"

	IDByUUID  = "uuid"
	IDByIndex = "index"

	PolicyDistributed = "distributed"
	PolicyPacked      = "packed"

	migNone = "none"
)

// Settings fills in the defaults and says what is not valid.
func (c Config) Settings() (Settings, error) {
	f, p := c.Flags, PluginFlags{}
	if f.Plugin != nil {
		p = *f.Plugin
	}
	s := Settings{
		MIGStrategy:         or(f.MIGStrategy, migNone),
		FailOnInitError:     or(f.FailOnInitError, false),
		DriverRoot:          or(f.NvidiaDriverRoot, "/"),
		ContainerDriverRoot: or(p.ContainerDriverRoot, "/driver-root"),
		GDRCopy:             or(f.GDRCopyEnabled, false),
		GDS:                 or(f.GDSEnabled, false),
		MOFED:               or(f.MOFEDEnabled, false),
		PassDeviceSpecs:     or(p.PassDeviceSpecs, false),
		DeviceLists:         p.DeviceListStrategy,
		DeviceIDStrategy:    or(p.DeviceIDStrategy, IDByUUID),
		CDIAnnotationPrefix: or(p.CDIAnnotationPrefix, "cdi.k8s.io/"),
		AllocationPolicy:    or(p.SharedDevicesAllocationPolicy, PolicyDistributed),
	}
	if s.DevRoot = or(f.NvidiaDevRoot, ""); s.DevRoot == "" {
		s.DevRoot = s.DriverRoot
	}
	if len(s.DeviceLists) == 0 {
		s.DeviceLists = []string{ListEnvVar}
	}
	discovery := or(f.DeviceDiscoveryStrategy, "auto")
	for _, check := range []struct {
		key, value string
		allowed    []string
	}{
		{"flags.migStrategy", s.MIGStrategy, []string{migNone, "single", "mixed"}},
		{"flags.plugin.deviceIDStrategy", s.DeviceIDStrategy, []string{IDByUUID, IDByIndex}},
		{"flags.plugin.sharedDevicesAllocationPolicy", s.AllocationPolicy, []string{PolicyDistributed, PolicyPacked}},
		{"flags.deviceDiscoveryStrategy", discovery, []string{"auto", "nvml"}},
	} {
		if !slices.Contains(check.allowed, check.value) {
			return Settings{}, fmt.Errorf("%s: is %q, and can be %s", check.key, check.value, strings.Join(check.allowed, ", "))
		}
	}
	lists := []string{ListEnvVar, ListVolumeMounts, ListCDIAnnotations, ListCDICRI}
	for _, list := range s.DeviceLists {
		if !slices.Contains(lists, list) {
			return Settings{}, fmt.Errorf("flags.plugin.deviceListStrategy: is %q, and can be %s", list, strings.Join(lists, ", "))
		}
	}
	if len(c.IMEX.ChannelIDs) > 0 || c.IMEX.Required {
		return Settings{}, fmt.Errorf("imex: channels are not supported yet; leave imex out")
	}
	return s, nil
}

// Has says whether the devices are told in this way.
func (s Settings) Has(list string) bool { return slices.Contains(s.DeviceLists, list) }

// A Setting of Flags can be given as a flag, in the environment, or in the file, and counts in this order.
type Setting struct {
	// Flags are the names of the command line flag, Env those of the environment variables; the first is the one to tell about.
	Flags, Env []string
	Usage      string
	// Bool says that the flag needs no value.
	Bool bool
	set  func(*Config, string) error
}

// AllSettings lists them, with the names of NVIDIA's plugin.
func AllSettings() []Setting {
	return []Setting{
		texts("mig-strategy", "MIG_STRATEGY", "what MIG devices are exposed as: none", func(c *Config) **string { return &c.Flags.MIGStrategy }),
		bools("fail-on-init-error", "FAIL_ON_INIT_ERROR", "end when the driver does not answer at start, instead of trying again", func(c *Config) **bool { return &c.Flags.FailOnInitError }),
		texts("nvidia-driver-root", "NVIDIA_DRIVER_ROOT", "where the driver is on the host, for instance / or /run/nvidia/driver", func(c *Config) **string { return &c.Flags.NvidiaDriverRoot }, "driver-root"),
		texts("nvidia-dev-root", "NVIDIA_DEV_ROOT", "where the device files are on the host; default: the driver root", func(c *Config) **string { return &c.Flags.NvidiaDevRoot }, "dev-root"),
		bools("pass-device-specs", "PASS_DEVICE_SPECS", "also pass the device files to containers", func(c *Config) **bool { return &c.plugin().PassDeviceSpecs }),
		{
			Flags: []string{"device-list-strategy"}, Env: []string{"DEVICE_LIST_STRATEGY"},
			Usage: "how devices are told to the container runtime: envvar, volume-mounts, cdi-annotations, cdi-cri, or several with commas",
			set: func(c *Config, value string) error {
				c.plugin().DeviceListStrategy = nil
				for item := range strings.SplitSeq(value, ",") {
					c.plugin().DeviceListStrategy = append(c.plugin().DeviceListStrategy, strings.TrimSpace(item))
				}
				return nil
			},
		},
		texts("device-id-strategy", "DEVICE_ID_STRATEGY", "how devices are named to the container runtime: uuid or index", func(c *Config) **string { return &c.plugin().DeviceIDStrategy }),
		bools("gdrcopy-enabled", "GDRCOPY_ENABLED", "start containers with GDRCopy", func(c *Config) **bool { return &c.Flags.GDRCopyEnabled }),
		bools("gds-enabled", "GDS_ENABLED", "start containers with GPUDirect Storage", func(c *Config) **bool { return &c.Flags.GDSEnabled }),
		bools("mofed-enabled", "MOFED_ENABLED", "start containers with MOFED", func(c *Config) **bool { return &c.Flags.MOFEDEnabled }),
		texts("cdi-annotation-prefix", "CDI_ANNOTATION_PREFIX", "the prefix of annotations with CDI devices", func(c *Config) **string { return &c.plugin().CDIAnnotationPrefix }),
		texts("container-driver-root", "CONTAINER_DRIVER_ROOT", "where the driver root is mounted for the agent", func(c *Config) **string { return &c.plugin().ContainerDriverRoot }, "driver-root-ctr-path", "DRIVER_ROOT_CTR_PATH"),
		texts("device-discovery-strategy", "DEVICE_DISCOVERY_STRATEGY", "how GPUs are found: auto or nvml", func(c *Config) **string { return &c.Flags.DeviceDiscoveryStrategy }),
		texts("shared-devices-allocation-policy", "SHARED_DEVICES_ALLOCATION_POLICY", "which GPU a replica is taken from: distributed or packed", func(c *Config) **string { return &c.plugin().SharedDevicesAllocationPolicy }),
	}
}

// Override puts flags and environment over the file. Each lookup says whether a name was given; an empty environment variable was not.
func (c Config) Override(flag, env func(name string) (string, bool)) (Config, error) {
	if c.Flags.Plugin != nil {
		c.Flags.Plugin = new(*c.Flags.Plugin)
	}
	for _, s := range AllSettings() {
		if err := s.override(&c, flag, env); err != nil {
			return Config{}, err
		}
	}
	return c, nil
}

func (s Setting) override(c *Config, flag, env func(string) (string, bool)) error {
	for _, name := range s.Flags {
		if value, ok := flag(name); ok {
			if err := s.set(c, value); err != nil {
				return fmt.Errorf("--%s: %w", name, err)
			}
			return nil
		}
	}
	for _, name := range s.Env {
		if value, ok := env(name); ok && value != "" {
			if err := s.set(c, value); err != nil {
				return fmt.Errorf("%s in the environment: %w", name, err)
			}
			return nil
		}
	}
	return nil
}

func (c *Config) plugin() *PluginFlags {
	if c.Flags.Plugin == nil {
		c.Flags.Plugin = &PluginFlags{}
	}
	return c.Flags.Plugin
}

// texts makes a Setting of text; other names in capitals are of the environment.
func texts(flag, env, usage string, field func(*Config) **string, others ...string) Setting {
	s := Setting{Flags: []string{flag}, Env: []string{env}, Usage: usage, set: func(c *Config, value string) error {
		*field(c) = &value
		return nil
	}}
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
		b, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("is %q, and must be true or false", value)
		}
		*field(c) = &b
		return nil
	}}
}

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
