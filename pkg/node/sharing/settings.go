package sharing

import (
	"fmt"
	"slices"
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
	// IMEXChannels are given to each container, where the machine has them. If they are required the machine must.
	IMEXChannels []int
	IMEXRequired bool
	// Timestamp has the labels say when they were made. MachineTypeFile is where the label of the machine comes from.
	Timestamp       bool
	MachineTypeFile string
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
	f, p, g := c.Flags, PluginFlags{}, GFDFlags{}
	if f.Plugin != nil {
		p = *f.Plugin
	}
	if f.GFD != nil {
		g = *f.GFD
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
	switch ids := c.IMEX.ChannelIDs; {
	case len(ids) > 1 || len(ids) == 1 && ids[0] != 0:
		return Settings{}, fmt.Errorf("imex.channelIDs: is %v, and can be [] or [0]", ids)
	case len(ids) == 1:
		s.IMEXChannels, s.IMEXRequired = ids, c.IMEX.Required
	}
	return s, nil
}

// Has says whether the devices are told in this way.
func (s Settings) Has(list string) bool { return slices.Contains(s.DeviceLists, list) }

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
