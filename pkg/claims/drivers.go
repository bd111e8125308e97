package claims

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
)

// What the devices of NVIDIA's driver have besides attributes with the same names as those of the agents, as of version 0.5
// (cmd/gpu-kubelet-plugin/deviceinfo.go and consumable_shares.go there).
const (
	// nvidiaShares is the capacity that corresponds to replicas. Devices have it if the driver runs with consumable shares.
	nvidiaShares = "shares"
	// nvidiaType is the attribute that distinguishes whole GPUs, with the value nvidiaGPU, from MIG instances and GPUs for virtual machines.
	nvidiaType, nvidiaGPU = "type", "gpu"
	// Only the node knows these.
	nvidiaBrand, nvidiaAddressingMode = "brand", "addressingMode"
	pciBusID, numaNode                = "resource.kubernetes.io/pciBusID", "resource.kubernetes.io/numaNode"
)

// driver is what is known about a DRA driver before there is a node: the names that it uses, and the attributes that devices of a kind will have.
type driver struct {
	name string
	// replicas and memory are the capacities of which claims consume parts.
	replicas, memory resourcev1.QualifiedName
	// alike are attributes that all GPUs of a machine have with one value, because Karve launches machines whose GPUs are of one model. unique are
	// attributes that all GPUs have with different values. Both include the domain.
	alike, unique []string
	// known returns the attributes of devices of a kind that are known before there is a node.
	known func(Kind) map[resourcev1.QualifiedName]resourcev1.DeviceAttribute
	// onNode are the attributes that only the node knows, with made-up values. onNodeNames finds their names in an expression.
	onNode      map[resourcev1.QualifiedName]resourcev1.DeviceAttribute
	onNodeNames *regexp.Regexp
	// resource returns the extended resource of pods that have claims for a DeviceClass.
	resource func(*resourcev1.DeviceClass) corev1.ResourceName
	// config adds the driver parameters of a claim or DeviceClass to ask. named reports whether they are for certain requests. It returns the problem with
	// them, or "" if there is none.
	config func(parameters []byte, named bool, ask *Ask) string
	// reads is the attribute that publishes needs.
	reads resourcev1.QualifiedName
	// publishes returns the extended resource that serves a device, and its replicas. whole reports whether the device serves one claim at a time.
	publishes func(*resourcev1.Device) (resource string, whole bool, replicas int64)
	// mixes reports whether a container that refers to claims on several GPUs may see only some of them.
	mixes bool
	// optional reports whether GPUs that are not shared lack the replicas capacity.
	optional bool
}

// drivers lists the drivers for which Karve plans.
var drivers = []*driver{agentDriver(), nvidiaDriver()}

// driverNamed returns a driver, or nil if Karve does not plan for it. The name of the agents' driver may be "".
func driverNamed(name string) *driver {
	for _, d := range drivers {
		if d.name == name || name == "" {
			return d
		}
	}
	return nil
}

// agentDriver is the driver of Karve's agents (pkg/node/dra).
func agentDriver() *driver {
	d := &driver{
		name: nodecontract.DRADriver, replicas: nodecontract.DRAReplicas, memory: nodecontract.DRAMemory, reads: nodecontract.DRAResource, mixes: true,
		onNode: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			nodecontract.DRAUUID: stringAttribute("GPU-invented"), nodecontract.DRAParentUUID: stringAttribute("GPU-invented"), nodecontract.DRAProductName: stringAttribute("invented"), nodecontract.DRAIndex: {IntValue: new(int64(0))},
			nodecontract.DRADriverVersion: versionAttribute("1.2.3"), nodecontract.DRACUDADriverVersion: versionAttribute("1.2.3"), nodecontract.DRAPCIeRoot: stringAttribute("pci0000:00"),
		},
		known: func(kind Kind) map[resourcev1.QualifiedName]resourcev1.DeviceAttribute {
			known := map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{nodecontract.DRAResource: stringAttribute(kind.Resource)}
			if kind.Profile != "" {
				known[nodecontract.DRAProfile] = stringAttribute(kind.Profile)
			}
			if d, ok := (catalog.GPU{Name: kind.Model}).Driver(); ok {
				known[nodecontract.DRAArchitecture] = stringAttribute(nodecontract.Architecture(d.Major, d.Minor))
				known[nodecontract.DRAComputeCapability] = versionAttribute(nodecontract.ComputeCapability(d.Major, d.Minor))
			}
			return known
		},
		resource: func(c *resourcev1.DeviceClass) corev1.ResourceName {
			if c == nil { // The claim is refused.
				return v1alpha1.ResourceGPUShared
			}
			if name := c.Spec.ExtendedResourceName; name != nil && nodecontract.IsGPUResource(*name) {
				return corev1.ResourceName(*name)
			}
			return v1alpha1.ResourceGPUShared
		},
		config: func([]byte, bool, *Ask) string { return "" }, // The agents have no parameters.
		publishes: func(d *resourcev1.Device) (resource string, whole bool, replicas int64) {
			resource = nodecontract.ResourceGPUShared // Older agents publish no other resource.
			if name := d.Attributes[nodecontract.DRAResource].StringValue; name != nil {
				resource = *name
			}
			return resource, false, amount.Value(d.Capacity[nodecontract.DRAReplicas].Value)
		},
	}
	d.alike = d.qualified(nodecontract.DRAProductName, nodecontract.DRAArchitecture, nodecontract.DRAComputeCapability)
	d.unique = d.qualified(nodecontract.DRAUUID, nodecontract.DRAIndex)
	d.onNodeNames = patternOf(d.onNode)
	return d
}

