package aws

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/catalog"
)

// machineClass has the fields of an EC2NodeClass that change what pods can use of a machine.
type machineClass struct {
	nodeClass
	Spec struct {
		Kubelet             kubelet           `json:"kubelet"`
		BlockDeviceMappings []blockDevice     `json:"blockDeviceMappings"`
		InstanceStorePolicy string            `json:"instanceStorePolicy"`
		NetworkInterfaces   []json.RawMessage `json:"networkInterfaces"`
	} `json:"spec"`
}

type kubelet struct {
	MaxPods        *intstr.IntOrString `json:"maxPods"`
	PodsPerCore    int64               `json:"podsPerCore"`
	KubeReserved   map[string]string   `json:"kubeReserved"`
	SystemReserved map[string]string   `json:"systemReserved"`
	EvictionHard   map[string]string   `json:"evictionHard"`
}

type blockDevice struct {
	DeviceName string `json:"deviceName"`
	RootVolume bool   `json:"rootVolume"`
	EBS        struct {
		VolumeSize json.RawMessage `json:"volumeSize"`
	} `json:"ebs"`
}

// Labels of an instance type with its CPUs, its memory in MiB and its disks in GB.
const (
	cpuLabel    = group + "/instance-cpu"
	memoryLabel = group + "/instance-memory"
	nvmeLabel   = group + "/instance-local-nvme"
)

const (
	mib, gib = 1 << 20, 1 << 30
	// defaultVolume is the size of the volume for pods if the node class names none.
	defaultVolume = 20 * gib
	// lostMemory is the default of Karpenter's setting VM_MEMORY_OVERHEAD_PERCENT.
	lostMemory = 0.075
	// custom is the family without known disks.
	custom = "Custom"
)

// configure returns instance types with the machines that a node class makes of them: its limit of pods, reservations, evictions and storage. The types are
// as without any configuration, with AL2023 or Bottlerocket. The difference is that of computeCapacity and the overhead in Karpenter's AWS provider
// (pkg/providers/instancetype, v1.15.0). unused are the fields that change machines in a way that only AWS or Karpenter knows.
func configure(class *unstructured.Unstructured, types []catalog.InstanceType) (configured []catalog.InstanceType, unused []string, err error) {
	text, err := json.Marshal(class.Object)
	if err != nil {
		return nil, nil, fmt.Errorf("reading EC2NodeClass %s: %w", class.GetName(), err)
	}
	var c machineClass
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, nil, fmt.Errorf("reading EC2NodeClass %s: %w", class.GetName(), err)
	}
	if err := json.Unmarshal(text, &c.nodeClass); err != nil {
		return nil, nil, fmt.Errorf("reading EC2NodeClass %s: %w", class.GetName(), err)
	}
	unused = c.Spec.Kubelet.dropExpressions()
	configured = slices.Clone(types)
	for i := range configured {
		if err := c.configure(&configured[i]); err != nil {
			return nil, nil, fmt.Errorf("EC2NodeClass %s: spec.%w", class.GetName(), err)
		}
	}
	if len(c.Spec.NetworkInterfaces) > 0 {
		unused = append(unused, "spec.networkInterfaces")
	}
	return configured, unused, nil
}

// dropExpressions removes the CEL expressions, which Karpenter evaluates with its gate NodeClassCEL, and returns their fields.
func (k *kubelet) dropExpressions() (fields []string) {
	if k.MaxPods != nil && k.MaxPods.Type == intstr.String {
		fields, k.MaxPods = append(fields, "spec.kubelet.maxPods"), nil
	}
	for field, reserved := range map[string]map[string]string{"spec.kubelet.kubeReserved": k.KubeReserved, "spec.kubelet.systemReserved": k.SystemReserved} {
		maps.DeleteFunc(reserved, func(name, text string) bool {
			_, err := amount.Parse(text)
			if err != nil {
				fields = append(fields, field+"."+name)
			}
			return err != nil
		})
	}
	slices.Sort(fields)
	return fields
}

