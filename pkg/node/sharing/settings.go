package sharing

import (
	"fmt"
	"slices"
	"strings"
)

// Settings are the valid values of the flags, with NVIDIA's defaults for those that were not set.
type Settings struct {
	MIGStrategy string
	// FailOnInitError ends the agent if the driver does not answer at the start. Unlike in NVIDIA's plugin, it is off by default: with retries, the node
	// is ready seconds after the driver, and with a crash loop, minutes after it.
	FailOnInitError bool
	// DriverRoot and DevRoot are the directories of the driver and of the device files on the host.
	DriverRoot, DevRoot string
	// ContainerDriverRoot is where the driver root is mounted in the agent's container.
	ContainerDriverRoot string
	// GDRCopy, GDS and MOFED request these features from the container runtime. They are off by default, because MOFED mounts every
	// /dev/infiniband/uverbs*, which AWS's EFA needs for itself.
	GDRCopy, GDS, MOFED bool
	PassDeviceSpecs     bool
	// DeviceLists are the ways in which the devices of a container are passed to the runtime.
	DeviceLists         []string
	DeviceIDStrategy    string
	CDIAnnotationPrefix string
	AllocationPolicy    string
	// IMEXChannels are added to each container if the machine has them. If IMEXRequired is true, the machine must have them.
	IMEXChannels []int
	IMEXRequired bool
	// Timestamp adds the label with the time at which the labels changed. MachineTypeFile is the source of the machine type label.
	Timestamp       bool
	MachineTypeFile string
}

// Values for how devices are passed to the container runtime, identified and chosen.
const (
	ListEnvVar         = "envvar"
	ListVolumeMounts   = "volume-mounts"
	ListCDIAnnotations = "cdi-annotations"
	ListCDICRI         = "cdi-cri"

	IDByUUID  = "uuid"
	IDByIndex = "index"

	PolicyDistributed = "distributed"
	PolicyPacked      = "packed"
)

// Settings returns the settings with defaults, and an error if any are invalid.
func (c Config) Settings() (Settings, error) {
	f, p, g := c.Flags, PluginFlags{}, GFDFlags{}
	if f.Plugin != nil {
		p = *f.Plugin
	}
	if f.GFD != nil {
		g = *f.GFD
	}
	s := Settings{
		MIGStrategy:         c.migStrategy(),
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
		Timestamp:           !or(g.NoTimestamp, false),
		MachineTypeFile:     or(g.MachineTypeFile, "/sys/class/dmi/id/product_name"),
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
		{"flags.migStrategy", s.MIGStrategy, []string{migNone, migSingle, migMixed}},
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
	switch ids := c.IMEX.ChannelIDs; {
	case len(ids) > 1 || len(ids) == 1 && ids[0] != 0:
		return Settings{}, fmt.Errorf("imex.channelIDs: is %v, and can be [] or [0]", ids)
	case len(ids) == 1:
		s.IMEXChannels, s.IMEXRequired = ids, c.IMEX.Required
	}
	return s, nil
}

// Has reports whether devices are passed in the given way.
func (s Settings) Has(list string) bool { return slices.Contains(s.DeviceLists, list) }

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
