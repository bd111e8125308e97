package catalog

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/nodecontract"
)

// Keys of the labels that machines of every cloud have.
const (
	labelInstanceType = "node.kubernetes.io/instance-type"
	labelArch         = "kubernetes.io/arch"
	labelOS           = "kubernetes.io/os"
	labelZone         = "topology.kubernetes.io/zone"
	labelCapacityType = "karpenter.sh/capacity-type"
)

// GPULabels are the keys of the labels that describe the GPUs of a machine in a cloud.
type GPULabels struct {
	// Name is the key for the name of the model, Count is that for the number of GPUs, and Memory is that for the memory of each GPU in MiB.
	Name, Count, Memory string
	// Models has Karve's name of each model that the cloud names otherwise. Karve's names are those of the field gpuName of a GPUNodeClass, such as a10g.
	Models map[string]string
}

// The amounts that Karpenter's kwok provider reserves on every machine, as in its newInstanceType.
const (
	kwokReservedMilliCPU    = 100
	kwokReservedMemoryBytes = 10 << 20
	kwokDefaultPods         = 110
)

// kwokInstanceType is an item in the file of the --instance-types-file-path flag of Karpenter's kwok provider.
type kwokInstanceType struct {
	Name             string                       `json:"name"`
	Architecture     string                       `json:"architecture"`
	OperatingSystems []string                     `json:"operatingSystems"`
	Resources        map[string]resource.Quantity `json:"resources"`
	Offerings        []kwokOffering               `json:"offerings"`
}

type kwokOffering struct {
	Price        float64 `json:"Price"`
	Requirements []struct {
		Key      string   `json:"key"`
		Operator string   `json:"operator"`
		Values   []string `json:"values"`
	} `json:"Requirements"`
}