// nvidiaDriver is NVIDIA's driver, version 0.5. Its GPUs are whole, or have shares if it runs with consumableShares.
func nvidiaDriver() *driver {
	d := &driver{
		name: nodecontract.NVIDIADRADriver, replicas: nvidiaShares, memory: nodecontract.DRAMemory, reads: nvidiaType, optional: true,
		onNode: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			nodecontract.DRAUUID: stringAttribute("GPU-invented"), nodecontract.DRAProductName: stringAttribute("invented"), nvidiaBrand: stringAttribute("invented"), nvidiaAddressingMode: stringAttribute("invented"),
			nodecontract.DRADriverVersion: versionAttribute("1.2.3"), nodecontract.DRACUDADriverVersion: versionAttribute("1.2.3"), nodecontract.DRAPCIeRoot: stringAttribute("pci0000:00"),
			pciBusID: stringAttribute("0000:00:00.0"), numaNode: {IntValue: new(int64(0))},
		},
		known: func(kind Kind) map[resourcev1.QualifiedName]resourcev1.DeviceAttribute {
			known := map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{nvidiaType: stringAttribute(nvidiaGPU)}
			if d, ok := (catalog.GPU{Name: kind.Model}).Driver(); ok {
				known[nodecontract.DRAArchitecture] = stringAttribute(nvidiaArchitecture(nodecontract.Architecture(d.Major, d.Minor)))
				known[nodecontract.DRAComputeCapability] = versionAttribute(nodecontract.ComputeCapability(d.Major, d.Minor))
			}
			return known
		},
		resource: func(*resourcev1.DeviceClass) corev1.ResourceName { return v1alpha1.ResourceGPU },
		config:   nvidiaConfig,
		publishes: func(d *resourcev1.Device) (resource string, whole bool, replicas int64) {
			kind := d.Attributes[nvidiaType].StringValue
			switch shares := d.Capacity[nvidiaShares].Value; {
			case kind == nil || *kind != nvidiaGPU:
				return nodecontract.ResourceGPU, false, 0
			case d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations: // With consumableShares memory or unlimited, there are no shares to count.
				return nodecontract.ResourceGPU, false, amount.Value(shares)
			default:
				return nodecontract.ResourceGPU, true, 1
			}
		},
	}
	d.alike = d.qualified(nvidiaType, nodecontract.DRAProductName, nvidiaBrand, nodecontract.DRAArchitecture, nodecontract.DRAComputeCapability)
	d.unique = d.qualified(nodecontract.DRAUUID)
	d.onNodeNames = patternOf(d.onNode)
	return d
}

// nvidiaArchitecture returns the driver's name of an architecture: "Ada Lovelace" for "ada-lovelace".
func nvidiaArchitecture(name string) string {
	words := strings.Split(name, "-")
	for i, w := range words {
		words[i] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, " ")
}

