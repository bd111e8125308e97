package nodelabels

import (
	"strings"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
)

// Known says what is known about a label before there is a node.
type Known string

const (
	// Always means that the value is known, or at least its bounds.
	Always Known = "known"
	// Later means that only the node shows whether it has the label, and with which value.
	Later Known = "only on the node"
	// Never means that no node has the label, unless its NodePool sets it.
	Never Known = "never"
)

// Entry is a label that something writes on nodes.
type Entry struct {
	// Key is the label. It may end in *, for all labels with the prefix, and contain <profile>, for the labels of MIG instances.
	Key string
	// By is what writes the label, for people.
	By    string
	Known Known
	// Instead is what to select by if the value is not known.
	Instead string
	// Alias is the label of which this one has the value, or "".
	Alias string
	// Free reports whether a NodePool may set the label itself.
	Free bool
	// valueOn returns the value on a node. It is nil if the value is that of another label, or comes from the catalog.
	valueOn func(*Node) value
}

const (
	byAgent   = "agent, feature discovery"
	byNFD     = "Node Feature Discovery"
	byOperate = "GPU Operator"
	byKubelet = "kubelet"
	byEKS     = "EKS"
	byCloud   = "Karpenter, from the catalog"
	nvidia    = nodecontract.NVIDIAPrefix

	byImage     = "use an image with the wanted driver, and a label of its NodePool"
	byModel     = "use nvidia.com/gpu.product, nvidia.com/gpu.compute.major or karpenter.k8s.aws/instance-gpu-name"
	byHardware  = "use the labels karpenter.k8s.aws/instance-*"
	byInstances = "use nvidia.com/mig-<profile>.count, or request the resource of the profile"
	byPool      = "use karpenter.sh/nodepool, or a label of the NodePool"
)

