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
	// Least and Most bound the replicas of each GPU, over all its MIG instances.
	Least, Most int64
	MPS         bool
	// MIG is zero if GPUs are not divided into instances. Slots reports whether they are divided into slots of memory.
	MIG   nodecontract.MIG
	Slots bool
	// alike is the number of instances of a profile if there are several profiles: see [Node.profiles].
	alike int64
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
		as.Resource, as.Least, as.Most, as.alike = mig.SharedResource(of.Profile, each), each, each, of.Count
		all = append(all, &as)
	}
	return all
}

// value is what is known about the value of a label.
type value struct {
	text string
	// doubt is set if the value is not known.
	doubt *Doubt
}

// absent is the value of a label that the node will not have.
var absent = value{}

func text(t string) value { return value{text: t} }

func number(n int64) value { return text(strconv.FormatInt(n, 10)) }

// unsure is the value of a label that the node will have with an unknown value.
func unsure() value { return value{doubt: &Doubt{Present: true}} }

// between is a number within bounds, which may be equal. It is unknown if both are 0.
func between(least, most int64) value {
	if least == most && least > 0 {
		return number(least)
	}
	return value{doubt: &Doubt{Present: true, Least: least, Most: most}}
}

func mixed(of func(*Node) value) func(*Node) value {
	return func(n *Node) value {
		if n.MIG.IsZero() || n.MIG.Naming != nodecontract.MIGMixed {
			return absent
		}
		return of(n)
	}
}

func single(of func(*Node) value) func(*Node) value {
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
		return unsure()
	}
	return text(n.Type)
}

func (n *Node) mode() value {
	if d, ok := n.GPU.Driver(); !ok || d.Display {
		return unsure()
	}
	return text("compute")
}

func (n *Node) count() value {
	if n.servesInstances() {
		return n.instances()
	}
	return number(n.GPU.Count)
}

func (n *Node) replicas() value {
	switch {
	case n.servesInstances():
		return n.perInstance()
	case !n.MIG.IsZero():
		return text("0")
	case n.Slots:
		return absent
	}
	return between(n.Least, n.Most)
}

func (n *Node) strategy() value {
	switch {
	case n.servesInstances():
		return n.instanceStrategy()
	case n.Slots:
		return text("memory-slots")
	case !n.MIG.IsZero() || n.Most <= 1:
		return text("none")
	case n.Least <= 1: // It is not shared with one replica.
		return unsure()
	case n.MPS:
		return text("mps")
	}
	return text("time-slicing")
}

func (n *Node) product() value {
	d, ok := n.GPU.Driver()
	switch {
	case !ok || d.Product == "":
		return unsure()
	case n.servesInstances():
		return n.instanceProduct()
	case !n.MIG.IsZero() || n.Slots || n.Most <= 1 || n.Resource != nodecontract.ResourceGPU:
		return text(withDashes(d.Product))
	case n.Least <= 1:
		return unsure()
	}
	return text(withDashes(d.Product) + sharedSuffix)
}

func (n *Node) mps() value {
	switch {
	case !n.MPS || !n.MIG.IsZero() || n.Most <= 1:
		return text("false")
	case n.Least <= 1:
		return unsure()
	}
	return text("true")
}

// sharedSuffix is on the product of GPUs whose replicas have the name of whole GPUs.
const sharedSuffix = "-SHARED"

func withDashes(product string) string { return strings.ReplaceAll(product, " ", "-") }

func (n *Node) memory() value {
	if n.servesInstances() {
		return n.instanceMemory()
	}
	return between(n.GPU.ReportedMiB())
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
		return unsure()
	}
	return text(of(d))
}

func (n *Node) capable() value {
	if _, ok := n.GPU.Driver(); !ok {
		return unsure()
	}
	return text(strconv.FormatBool(len(mig.Models(n.GPU.Name, 0)) > 0))
}

func (n *Node) naming() value {
	if n.MIG.IsZero() {
		return value{doubt: &Doubt{}} // The agent has a flag for it.
	}
	return text(strings.ToLower(n.MIG.Naming))
}

func (n *Node) instances() value { return number(cmp.Or(n.alike, n.GPU.Count*n.MIG.Count)) }

func (n *Node) perInstance() value { return between(n.Least/n.MIG.Count, n.Most/n.MIG.Count) }

func (n *Node) instanceStrategy() value {
	if n.Most/n.MIG.Count <= 1 {
		return text("none")
	}
	return text("time-slicing")
}

func (n *Node) instanceProduct() value {
	d, ok := n.GPU.Driver()
	if !ok || d.Product == "" {
		return unsure()
	}
	product := withDashes(d.Product) + "-MIG-" + strings.ReplaceAll(n.MIG.Profile, "+", ".")
	whole := nodecontract.ResourceGPU
	if n.MIG.Naming == nodecontract.MIGMixed {
		whole = mig.Resource(n.MIG.Profile)
	}
	if n.Most/n.MIG.Count > 1 && n.Resource == whole {
		product += sharedSuffix
	}
	return text(product)
}

func (n *Node) instanceMemory() value {
	_, most := n.GPU.ReportedMiB()
	return between(n.MIG.MemoryMiB, most)
}

func (n *Node) slices() value {
	for _, m := range mig.Models(n.GPU.Name, n.GPU.MemoryMiB) {
		if k := m.Kind(n.MIG.Profile); k != nil {
			return number(int64(k.Slices))
		}
	}
	return unsure()
}
