package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// failedCondition returns the condition of a kind if it is False. Otherwise it returns nil.
func failedCondition(conditions []metav1.Condition, kind string) *metav1.Condition {
	if c := meta.FindStatusCondition(conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
		return c
	}
	return nil
}

// poolFailed returns the condition of a NodePool if it is False. Otherwise it returns nil.
func poolFailed(np *karpv1.NodePool, kind string) *status.Condition {
	if c := facts.Condition(np.Status.Conditions, kind); c.IsFalse() {
		return c
	}
	return nil
}

func conditionText(reason, text string) string {
	return strings.TrimSuffix(strings.TrimSpace(reason+": "+strings.TrimSuffix(text, ".")), ":")
}

// classNotReady finds classes that cannot launch machines, except for causes that other checks report.
func classNotReady(f *Facts) []Finding {
	var all []Finding
	for _, class := range f.classes() {
		fix := command("kubectl describe gpunodeclass %s", class.Name)
		if c := failedCondition(class.Status.Conditions, v1alpha1.ConditionAccepted); c != nil {
			all = append(all, Finding{Error, "GPUNodeClass " + class.Name, conditionText(c.Reason, c.Message), command("kubectl edit gpunodeclass %s", class.Name)})
		} else if c := failedCondition(class.Status.Conditions, v1alpha1.ConditionReady); c != nil {
			all = append(all, Finding{Error, "GPUNodeClass " + class.Name, conditionText(c.Reason, c.Message), fix})
		} else if len(class.Status.Conditions) == 0 {
			all = append(all, Finding{Error, "GPUNodeClass " + class.Name, "has no conditions: the controller has not seen it", "kubectl get deployments -A -l app.kubernetes.io/component=controller"})
		}
	}
	return all
}

// credentials are reasons of the condition CatalogFresh that do not resolve themselves.
var credentials = []string{"NoCredentials", "AccessDenied"}

func catalogStale(f *Facts) []Finding {
	var all []Finding
	for _, class := range f.classes() {
		c := failedCondition(class.Status.Conditions, v1alpha1.ConditionCatalogFresh)
		if c == nil {
			continue
		}
		since := c.LastTransitionTime.UTC().Format("2006-01-02 15:04Z")
		finding := Finding{Warning, "GPUNodeClass " + class.Name, fmt.Sprintf("its instance types and prices have been out of date since %s: %s", since, conditionText(c.Reason, c.Message)), command("kubectl describe gpunodeclass %s", class.Name)}
		if slices.Contains(credentials, c.Reason) {
			finding.Severity, finding.Fix = Error, "give the controller its IAM role, then kubectl rollout restart its Deployment: docs/install.md#2-the-iam-role"
		}
		all = append(all, finding)
	}
	return all
}

// poolNotReady finds NodePools that the controller cannot use, by their conditions, because the controller knows the instance types of the region.
func poolNotReady(f *Facts) []Finding {
	var all []Finding
	for _, p := range f.pools() {
		name, class := "NodePool "+p.NodePool.Name, p.NodePool.Spec.Template.Spec.NodeClassRef.Name
		if p.Class == nil {
			all = append(all, Finding{Error, name, fmt.Sprintf("names GPUNodeClass %s, which does not exist, so nothing is launched", class), "create the GPUNodeClass, or name another one in spec.template.spec.nodeClassRef of the NodePool"})
			continue
		}
		if c := poolFailed(p.NodePool, karpv1.ConditionTypeValidationSucceeded); c != nil {
			all = append(all, Finding{Error, name, conditionText(c.Reason, c.Message), command("kubectl edit nodepool %s", p.NodePool.Name)})
		}
		// If the GPUNodeClass is not Ready, its own finding gives the reason.
		if c := poolFailed(p.NodePool, karpv1.ConditionTypeNodeClassReady); c != nil && failedCondition(p.Class.Status.Conditions, v1alpha1.ConditionReady) == nil {
			all = append(all, Finding{Error, name, conditionText(c.Reason, c.Message), command("kubectl describe gpunodeclass %s", class)})
		}
	}
	return all
}

// poolStopped finds pools whose machines start without their replicas.
func poolStopped(f *Facts) []Finding {
	return poolsWith(f, v1alpha1.ConditionReplicasHealthy, "launches nothing", "kubectl -n karve-node get pods -o wide: see docs/troubleshooting.md#a-node-does-not-start")
}

// poolsUnhealthy finds pools with so many unhealthy nodes that none is replaced.
func poolsUnhealthy(f *Facts) []Finding {
	return poolsWith(f, v1alpha1.ConditionNodesHealthy, "no unhealthy node is replaced", "kubectl delete nodeclaim, for each node that will not come back")
}

// poolsWith finds pools for which a condition is False.
func poolsWith(f *Facts, condition, problem, fix string) []Finding {
	var all []Finding
	for _, p := range f.pools() {
		if c := poolFailed(p.NodePool, condition); c != nil {
			all = append(all, Finding{Error, "NodePool " + p.NodePool.Name, problem + ": " + conditionText(c.Reason, c.Message), fix})
		}
	}
	return all
}