// Table lists the labels. An entry for one label applies before those with patterns, of which the first applies.
var Table = []Entry{
	{Key: nvidia + "gpu.present", By: byAgent, Known: Always, valueOn: func(*Node) value { return textValue("true") }},
	{Key: nvidia + "gpu.machine", By: byAgent, Known: Always, Instead: "use node.kubernetes.io/instance-type", valueOn: (*Node).machine},
	{Key: nvidia + "gpu.mode", By: byAgent, Known: Always, Instead: byModel, valueOn: (*Node).mode},
	{Key: nodecontract.GPUCountLabel, By: byAgent, Known: Always, valueOn: (*Node).count},
	{Key: nodecontract.GPUReplicasLabel, By: byAgent, Known: Always, Instead: "use karpenter.sh/nodepool", valueOn: (*Node).replicas},
	{Key: nvidia + "gpu.sharing-strategy", By: byAgent, Known: Always, valueOn: (*Node).strategy},
	{Key: nvidia + "gpu.product", By: byAgent, Known: Always, Instead: "use karpenter.k8s.aws/instance-gpu-name", valueOn: (*Node).product},
	{Key: nodecontract.GPUMemoryLabel, By: byAgent, Known: Always, Instead: "use operator Gt or Lt, or karpenter.k8s.aws/instance-gpu-memory", valueOn: (*Node).memory},
	{Key: nvidia + "gpu.family", By: byAgent, Known: Always, Instead: "use karpenter.k8s.aws/instance-gpu-name", valueOn: (*Node).family},
	{Key: nvidia + "gpu.compute.major", By: byAgent, Known: Always, Instead: "use karpenter.k8s.aws/instance-gpu-name", valueOn: (*Node).major},
	{Key: nvidia + "gpu.compute.minor", By: byAgent, Known: Always, Instead: "use karpenter.k8s.aws/instance-gpu-name", valueOn: (*Node).minor},
	{Key: nvidia + "mig.capable", By: byAgent, Known: Always, Instead: "use karpenter.k8s.aws/instance-gpu-name", valueOn: (*Node).capable},
	{Key: nvidia + "mig.strategy", By: byAgent, Known: Always, valueOn: (*Node).naming},
	{Key: nvidia + "mps.capable", By: byAgent, Known: Always, valueOn: (*Node).mps},
	{Key: nvidia + "mig-<profile>.count", By: byAgent, Known: Always, valueOn: ifMixed((*Node).instances)},
	{Key: nvidia + "mig-<profile>.replicas", By: byAgent, Known: Always, valueOn: ifMixed((*Node).perInstance)},
	{Key: nvidia + "mig-<profile>.sharing-strategy", By: byAgent, Known: Always, valueOn: ifMixed((*Node).instanceStrategy)},
	{Key: nvidia + "mig-<profile>.product", By: byAgent, Known: Always, Instead: "use karpenter.k8s.aws/instance-gpu-name", valueOn: ifMixed((*Node).instanceProduct)},
	{Key: nvidia + "mig-<profile>.memory", By: byAgent, Known: Always, Instead: byInstances, valueOn: ifMixed((*Node).instanceMemory)},
	{Key: nvidia + "mig-<profile>.slices.gi", By: byAgent, Known: Always, valueOn: ifMixed((*Node).slices)},
	{Key: nvidia + "mig-<profile>.slices.ci", By: byAgent, Known: Always, valueOn: ifMixed((*Node).slices)},
	{Key: nvidia + "mig-<profile>.*", By: byAgent, Known: Later, Instead: byInstances},
	{Key: nvidia + "gpu.slices.gi", By: byAgent, Known: Always, valueOn: ifSingle((*Node).slices)},
	{Key: nvidia + "gpu.slices.ci", By: byAgent, Known: Always, valueOn: ifSingle((*Node).slices)},
	{Key: nvidia + "gpu.multiprocessors", By: byAgent, Known: Later, Instead: byInstances},
	{Key: nvidia + "gpu.engines.*", By: byAgent, Known: Later, Instead: byInstances},
	{Key: nvidia + "cuda.*", By: byAgent, Known: Later, Instead: byImage},
	{Key: nvidia + "gfd.timestamp", By: byAgent, Known: Later, Instead: byPool},
	{Key: nvidia + "gpu.clique", By: "feature discovery", Known: Later, Instead: "use topology.kubernetes.io/zone or pod affinity"},
	{Key: nvidia + "vgpu.*", By: "feature discovery", Known: Later, Instead: byModel},
	{Key: nvidia + "mig.config.state", By: "MIG manager", Known: Later, Instead: byPool},
	{Key: nodecontract.MIGConfigLabel, By: "administrators, MIG manager", Known: Later, Instead: byPool, Free: true},
	{Key: nodecontract.ConfigLabel, By: "administrators", Known: Later, Instead: byPool, Free: true},
	{Key: nvidia + "gpu.deploy.*", By: byOperate, Known: Later, Instead: "use nvidia.com/gpu.present", Free: true},
	{Key: nvidia + "gpu-driver-upgrade*", By: byOperate, Known: Later, Instead: byPool, Free: true},
	{Key: nvidia + "gpu.workload.config", By: byOperate, Known: Later, Instead: byPool, Free: true},

	{Key: "feature.node.kubernetes.io/*", By: byNFD, Known: Later, Instead: "use nvidia.com/gpu.present, or the labels karpenter.k8s.aws/instance-*", Free: true},

	{Key: "kubernetes.io/hostname", By: byKubelet, Known: Later, Instead: byPool},
	{Key: "kubernetes.io/arch", By: byKubelet, Known: Always},
	{Key: "kubernetes.io/os", By: byKubelet, Known: Always},
	{Key: "beta.kubernetes.io/arch", By: byKubelet, Known: Always, Alias: "kubernetes.io/arch"},
	{Key: "beta.kubernetes.io/os", By: byKubelet, Known: Always, Alias: "kubernetes.io/os"},
	{Key: "beta.kubernetes.io/instance-type", By: byKubelet, Known: Always, Alias: "node.kubernetes.io/instance-type"},
	{Key: "failure-domain.beta.kubernetes.io/zone", By: byKubelet, Known: Always, Alias: "topology.kubernetes.io/zone"},
	{Key: "failure-domain.beta.kubernetes.io/region", By: byKubelet, Known: Always, Alias: "topology.kubernetes.io/region"},
	{Key: "node.kubernetes.io/instance-type", By: byCloud, Known: Always},
	{Key: "topology.kubernetes.io/zone", By: byCloud, Known: Always},
	{Key: "topology.kubernetes.io/region", By: byCloud, Known: Always},
	{Key: "topology.k8s.aws/zone-id", By: byCloud, Known: Always},
	{Key: "topology.k8s.aws/*", By: "AWS's cloud controller", Known: Later, Instead: "use topology.kubernetes.io/zone"},
	{Key: "k8s.io/cloud-provider-aws", By: "AWS's cloud controller", Known: Later, Instead: byPool},
	{Key: "topology.ebs.csi.aws.com/zone", By: "EBS CSI driver", Known: Always, Alias: "topology.kubernetes.io/zone"},

	{Key: "karpenter.k8s.aws/instance-ami-id", By: "Karpenter", Known: Later, Instead: byPool},
	{Key: "karpenter.k8s.aws/capacity-reservation-*", By: byCloud, Known: Always},
	{Key: "karpenter.k8s.aws/*", By: byCloud, Known: Always},
	{Key: "karpenter.sh/capacity-type", By: byCloud, Known: Always},
	{Key: "karpenter.sh/nodepool", By: "Karve", Known: Always},
	{Key: "karpenter.sh/registered", By: "Karpenter", Known: Always},
	{Key: "karpenter.sh/initialized", By: "Karpenter", Known: Always},
	{Key: "karve.sh/gpunodeclass", By: "Karve", Known: Always},

	{Key: "karpenter.sh/provisioner-name", By: "Karpenter before 0.33", Known: Never, Instead: "use karpenter.sh/nodepool"},
	{Key: "eks.amazonaws.com/*", By: byEKS + ", on nodes that it launches", Known: Never, Instead: "Karpenter launches the nodes: use karpenter.sh/nodepool, karpenter.sh/capacity-type, or the labels karpenter.k8s.aws/*", Free: true},
	{Key: "alpha.eksctl.io/*", By: "eksctl, on nodes that it launches", Known: Never, Instead: byPool, Free: true},
	{Key: "node-role.kubernetes.io/*", By: "kubeadm, administrators", Known: Never, Instead: byPool, Free: true},
	{Key: "node.kubernetes.io/windows-build", By: byKubelet + ", on Windows", Known: Never, Instead: "Karve launches no Windows nodes"},
}

