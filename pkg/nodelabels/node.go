package nodelabels

import (
	"cmp"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
)

// Node is what the labels of a node follow from.
type Node struct {
	// Type is the name of the instance type. Nitro reports whether its firmware says so.
	Type  string
	Nitro bool
	GPU   catalog.GPU
	// Resource is what pods request.
	Resource string
	// MinReplicas and MaxReplicas bound the replicas of each GPU, over all its MIG instances.
	MinReplicas, MaxReplicas int64
	MPS                      bool
	// MIG is zero if GPUs are not divided into instances. Slots reports whether they are divided into slots of memory.
	MIG   nodecontract.MIG
	Slots bool
	// profileInstances is the number of instances of a profile if there are several profiles: see [Node.profiles].
	profileInstances int64
}

// profiles returns a copy of the node for each profile of its instances, as if all instances had it.
func (n *Node) profiles() []*Node {
	if !n.MIG.Mixed() {
		return []*Node{n}
	}
	var all []*Node
	for _, of := range n.MIG.Instances(n.GPU.Count) {
		as, each := *n, n.MIG.PerInstance()
		as.MIG = nodecontract.MIG{Profile: of.Profile, Count: 1, MemoryMiB: of.MemoryMiB, Naming: n.MIG.Naming}
		as.Resource, as.MinReplicas, as.MaxReplicas, as.profileInstances = mig.SharedResource(of.Profile, each), each, each, of.Count
		all = append(all, &as)
	}
	return all
}

// value is what is known about the value of a label.
type value struct {
	is string
	// doubt is set if the value is not known.
	doubt *Doubt
}

// absent is the value of a label that the node will not have.
var absent = value{}

func textValue(t string) value { return value{is: t} }

func numberValue(n int64) value { return textValue(strconv.FormatInt(n, 10)) }

// unknownValue is the value of a label that the node will have with an unknown value.
func unknownValue() value { return value{doubt: &Doubt{Present: true}} }

// rangeValue is a number within bounds, which may be equal. It is unknown if both are 0.
func rangeValue(least, most int64) value {
	if least == most && least > 0 {
		return numberValue(least)
	}
	return value{doubt: &Doubt{Present: true, Min: least, Max: most}}
}

func ifMixed(of func(*Node) value) func(*Node) value {
	return func(n *Node) value {
		if n.MIG.IsZero() || n.MIG.Naming != nodecontract.MIGMixed {
			return absent
		}
		return of(n)
	}
}

func ifSingle(of func(*Node) value) func(*Node) value {
	return func(n *Node) value {
		if !n.servesInstances() {
			return absent
		}
		return of(n)
	}
}

// servesInstances reports whether MIG instances are served as GPUs, so that the labels of GPUs describe instances.
func (n *Node) servesInstances() bool {
	return !n.MIG.IsZero() && n.MIG.Naming == nodecontract.MIGSingle
}

func (n *Node) machine() value {
	if !n.Nitro {
		return unknownValue()
	}
	return textValue(n.Type)
}

func (n *Node) mode() value {
	if d, ok := n.GPU.Driver(); !ok || d.Display {
		return unknownValue()
	}
	return textValue("compute")
}

func (n *Node) count() value {
	if n.servesInstances() {
		return n.instances()
	}
	return numberValue(n.GPU.Count)
}

func (n *Node) replicas() value {
	switch {
	case n.servesInstances():
		return n.perInstance()
	case !n.MIG.IsZero():
		return textValue("0")
	case n.Slots:
		return absent
	}
	return rangeValue(n.MinReplicas, n.MaxReplicas)
}

func (n *Node) strategy() value {
	switch {
	case n.servesInstances():
		return n.instanceStrategy()
	case n.Slots:
		return textValue("memory-slots")
	case !n.MIG.IsZero() || n.MaxReplicas <= 1:
		return textValue("none")
	case n.MinReplicas <= 1: // It is not shared with one replica.
		return unknownValue()
	case n.MPS:
		return textValue("mps")
	}
	return textValue("time-slicing")
}