// objectsSetAside finds that decisions leave objects out.
func objectsSetAside(f *Facts) []Finding {
	for _, p := range f.pools() {
		if c := poolFailed(p.NodePool, v1alpha1.ConditionPlanningHealthy); c != nil { // It is the same for all pools.
			return []Finding{{Error, "controller", "decides without some objects: " + conditionText(c.Reason, c.Message), "change or delete these objects: see docs/runbooks.md#karvesteptoolong"}}
		}
	}
	return nil
}

// agentMissing finds Karve's nodes without a ready agent.
func agentMissing(f *Facts) []Finding {
	if f.Cluster == nil || f.AgentsOn == nil {
		return nil
	}
	if len(f.Agents) == 0 && len(f.pools()) > 0 {
		return []Finding{{Error, "agent", "no DaemonSet of Karve's agent was found, so no node exposes replicas", f.helm("upgrade karve charts/karve --reuse-values --set node.enabled=true")}}
	}
	var without []string
	machines := records.Machines(f.Cluster)
	for i := range machines {
		if m := &machines[i]; m.Started() && !m.Leaving() && !f.AgentsOn[m.Node.Name] {
			without = append(without, m.Node.Name)
		}
	}
	if len(without) == 0 {
		return nil
	}
	return []Finding{{
		Error, "agent", fmt.Sprintf("no ready agent runs on %s, so pods get no replicas there", words.Named(without, 1)),
		command("kubectl get pods -A -o wide -l app.kubernetes.io/name=karve-node --field-selector spec.nodeName=%s", without[0]),
	}}
}

// agentStoodBack finds nodes whose agent serves no GPUs, because another device plugin does or for another reason.
func agentStoodBack(f *Facts) []Finding {
	return f.nodes(Error, nodecontract.SharingCondition, func(c *corev1.NodeCondition) string {
		if c.Reason == nodecontract.ReasonStandingBack {
			return "keep the other device plugin off the node: docs/install.md#next-to-other-gpu-software"
		}
		return "see docs/troubleshooting.md#a-node-has-no-replicas-or-loses-them"
	})
}

// gpusFaulty finds nodes with GPUs that are out of service.
func gpusFaulty(f *Facts) []Finding {
	return f.nodes(Warning, nodecontract.HardwareCondition, func(*corev1.NodeCondition) string {
		return "Karve replaces the node; kubectl karve explain node/NAME says when"
	})
}

// gpuCordonInvalid finds nodes whose annotation names GPUs that the node does not have.
func gpuCordonInvalid(f *Facts) []Finding {
	return f.conditions(Warning, func(c *corev1.NodeCondition) bool {
		return c.Type == nodecontract.CordonCondition && c.Reason == nodecontract.ReasonCordonInvalid
	}, func(*corev1.NodeCondition) string {
		return "kubectl annotate node NAME --overwrite " + nodecontract.GPUCordonAnnotation + "=INDEX"
	})
}

// nodes returns a finding for each of Karve's Nodes with a condition that is False.
func (f *Facts) nodes(severity Severity, kind string, fix func(*corev1.NodeCondition) string) []Finding {
	return f.conditions(severity, func(c *corev1.NodeCondition) bool { return string(c.Type) == kind && c.Status == corev1.ConditionFalse }, fix)
}

// conditions returns a finding for each condition of Karve's Nodes that is bad.
func (f *Facts) conditions(severity Severity, bad func(*corev1.NodeCondition) bool, fix func(*corev1.NodeCondition) string) []Finding {
	if f.Cluster == nil {
		return nil
	}
	var all []Finding
	machines := records.Machines(f.Cluster)
	for i := range machines {
		node := machines[i].Node
		if node == nil {
			continue
		}
		for j := range node.Status.Conditions {
			if c := &node.Status.Conditions[j]; bad(c) {
				all = append(all, Finding{severity, "Node " + node.Name, conditionText(c.Reason, c.Message), strings.ReplaceAll(fix(c), "NAME", node.Name)})
			}
		}
	}
	return all
}

// resourceUnserved finds pending pods that request a resource that nothing serves.
func resourceUnserved(f *Facts) []Finding {
	if f.Cluster == nil {
		return nil
	}
	pods := map[string][]string{}
	for u, of := range snapshot.UnservedPods(f.Cluster) {
		for _, pod := range of {
			pods[u.String()] = append(pods[u.String()], facts.PodName(pod))
		}
	}
	var all []Finding
	for _, why := range slices.Sorted(maps.Keys(pods)) {
		namespace, name, _ := strings.Cut(pods[why][0], "/")
		all = append(all, Finding{Warning, "Pod " + words.Named(pods[why], 1), why, command("kubectl karve explain pod/%s -n %s", name, namespace)})
	}
	return all
}
