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
	s := Settings{
		MIGStrategy:         c.migStrategy(),
		FailOnInitError:     c.truth(keyFailOnInitError),
		DriverRoot:          c.text(keyDriverRoot, "/"),
		ContainerDriverRoot: c.text(keyContainerDriverRoot, "/driver-root"),
		GDRCopy:             c.truth(keyGDRCopy),
		GDS:                 c.truth(keyGDS),
		MOFED:               c.truth(keyMOFED),
		PassDeviceSpecs:     c.truth(keyPassDeviceSpecs),
		DeviceLists:         c.Given[KeyDeviceLists],
		DeviceIDStrategy:    c.text(keyDeviceID, IDByUUID),
		CDIAnnotationPrefix: c.text(keyCDIPrefix, "cdi.k8s.io/"),
		AllocationPolicy:    c.text(keyPolicy, PolicyDistributed),
		Timestamp:           !c.truth(keyNoTimestamp),
		MachineTypeFile:     c.text(keyMachineTypeFile, "/sys/class/dmi/id/product_name"),
	}
	if s.DevRoot = c.text(keyDevRoot, ""); s.DevRoot == "" {
		s.DevRoot = s.DriverRoot
	}
	if len(s.DeviceLists) == 0 {
		s.DeviceLists = []string{ListEnvVar}
	}
	for _, check := range []struct {
		key, value string
		allowed    []string
	}{
		{keyMIGStrategy, s.MIGStrategy, []string{migNone, migSingle, migMixed}},
		{keyDeviceID, s.DeviceIDStrategy, []string{IDByUUID, IDByIndex}},
		{keyPolicy, s.AllocationPolicy, []string{PolicyDistributed, PolicyPacked}},
		{keyDiscovery, c.text(keyDiscovery, "auto"), []string{"auto", "nvml"}},
	} {
		if !slices.Contains(check.allowed, check.value) {
			return Settings{}, fmt.Errorf("%s: is %q, and can be %s", check.key, check.value, strings.Join(check.allowed, ", "))
		}
	}
	lists := []string{ListEnvVar, ListVolumeMounts, ListCDIAnnotations, ListCDICRI}
	for _, list := range s.DeviceLists {
		if !slices.Contains(lists, list) {
			return Settings{}, fmt.Errorf("%s: is %q, and can be %s", KeyDeviceLists, list, strings.Join(lists, ", "))
		}
	}
	switch ids := c.Given[keyIMEXChannels]; {
	case len(ids) > 1 || len(ids) == 1 && ids[0] != "0":
		return Settings{}, fmt.Errorf("%s: is %v, and can be [] or [0]", keyIMEXChannels, ids)
	case len(ids) == 1:
		s.IMEXChannels, s.IMEXRequired = []int{0}, c.truth(keyIMEXRequired)
	}
	return s, nil
}

func (c Config) text(key, otherwise string) string {
	if values := c.Given[key]; len(values) > 0 {
		return values[0]
	}
	return otherwise
}

func (c Config) truth(key string) bool { return c.text(key, "") == "true" }

// Has reports whether devices are passed in the given way.
func (s Settings) Has(list string) bool { return slices.Contains(s.DeviceLists, list) }

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
