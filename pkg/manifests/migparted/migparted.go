// Package migparted reads configurations of NVIDIA's mig-parted, with which the MIG manager of the GPU Operator divides GPUs, as layouts of GPUNodeClasses.
package migparted

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
)

// Configs are the configurations of a file by name.
type Configs map[string][]item

// item divides some GPUs of a machine.
type item struct {
	// Filter restricts the item to models by their PCI device and vendor IDs.
	Filter  texts            `json:"device-filter"`
	Devices devices          `json:"devices"`
	Enabled bool             `json:"mig-enabled"`
	MIG     map[string]int64 `json:"mig-devices"`
}

// texts is a text, or a list of them.
type texts []string

// UnmarshalJSON implements json.Unmarshaler.
func (t *texts) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*t = texts{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(t))
}

// devices are the indices of GPUs, or nil for all.
type devices []int

// UnmarshalJSON implements json.Unmarshaler.
func (d *devices) UnmarshalJSON(data []byte) error {
	var word string
	if json.Unmarshal(data, &word) == nil {
		if word != "all" {
			return fmt.Errorf("devices is %.64q, and can be all or a list of indices", word)
		}
		*d = nil
		return nil
	}
	if err := json.Unmarshal(data, (*[]int)(d)); err != nil || len(*d) == 0 {
		return errors.New("devices is neither all nor a list of indices")
	}
	return nil
}

// configKey is the key of a configuration in the ConfigMap of the GPU Operator.
const configKey = "config.yaml"

// Read reads a configuration of mig-parted, or a ConfigMap that has one in config.yaml.
func Read(data []byte) (Configs, error) {
	var file struct {
		Kind    string            `json:"kind"`
		Data    map[string]string `json:"data"`
		Version string            `json:"version"`
		Configs Configs           `json:"mig-configs"`
	}
	if err := yaml.UnmarshalStrict(withoutOthers(data), &file); err != nil {
		return nil, fmt.Errorf("reading a configuration of mig-parted: %w", err)
	}
	if file.Kind == "ConfigMap" {
		text, ok := file.Data[configKey]
		if !ok {
			return nil, fmt.Errorf("the ConfigMap has no %s", configKey)
		}
		return Read([]byte(text))
	}
	if file.Version != "v1" || len(file.Configs) == 0 {
		return nil, fmt.Errorf("this is no configuration of mig-parted: version is %.64q and not v1, or there are no mig-configs", file.Version)
	}
	return file.Configs, nil
}

// withoutOthers returns the document without the fields of a ConfigMap that do not matter.
func withoutOthers(data []byte) []byte {
	var all map[string]any
	if yaml.Unmarshal(data, &all) != nil {
		return data // It is reported later.
	}
	for _, key := range []string{"apiVersion", "metadata", "immutable", "binaryData"} {
		delete(all, key)
	}
	less, err := yaml.Marshal(all)
	if err != nil {
		return data
	}
	return less
}

// Names returns the names of the configurations, sorted.
func (c Configs) Names() []string { return slices.Sorted(maps.Keys(c)) }

// Layouts returns the layouts of a configuration: one for each model of GPUs that it divides. gpuName restricts them to GPUs with the cloud's name, unless it
// is "".
func (c Configs) Layouts(name, gpuName string) ([]v1alpha1.MIGLayout, error) {
	items, ok := c[name]
	if !ok {
		return nil, fmt.Errorf("there is no configuration %.64q; there is %s", name, strings.Join(c.Names(), ", "))
	}
	var layouts []v1alpha1.MIGLayout
	var why []string
	for _, known := range mig.ModelNames() {
		models := mig.Models(known, 0)
		for i := range models {
			if gpuName != "" && gpuName != known {
				continue
			}
			layout, err := layoutOn(items, &models[i])
			switch {
			case err != nil:
				if text := err.Error(); !slices.Contains(why, text) {
					why = append(why, text)
				}
			case layout != nil:
				if len(models) > 1 {
					layout.GPUMemoryMiB = new(models[i].MemoryMiB)
				}
				layouts = append(layouts, *layout)
			}
		}
	}
	switch {
	case len(layouts) > 0:
		return layouts, nil
	case len(why) > 0:
		return nil, fmt.Errorf("configuration %s: %s", name, strings.Join(why, "; "))
	case gpuName != "":
		return nil, fmt.Errorf("configuration %s has nothing for GPUs %q: known are %s", name, gpuName, strings.Join(mig.ModelNames(), ", "))
	default:
		return nil, fmt.Errorf("configuration %s has profiles or a device-filter of no GPU that is known here", name)
	}
}

