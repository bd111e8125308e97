package overview

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
)

// maxGPUs is more than any machine has. Labels and annotations may contain any number.
const maxGPUs = catalog.MaxGPUs

// hear adds the agent's report of the GPUs and of the holders of their replicas. It also adds their GPUs to pods, the pods of the node. It keeps
// holders that are no longer pods of the node according to the API server: the GPUs are theirs until the kubelet has stopped them.
func (n *Node) hear(annotation string, pods []Pod, now time.Time) {
	report, ok, err := nodecontract.ParseHolders(annotation)
	switch {
	case err != nil || ok && len(report.GPUs) > maxGPUs*nodecontract.MaxMIGInstances:
		n.Agent.Report = Invalid
		return
	case !ok:
		return
	}
	n.Agent = Agent{Report: Fresh, AsOf: &report.AsOf, Truncated: report.Truncated}
	if !report.FreshAt(now) {
		n.Agent.Report = Stale
	}
	byName := make(map[string]*Pod, len(pods))
	for i := range pods {
		byName[pods[i].Namespace+"/"+pods[i].Name] = &pods[i]
	}
	n.GPUs = make([]GPU, 0, len(report.GPUs))
	for i := range report.GPUs {
		n.GPUs = append(n.GPUs, gpuOf(&report.GPUs[i], report.Truncated, byName))
	}
}

func gpuOf(g *nodecontract.HeldGPU, truncated bool, pods map[string]*Pod) GPU {
	gpu := GPU{
		Index: g.Index, Instance: g.Instance, Profile: g.Profile, UUID: g.UUID, Product: g.Product, Healthy: new(g.Health != nodecontract.GPUOutOfService), Cordoned: g.Health == nodecontract.GPUCordoned,
		Replicas: new(int64(g.Replicas)), Held: new(int64(g.Held)),
	}
	if g.MemoryMiB > 0 {
		gpu.MemoryMiB = new(g.MemoryMiB)
	}
	for _, s := range g.Slots {
		gpu.Slots = append(gpu.Slots, Slots{MiB: s.MiB, Held: int64(s.Held), Free: int64(s.Free)})
	}
	if truncated {
		return gpu
	}
	gpu.Holders, gpu.StatedMiB = []Holder{}, new(int64(0))
	counted := map[*Pod]bool{}
	for _, h := range g.Holders {
		namespace, name, _ := strings.Cut(h.Pod, "/")
		holder := Holder{Namespace: namespace, Pod: name, Container: h.Container, Replicas: h.IDs, Slots: h.Slots}
		if len(h.Slots) > 0 {
			holder.StatedMiB = new(h.MiB())
			*gpu.StatedMiB += h.MiB()
		}
		if p := pods[h.Pod]; p != nil {
			if len(h.Slots) == 0 {
				holder.StatedMiB = p.StatedMiB
			}
			if p.StatedMiB != nil && len(h.Slots) == 0 && !counted[p] {
				*gpu.StatedMiB += *p.StatedMiB
			}
			counted[p] = true
			if !slices.Contains(p.GPUs, g.Index) {
				p.GPUs = append(p.GPUs, g.Index)
			}
		}
		gpu.Holders = append(gpu.Holders, holder)
	}
	return gpu
}

// memoryOf returns the total device memory, in MiB, of a node with this number of GPUs, or 0 if the Node does not report it.
func memoryOf(node *corev1.Node, gpus int64) int64 {
	each := numberOf(node.Labels[nodecontract.GPUMemoryLabel])
	if each > catalog.MaxMemoryMiB || gpus > maxGPUs {
		return 0
	}
	return each * gpus
}

func numberOf(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return max(0, n)
}
