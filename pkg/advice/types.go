package advice

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

// shaping are the parts of labels after the domain by which a NodePool chooses between instance types with the same GPUs.
var shaping = []string{"instance-type", "instance-family", "instance-size", "instance-cpu", "instance-memory", "instance-gpu-count"}

// moreTypes returns the change to allow a NodePool, by its index, all instance types with the GPUs that it allows today, if there are more of them.
func (sc *scenario) moreTypes(s *planner.Snapshot, j int) (c change, ok bool) {
	np := &sc.cluster.NodePools[j]
	if !facts.IsOurs(np) {
		return c, false
	}
	var now []string
	for _, o := range s.Offerings {
		if s.Pools[o.Pool].Name == np.Name && !slices.Contains(now, o.InstanceType) {
			now = append(now, o.InstanceType)
		}
	}
	all := sc.cluster.InstanceTypes()
	wanted := slices.Clone(now)
	for i := range all {
		t := &all[i]
		same := func(name string) bool {
			like := catalog.Named(all, name)
			return like != nil && like.GPU.Name == t.GPU.Name && like.GPU.MemoryMiB == t.GPU.MemoryMiB && like.Labels[corev1.LabelArchStable] == t.Labels[corev1.LabelArchStable]
		}
		if t.GPU.Count > 0 && !strings.Contains(t.Name, "metal") && !slices.Contains(wanted, t.Name) && slices.ContainsFunc(now, same) { // Metal takes ten minutes to start.
			wanted = append(wanted, t.Name)
		}
	}
	if len(now) == 0 || len(wanted) == len(now) {
		return c, false
	}
	more := slices.Clone(wanted[len(now):])
	slices.Sort(more)
	slices.Sort(wanted)
	requirements := slices.DeleteFunc(slices.Clone(np.Spec.Template.Spec.Requirements), func(r karpv1.NodeSelectorRequirementWithMinValues) bool {
		return slices.Contains(shaping, r.Key[strings.LastIndex(r.Key, "/")+1:])
	})
	requirements = append(requirements, karpv1.NodeSelectorRequirementWithMinValues{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: wanted})
	c = change{Change: Change{
		Kind: Types, Object: "NodePool " + np.Name, Do: fmt.Sprintf("allow %s more with the same GPUs: %s", words.Count(len(more), "instance type"), strings.Join(more, ", ")),
		Evidence: []string{fmt.Sprintf("today it allows %s", words.Named(slices.Sorted(slices.Values(now)), 5))},
		Risks: []string{
			"what else these types have, such as the network and local disks, was not compared",
			"the number of pods that one machine takes with it when it fails changes",
		},
		Patches: []Patch{patchClass("nodepool", np.Name, object{"template": object{"spec": object{"requirements": requirements}}})},
	}}
	c.apply = func(sc *scenario) {
		pool := sc.cluster.NodePools[j].DeepCopy()
		pool.Spec.Template.Spec.Requirements = requirements
		sc.cluster.NodePools[j] = *pool
	}
	return c, true
}

func (sc *scenario) gpus(s *planner.Snapshot) map[string][]string {
	all, names := sc.cluster.InstanceTypes(), map[string][]string{}
	for _, o := range s.Offerings {
		if t := catalog.Named(all, o.InstanceType); t != nil {
			pool := s.Pools[o.Pool].Name
			names[pool] = append(names[pool], fmt.Sprintf("%s %d MiB", t.GPU.Name, t.GPU.MemoryMiB))
		}
	}
	for pool := range names {
		slices.Sort(names[pool])
		names[pool] = slices.Compact(names[pool])
	}
	return names
}