// layoutOn returns the layout of a model. It is nil if the items do not concern the model, or have profiles that it lacks.
func layoutOn(items []item, m *mig.Model) (*v1alpha1.MIGLayout, error) {
	var groups []v1alpha1.MIGGroup
	taken := map[int]bool{}
	for i := range items {
		it := &items[i]
		if !it.concerns(m) {
			continue
		}
		instances := it.instances()
		if slices.ContainsFunc(instances, func(of nodecontract.MIGInstances) bool { return m.Kind(of.Profile) == nil }) {
			return nil, nil
		}
		if err := it.fault(instances, m); err != nil {
			return nil, err
		}
		if it.Devices == nil && (len(groups) > 0 || len(taken) > 0) || it.Devices != nil && len(groups) > 0 && len(taken) == 0 {
			return nil, errors.New("it has several items for the same GPUs: keep one")
		}
		for _, at := range it.Devices {
			if at < 0 || taken[at] {
				return nil, fmt.Errorf("it has several items for GPU %d, or there is no such GPU", at)
			}
			taken[at] = true
		}
		groups = append(groups, v1alpha1.MIGGroup{GPUs: int32(len(it.Devices)), Instances: written(instances)})
	}
	for at := range len(taken) {
		if !taken[at] {
			return nil, fmt.Errorf("it does not divide GPU %d, and all GPUs of a node are divided with strategy MIG", at)
		}
	}
	return layoutOf(groups, len(taken) > 0, m), nil
}

// fault returns why GPUs of a model cannot be divided as an item with these instances says, or nil if they can.
func (it *item) fault(instances []nodecontract.MIGInstances, m *mig.Model) error {
	switch {
	case len(instances) == 0 && it.Devices == nil:
		return errors.New("it divides no GPU: use strategy None")
	case len(instances) == 0:
		return fmt.Errorf("GPUs %v are not divided, and all GPUs of a node are with strategy MIG: use another GPUNodeClass for whole GPUs", []int(it.Devices))
	case !m.Holds(instances):
		return mig.CheckInstances(m.Name, m.MemoryMiB, instances)
	}
	return nil
}

// layoutOf returns the layout with groups of instances, or nil if there are none. apart reports whether each group is for some of the GPUs.
func layoutOf(groups []v1alpha1.MIGGroup, apart bool, m *mig.Model) *v1alpha1.MIGLayout {
	if len(groups) == 0 {
		return nil
	}
	layout := &v1alpha1.MIGLayout{GPUName: m.Name}
	switch first := groups[0].Instances; {
	case apart:
		layout.Groups = groups
	case len(first) == 1 && int64(first[0].Count) == m.Fit(first[0].Profile):
		layout.Profile = first[0].Profile
	default:
		layout.Instances = first
	}
	return layout
}

func (it *item) concerns(m *mig.Model) bool {
	return len(it.Filter) == 0 || slices.ContainsFunc(it.Filter, func(id string) bool {
		of, ok := filters[strings.ToUpper(strings.TrimPrefix(strings.TrimPrefix(id, "0x"), "0X"))]
		return ok && of.name == m.Name && of.memoryMiB == m.MemoryMiB
	})
}

// instances returns the instances of each GPU of the item, sorted by profile.
func (it *item) instances() []nodecontract.MIGInstances {
	if !it.Enabled {
		return nil
	}
	var all []nodecontract.MIGInstances
	for _, profile := range slices.Sorted(maps.Keys(it.MIG)) {
		if n := it.MIG[profile]; n > 0 {
			all = append(all, nodecontract.MIGInstances{Profile: profile, Count: min(n, nodecontract.MaxMIGInstances)})
		}
	}
	return all
}

func written(all []nodecontract.MIGInstances) []v1alpha1.MIGInstances {
	out := make([]v1alpha1.MIGInstances, 0, len(all))
	for _, of := range all {
		out = append(out, v1alpha1.MIGInstances{Profile: of.Profile, Count: int32(of.Count)})
	}
	return out
}

// model is the name and the memory of a model in package mig.
type model struct {
	name      string
	memoryMiB int64
}

// filters are the PCI device and vendor IDs in the default configuration of mig-parted.
var filters = map[string]model{
	"20B010DE": {"a100", 40960}, "20B110DE": {"a100", 40960}, "20F110DE": {"a100", 40960}, "20F610DE": {"a100", 40960},
	"20B210DE": {"a100", 81920}, "20B510DE": {"a100", 81920}, "20F310DE": {"a100", 81920}, "20F510DE": {"a100", 81920},
	"20B710DE": {"a30", 24576},
	"233010DE": {"h100", 81920}, "233110DE": {"h100", 81920}, "232210DE": {"h100", 81920}, "232410DE": {"h100", 81920},
	"232110DE": {"h100", 96256}, "233A10DE": {"h100", 96256},
	"233510DE": {"h200", 144384}, "233B10DE": {"h200", 144384},
	"234210DE": {"gh200", 98304}, "234810DE": {"gh200", 147456},
	"232910DE": {"h20", 98304},
	"290110DE": {"b200", 183359},
	"294110DE": {"gb200", 190464},
	"2BB510DE": {"rtx-pro-server-6000", 98304},
}