// ReadKWOK reads instance types from the JSON file of Karpenter's kwok provider, so that both use the same machines. Every requirement of an offering must
// be `In` with one value, and becomes a label. The resource nvidia.com/gpu is the number of GPUs, which the labels of one of the clouds describe. Other resources
// become Extended. The error joins all problems of the file. The result is sorted by name.
func ReadKWOK(r io.Reader, gpus ...GPULabels) ([]InstanceType, error) {
	var read []kwokInstanceType
	dec := json.NewDecoder(r)
	if err := dec.Decode(&read); err != nil {
		return nil, fmt.Errorf("reading instance types: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("reading instance types: there is something after the list")
	}
	types := make([]InstanceType, 0, len(read))
	names := map[string]bool{}
	var errs []error
	for _, k := range read {
		t, err := k.instanceType(gpus)
		if names[k.Name] {
			err = errors.Join(err, errors.New("the name occurs twice"))
		}
		names[k.Name] = true
		if err != nil {
			errs = append(errs, fmt.Errorf("instance type %q: %w", k.Name, err))
			continue
		}
		types = append(types, t)
	}
	slices.SortFunc(types, func(a, b InstanceType) int { return strings.Compare(a.Name, b.Name) })
	return types, errors.Join(errs...)
}

func (k kwokInstanceType) instanceType(gpus []GPULabels) (InstanceType, error) {
	if k.Name == "" {
		return InstanceType{}, errors.New("it has no name")
	}
	capacity, err := k.capacity()
	errs := []error{err}
	t := InstanceType{
		Name:     k.Name,
		Labels:   map[string]string{labelInstanceType: k.Name, labelArch: k.Architecture},
		Capacity: capacity,
		Allocatable: Resources{
			MilliCPU:       max(0, capacity.MilliCPU-kwokReservedMilliCPU),
			MemoryBytes:    max(0, capacity.MemoryBytes-kwokReservedMemoryBytes),
			EphemeralBytes: capacity.EphemeralBytes,
			Pods:           capacity.Pods,
		},
		GPU:      GPU{Count: amount.Value(k.Resources[nodecontract.ResourceGPU])},
		Extended: k.extended(),
	}
	if k.Architecture == "" {
		errs = append(errs, errors.New("it has no architecture"))
	}
	if len(k.OperatingSystems) == 1 {
		t.Labels[labelOS] = k.OperatingSystems[0]
	}
	for i, o := range k.Offerings {
		offering, err := o.offering(i, t.Labels)
		errs = append(errs, err)
		t.Offerings = append(t.Offerings, offering)
	}
	errs = append(errs, t.describe(gpus))
	return t, errors.Join(errs...)
}

func (k kwokInstanceType) capacity() (Resources, error) {
	pods, ok := k.Resources["pods"]
	if !ok {
		pods = *resource.NewQuantity(kwokDefaultPods, resource.DecimalSI)
	}
	cpu, gpus := k.Resources["cpu"], amount.Value(k.Resources[nodecontract.ResourceGPU])
	capacity := Resources{
		MilliCPU:       amount.Milli(cpu),
		MemoryBytes:    amount.Value(k.Resources["memory"]),
		EphemeralBytes: amount.Value(k.Resources["ephemeral-storage"]),
		Pods:           amount.Value(pods),
	}
	var errs []error
	if gpus > MaxGPUs {
		errs = append(errs, fmt.Errorf("%d GPUs are more than any machine has", gpus))
	}
	if cpu.Sign() <= 0 || min(capacity.MemoryBytes, capacity.Pods) <= 0 || min(capacity.EphemeralBytes, gpus) < 0 {
		errs = append(errs, errors.New("cpu, memory and pods must be above zero, ephemeral-storage and nvidia.com/gpu not below"))
	}
	if largest := slices.Max(append(slices.Collect(maps.Values(k.extended())), amount.Value(cpu), capacity.MemoryBytes, capacity.EphemeralBytes, capacity.Pods, gpus)); largest > amount.Max {
		errs = append(errs, errors.New("an amount of its resources is beyond that of any machine"))
	}
	return capacity, errors.Join(errs...)
}

// extended returns the resources that no other field holds, or nil if there are none.
func (k kwokInstanceType) extended() map[string]int64 {
	var extended map[string]int64
	for name, q := range k.Resources {
		if slices.Contains([]string{"cpu", "memory", "ephemeral-storage", "pods", nodecontract.ResourceGPU}, name) || q.Sign() <= 0 {
			continue
		}
		if extended == nil {
			extended = map[string]int64{}
		}
		extended[name] = amount.Value(q)
	}
	return extended
}

// offering converts the offering with index i of a machine with the given labels.
func (o kwokOffering) offering(i int, machine map[string]string) (Offering, error) {
	var errs []error
	labels := map[string]string{}
	for _, req := range o.Requirements {
		if req.Operator != "In" || len(req.Values) != 1 {
			errs = append(errs, fmt.Errorf("offering %d: requirement %q must be In with one value", i, req.Key))
			continue
		}
		if is := cmp.Or(labels[req.Key], machine[req.Key]); is != "" && is != req.Values[0] {
			errs = append(errs, fmt.Errorf("offering %d: requirement %q is %q, but the machine has %q", i, req.Key, req.Values[0], is))
			continue
		}
		labels[req.Key] = req.Values[0]
	}
	offering := Offering{
		Zone: labels[labelZone], CapacityType: labels[labelCapacityType],
		MicroUSDPerHour: int64(math.Round(o.Price * 1e6)), Labels: labels,
	}
	if offering.Zone == "" || offering.CapacityType == "" {
		errs = append(errs, fmt.Errorf("offering %d: it needs requirements for %s and %s", i, labelZone, labelCapacityType))
	}
	if o.Price > 1e6 || offering.MicroUSDPerHour <= 0 {
		errs = append(errs, fmt.Errorf("offering %d: the price %v is not between 0 and a million dollars an hour", i, o.Price))
	}
	return offering, errors.Join(errs...)
}

// describe moves the labels that all offerings share to the instance type, and sets the fields of the GPU from those of the cloud whose labels it has.
func (t *InstanceType) describe(clouds []GPULabels) error {
	if len(t.Offerings) == 0 {
		return errors.New("it has no offerings")
	}
	shared := maps.Clone(t.Offerings[0].Labels)
	for _, o := range t.Offerings[1:] {
		maps.DeleteFunc(shared, func(k, v string) bool { got, ok := o.Labels[k]; return !ok || got != v })
	}
	delete(shared, labelZone)
	delete(shared, labelCapacityType)
	for _, o := range t.Offerings {
		maps.DeleteFunc(o.Labels, func(k, _ string) bool { _, ok := shared[k]; return ok })
	}
	maps.Copy(t.Labels, shared)

	if t.GPU.Count == 0 {
		return nil
	}
	i := slices.IndexFunc(clouds, func(g GPULabels) bool {
		return slices.ContainsFunc([]string{g.Name, g.Count, g.Memory}, func(key string) bool { _, ok := t.Labels[key]; return ok })
	})
	if i < 0 {
		return nil
	}
	gpus := clouds[i]
	t.GPU.Name = t.Labels[gpus.Name]
	if name, ok := gpus.Models[t.GPU.Name]; ok {
		t.GPU.Name = name
	}
	if s, ok := t.Labels[gpus.Memory]; ok {
		mib, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return fmt.Errorf("label %s: %w", gpus.Memory, err)
		}
		if mib <= 0 || mib > MaxMemoryMiB {
			return fmt.Errorf("label %s: %d MiB is not above zero, or more than any GPU has", gpus.Memory, mib)
		}
		t.GPU.MemoryMiB = mib
	}
	if s, ok := t.Labels[gpus.Count]; ok && s != strconv.FormatInt(t.GPU.Count, 10) {
		return fmt.Errorf("label %s is %s, but the machine has %d %s", gpus.Count, s, t.GPU.Count, nodecontract.ResourceGPU)
	}
	return nil
}