func (n *Node) product() value {
	d, ok := n.GPU.Driver()
	switch {
	case !ok || d.Product == "":
		return unknownValue()
	case n.servesInstances():
		return n.instanceProduct()
	case !n.MIG.IsZero() || n.Slots || n.MaxReplicas <= 1 || n.Resource != nodecontract.ResourceGPU:
		return textValue(withDashes(d.Product))
	case n.MinReplicas <= 1:
		return unknownValue()
	}
	return textValue(withDashes(d.Product) + sharedSuffix)
}

func (n *Node) mps() value {
	switch {
	case !n.MPS || !n.MIG.IsZero() || n.MaxReplicas <= 1:
		return textValue("false")
	case n.MinReplicas <= 1:
		return unknownValue()
	}
	return textValue("true")
}

// sharedSuffix is on the product of GPUs whose replicas have the name of whole GPUs.
const sharedSuffix = "-SHARED"

func withDashes(product string) string { return strings.ReplaceAll(product, " ", "-") }

func (n *Node) memory() value {
	if n.servesInstances() {
		return n.instanceMemory()
	}
	return rangeValue(n.GPU.ReportedMiB())
}

func (n *Node) family() value {
	return n.ofModel(func(d catalog.Driver) string { return nodecontract.Architecture(d.Major, d.Minor) })
}

func (n *Node) major() value {
	return n.ofModel(func(d catalog.Driver) string { return strconv.Itoa(d.Major) })
}

func (n *Node) minor() value {
	return n.ofModel(func(d catalog.Driver) string { return strconv.Itoa(d.Minor) })
}

func (n *Node) ofModel(of func(catalog.Driver) string) value {
	d, ok := n.GPU.Driver()
	if !ok {
		return unknownValue()
	}
	return textValue(of(d))
}

func (n *Node) capable() value {
	if _, ok := n.GPU.Driver(); !ok {
		return unknownValue()
	}
	return textValue(strconv.FormatBool(len(mig.Models(n.GPU.Name, 0)) > 0))
}

func (n *Node) naming() value {
	if n.MIG.IsZero() {
		return value{doubt: &Doubt{}} // The agent has a flag for it.
	}
	return textValue(strings.ToLower(n.MIG.Naming))
}

func (n *Node) instances() value {
	return numberValue(cmp.Or(n.profileInstances, n.GPU.Count*n.MIG.Count))
}

func (n *Node) perInstance() value {
	return rangeValue(n.MinReplicas/n.MIG.Count, n.MaxReplicas/n.MIG.Count)
}

func (n *Node) instanceStrategy() value {
	if n.MaxReplicas/n.MIG.Count <= 1 {
		return textValue("none")
	}
	return textValue("time-slicing")
}

func (n *Node) instanceProduct() value {
	d, ok := n.GPU.Driver()
	if !ok || d.Product == "" {
		return unknownValue()
	}
	product := withDashes(d.Product) + "-MIG-" + strings.ReplaceAll(n.MIG.Profile, "+", ".")
	whole := nodecontract.ResourceGPU
	if n.MIG.Naming == nodecontract.MIGMixed {
		whole = mig.Resource(n.MIG.Profile)
	}
	if n.MaxReplicas/n.MIG.Count > 1 && n.Resource == whole {
		product += sharedSuffix
	}
	return textValue(product)
}

func (n *Node) instanceMemory() value {
	_, most := n.GPU.ReportedMiB()
	return rangeValue(n.MIG.MemoryMiB, most)
}

func (n *Node) slices() value {
	for _, m := range mig.Models(n.GPU.Name, n.GPU.MemoryMiB) {
		if k := m.Kind(n.MIG.Profile); k != nil {
			return numberValue(int64(k.Slices))
		}
	}
	return unknownValue()
}