// Find returns the entry of a label, or nil if the table does not have it.
func Find(key string) *Entry {
	if e := exact[key]; e != nil {
		return e
	}
	for _, e := range patterns {
		if e.matches(key) {
			return e
		}
	}
	return nil
}

// exact has the entries for one label, and patterns the others.
var exact, patterns = sortedEntries()

func sortedEntries() (exact map[string]*Entry, patterns []*Entry) {
	exact = map[string]*Entry{}
	for i := range Table {
		if e := &Table[i]; strings.ContainsAny(e.Key, "*<") {
			patterns = append(patterns, e)
		} else {
			exact[e.Key] = e
		}
	}
	return exact, patterns
}

// matches reports whether a pattern matches a label.
func (e *Entry) matches(key string) bool {
	pattern := e.Key
	if before, after, ok := strings.Cut(pattern, "<profile>"); ok {
		rest, has := strings.CutPrefix(key, before)
		if after, all := strings.CutSuffix(after, "*"); all {
			return has && strings.Contains(rest, after)
		}
		return has && strings.HasSuffix(rest, after)
	}
	return strings.HasPrefix(key, strings.TrimSuffix(pattern, "*"))
}

func (e *Entry) key(n *Node) string {
	if n.MIG.Count == 0 {
		return e.Key
	}
	return strings.Replace(e.Key, nvidia+"mig-<profile>", mig.Resource(n.MIG.Profile), 1)
}

// Written reports whether something other than Karpenter writes the label on nodes, so that a NodePool cannot choose its value.
func Written(key string) bool {
	e := Find(key)
	return e != nil && !e.Free && (e.valueOn != nil || e.Known == Later)
}

// Foretold reports whether the value of the label follows from the kind of the machine, although the label appears only on the node.
func Foretold(key string) bool {
	e := Find(key)
	return e != nil && e.valueOn != nil
}

// Current returns the label of which this one has the value, which is the label itself for most.
func Current(key string) string {
	if e := Find(key); e != nil && e.Alias != "" {
		return e.Alias
	}
	return key
}

// Aliases returns the labels that have the value of another one, with that label.
func Aliases() map[string]string {
	all := map[string]string{}
	for i := range Table {
		if e := &Table[i]; e.Alias != "" {
			all[e.Key] = e.Alias
		}
	}
	return all
}
