package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/words"
)

// fixAccess says how to configure the runtime.
const fixAccess = "set accept-nvidia-visible-devices-envvar-when-unprivileged = false and accept-nvidia-visible-devices-as-volume-mounts = true: docs/node.md#which-gpus-a-container-can-reach"

// accessUnrestricted finds nodes whose container runtime gives containers the GPUs that they name.
func accessUnrestricted(f *Facts) []Finding {
	if f.Cluster == nil {
		return nil
	}
	var names []string
	for i := range f.Cluster.Nodes {
		if c := accessCondition(&f.Cluster.Nodes[i]); c != nil && c.Status == corev1.ConditionFalse {
			names = append(names, f.Cluster.Nodes[i].Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return []Finding{{Warning, "Node " + words.Named(names, 1), "the container runtime gives every container the GPUs that its variable " + VisibleDevices + " names, whatever it requests", fixAccess}}
}

// devicesNamed finds containers that name their GPUs themselves, on nodes whose container runtime is not known to ignore that.
func devicesNamed(f *Facts) []Finding {
	if f.Cluster == nil {
		return nil
	}
	restricted := map[string]bool{}
	for i := range f.Cluster.Nodes {
		c := accessCondition(&f.Cluster.Nodes[i])
		restricted[f.Cluster.Nodes[i].Name] = c != nil && c.Status == corev1.ConditionTrue
	}
	all := slices.DeleteFunc(slices.Clone(f.Visible), func(v Visible) bool { return !f.AgentsOn[v.Node] || restricted[v.Node] })
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b Visible) int {
		return cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(a.Container, b.Container))
	})
	var pods []string
	for _, v := range all {
		pods = append(pods, v.Pod)
	}
	message := fmt.Sprintf("sets %s=%.64q in the container %s, and so can use GPUs of the node %s that it was not allocated", VisibleDevices, all[0].Value, all[0].Container, all[0].Node)
	return []Finding{{Warning, "Pod " + words.Named(slices.Compact(pods), 1), message, "remove the variable from the pod, and " + fixAccess}}
}

func accessCondition(node *corev1.Node) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == nodecontract.AccessCondition })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}