// configure changes an instance type without configuration.
func (c *machineClass) configure(t *catalog.InstanceType) error {
	before, err := (&machineClass{}).left(t)
	if err != nil {
		return err
	}
	after, err := c.left(t)
	if err != nil {
		return err
	}
	a := &t.Allocatable
	a.MilliCPU = max(0, a.MilliCPU+after.MilliCPU-before.MilliCPU)
	a.MemoryBytes = max(0, a.MemoryBytes+after.MemoryBytes-before.MemoryBytes)
	a.EphemeralBytes = max(0, a.EphemeralBytes+after.EphemeralBytes-before.EphemeralBytes)
	a.Pods = after.Pods
	t.Capacity.EphemeralBytes += c.storage(t) - defaultVolume
	t.Capacity.Pods = after.Pods
	return nil
}

// left returns what the machines of an instance type leave to pods.
func (c *machineClass) left(t *catalog.InstanceType) (catalog.Resources, error) {
	k := &c.Spec.Kubelet
	whole := catalog.Resources{MilliCPU: 1000 * cpus(t), MemoryBytes: memory(t), EphemeralBytes: c.storage(t), Pods: c.pods(t)}
	withPods := t.Capacity.Pods
	if family, _ := FamilyOf(c.family()); family == Bottlerocket {
		withPods = whole.Pods
	}
	kube := catalog.Resources{MilliCPU: kubeCPU(whole.MilliCPU), MemoryBytes: (11*withPods + 255) * mib, EphemeralBytes: gib}
	system := catalog.Resources{}
	evicted := catalog.Resources{MemoryBytes: 100 * mib, EphemeralBytes: (whole.EphemeralBytes + 9) / 10}
	if err := reserve("kubelet.kubeReserved", &kube, k.KubeReserved); err != nil {
		return whole, err
	}
	if err := reserve("kubelet.systemReserved", &system, k.SystemReserved); err != nil {
		return whole, err
	}
	if err := evict(&evicted.MemoryBytes, whole.MemoryBytes, "memory.available", k.EvictionHard); err != nil {
		return whole, err
	}
	if err := evict(&evicted.EphemeralBytes, whole.EphemeralBytes, "nodefs.available", k.EvictionHard); err != nil {
		return whole, err
	}
	if _, err := c.volume(); err != nil {
		return whole, err
	}
	for _, r := range []catalog.Resources{kube, system, evicted} {
		whole.MilliCPU, whole.MemoryBytes, whole.EphemeralBytes = whole.MilliCPU-r.MilliCPU, whole.MemoryBytes-r.MemoryBytes, whole.EphemeralBytes-r.EphemeralBytes
	}
	return whole, nil
}

// pods returns the number of pods of a machine. Without configuration, it is that of the addresses of its network interfaces.
func (c *machineClass) pods(t *catalog.InstanceType) int64 {
	pods := t.Capacity.Pods
	if c.Spec.Kubelet.MaxPods != nil {
		pods = int64(c.Spec.Kubelet.MaxPods.IntVal)
	}
	family, _ := FamilyOf(c.family())
	if each := c.Spec.Kubelet.PodsPerCore; each > 0 && family != Bottlerocket {
		pods = min(pods, amount.Times(each, cpus(t)))
	}
	return max(0, min(pods, amount.Max))
}

func (c *machineClass) storage(t *catalog.InstanceType) int64 {
	if gb, err := strconv.ParseInt(t.Labels[nvmeLabel], 10, 64); err == nil && c.Spec.InstanceStorePolicy == "RAID0" && gb > 0 {
		return amount.Times(gb, 1e9)
	}
	size, err := c.volume()
	if err != nil {
		return defaultVolume // left reports the error.
	}
	return size
}