// nvidiaConfig reads the parameters of a claim for NVIDIA's driver. The driver prepares no claim with unknown parameters: the pod would hang on its
// node.
func nvidiaConfig(parameters []byte, named bool, ask *Ask) string {
	var c struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Sharing    struct {
			Strategy string `json:"strategy"`
		} `json:"sharing"`
	}
	if err := json.Unmarshal(parameters, &c); err != nil {
		return "parameters that cannot be read: " + shortText(err.Error())
	}
	switch {
	case c.APIVersion != "resource.nvidia.com/v1beta1" || !slices.Contains([]string{"GpuConfig", "MigDeviceConfig", "VfioDeviceConfig"}, c.Kind):
		return fmt.Sprintf("%s %s, which Karve does not know: use resource.nvidia.com/v1beta1 GpuConfig", shortText(c.APIVersion), shortText(c.Kind))
	case c.Kind != "GpuConfig" && named:
		return c.Kind + ", which the driver refuses for whole GPUs: use GpuConfig"
	case c.Kind != "GpuConfig": // It is not for devices of this type.
	case c.Sharing.Strategy == "MPS":
		ask.MPS = true
	case c.Sharing.Strategy != "" && c.Sharing.Strategy != "TimeSlicing":
		return fmt.Sprintf("the sharing strategy %q, which Karve does not know: use TimeSlicing or MPS", shortText(c.Sharing.Strategy))
	}
	return ""
}

func stringAttribute(value string) resourcev1.DeviceAttribute {
	return resourcev1.DeviceAttribute{StringValue: &value}
}

func versionAttribute(value string) resourcev1.DeviceAttribute {
	return resourcev1.DeviceAttribute{VersionValue: &value}
}

// qualified returns attributes of the driver with their domain.
func (d *driver) qualified(names ...string) []string {
	for i, name := range names {
		names[i] = d.name + "/" + name
	}
	return names
}

// patternOf returns an expression that matches the names of attributes without their domain, and capacity.
func patternOf(attributes map[resourcev1.QualifiedName]resourcev1.DeviceAttribute) *regexp.Regexp {
	names := []string{"capacity"}
	for name := range maps.Keys(attributes) {
		names = append(names, string(name[strings.LastIndex(string(name), "/")+1:]))
	}
	slices.Sort(names)
	return regexp.MustCompile(`\b(` + strings.Join(names, "|") + `)\b`)
}

// whyUnknowable returns why a selector cannot be evaluated before there is a node, or "" if its text names nothing that only a node knows.
func (d *driver) whyUnknowable(expression string) string {
	switch name := d.onNodeNames.FindString(expression); name {
	case "":
		return ""
	case "capacity": // The drivers publish NVML's amount of memory, which the catalog does not know exactly.
		return fmt.Sprintf("reads the capacity of the GPU, which is known exactly only when there is a node: use capacity.requests.%s and capacity.requests.%s of the request", d.memory, d.replicas)
	default:
		return fmt.Sprintf("reads %s, which is known only when there is a node: use %s or %s, or node selectors of the pod", name, nodecontract.DRAArchitecture, nodecontract.DRAComputeCapability)
	}
}

// driverOf returns the driver whose devices a DeviceClass selects, or nil if Karve does not plan for it.
func driverOf(c *resourcev1.DeviceClass) *driver {
	for _, d := range drivers {
		if slices.ContainsFunc(c.Spec.Selectors, func(s resourcev1.DeviceSelector) bool {
			return s.CEL != nil && (strings.Contains(s.CEL.Expression, "'"+d.name+"'") || strings.Contains(s.CEL.Expression, `"`+d.name+`"`))
		}) {
			return d
		}
	}
	return nil
}

// DriverOf returns the name of the driver whose devices a DeviceClass selects, or "" if Karve does not plan for it.
func DriverOf(c *resourcev1.DeviceClass) string {
	if d := driverOf(c); d != nil {
		return d.name
	}
	return ""
}

// Reads returns the attribute of a driver's devices that Publishes needs. It returns false if Karve does not plan for the driver.
func Reads(driver string) (resourcev1.QualifiedName, bool) {
	if d := driverNamed(driver); d != nil && driver != "" {
		return d.reads, true
	}
	return "", false
}

// Publishes returns what a device in a driver's ResourceSlice provides to pods: the extended resource that serves it, and its replicas. whole reports
// whether it is a GPU that serves one claim at a time. A device that is not available to pods has no replicas.
func Publishes(driver string, device *resourcev1.Device) (resource string, whole bool, replicas int64) {
	if d := driverNamed(driver); d != nil && driver != "" {
		return d.publishes(device)
	}
	return "", false, 0
}