// volume returns the size of the volume that pods use: the root volume or else the one with the device name of the family.
func (c *machineClass) volume() (int64, error) {
	devices, device := c.Spec.BlockDeviceMappings, "/dev/xvda"
	if family, _ := FamilyOf(c.family()); family == Bottlerocket {
		device = "/dev/xvdb"
	}
	i := slices.IndexFunc(devices, func(d blockDevice) bool { return d.RootVolume && len(d.EBS.VolumeSize) > 0 })
	switch {
	case i < 0 && strings.EqualFold(c.family(), custom):
		i = len(devices) - 1
	case i < 0:
		i = slices.IndexFunc(devices, func(d blockDevice) bool { return d.DeviceName == device })
	}
	if i < 0 || len(devices[i].EBS.VolumeSize) == 0 {
		return defaultVolume, nil
	}
	q, err := quantity(strings.Trim(string(devices[i].EBS.VolumeSize), `"`))
	if err != nil {
		return 0, fmt.Errorf("blockDeviceMappings[%d].ebs.volumeSize: %w", i, err)
	}
	return min(amount.Max, amount.Value(q)), nil
}

// kubeCPU returns the CPU that the kubelet reserves by default.
func kubeCPU(milliCPU int64) int64 {
	reserved := int64(0)
	for _, r := range []struct {
		from, to int64
		share    float64
	}{{0, 1000, 0.06}, {1000, 2000, 0.01}, {2000, 4000, 0.005}, {4000, math.MaxInt32, 0.0025}} {
		if milliCPU >= r.from {
			reserved += int64(float64(min(milliCPU, r.to)-r.from) * r.share)
		}
	}
	return reserved
}

func cpus(t *catalog.InstanceType) int64 {
	if n, err := strconv.ParseInt(t.Labels[cpuLabel], 10, 32); err == nil && n > 0 {
		return n
	}
	return t.Capacity.MilliCPU / 1000
}

// memory returns the memory of the hardware without that of the virtual machine.
func memory(t *catalog.InstanceType) int64 {
	n, err := strconv.ParseInt(t.Labels[memoryLabel], 10, 32)
	if err != nil || n <= 0 {
		return t.Capacity.MemoryBytes
	}
	if t.Labels[corev1.LabelArchStable] == "arm64" {
		n -= 64
	}
	return (n - int64(math.Ceil(float64(n)*lostMemory))) * mib
}

// reserve replaces the amounts that are configured.
func reserve(field string, r *catalog.Resources, configured map[string]string) error {
	for name, into := range map[string]*int64{"cpu": &r.MilliCPU, "memory": &r.MemoryBytes, "ephemeral-storage": &r.EphemeralBytes} {
		text, ok := configured[name]
		if !ok {
			continue
		}
		q, err := quantity(text)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", field, name, err)
		}
		if *into = min(amount.Max, amount.Value(q)); name == "cpu" {
			*into = min(amount.Max, amount.Milli(q))
		}
	}
	return nil
}

// evict replaces the amount of a signal if its threshold is configured, as a quantity or as a percentage. 100 % disables it.
func evict(into *int64, whole int64, signal string, configured map[string]string) error {
	text, ok := configured[signal]
	if !ok {
		return nil
	}
	if share, ok := strings.CutSuffix(text, "%"); ok {
		percent, err := strconv.ParseFloat(share, 64)
		if err != nil || !(percent >= 0 && percent <= 100) {
			return fmt.Errorf("kubelet.evictionHard: %s is %q, which is no percentage", signal, text)
		}
		if percent == 100 {
			percent = 0
		}
		*into = int64(math.Ceil(float64(whole) / 100 * percent))
		return nil
	}
	q, err := quantity(text)
	if err != nil {
		return fmt.Errorf("kubelet.evictionHard: %s: %w", signal, err)
	}
	*into = min(amount.Max, amount.Value(q))
	return nil
}

// quantity reads an amount that is not negative.
func quantity(text string) (resource.Quantity, error) {
	q, err := amount.Parse(text)
	if err == nil && q.Sign() < 0 {
		err = fmt.Errorf("%s is negative", text)
	}
	return q, err
}
