package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Need is a right that a verb of kubectl karve needs of its user.
type Need struct {
	Right

	// With is a right to a resource that the cluster must serve for this right to be needed. It is empty if the right is always needed.
	With Right
	// Apart reports that the chart's ClusterRole for viewers does not have the right, because it changes something or reaches into other programs.
	Apart bool
	// Without is what the verb does without the right. It is "" if the verb fails.
	Without string
	// Checked reports that the verb checks the right before it begins, because nothing else would report that it is missing.
	Checked bool
}

// verbNeeds are the rights that some verbs need, as they are typed.
type verbNeeds struct {
	verbs []string
	needs []Need
}

// Namespaces are the namespaces of rights.
type Namespaces struct{ Controller, Agents, Prometheus string }

const inAll = ""

func right(verb, resource, namespace string) Need {
	name, group, _ := strings.Cut(resource, ".")
	return Need{Right: Right{Group: group, Resource: name, Verb: verb, Namespace: namespace}}
}

// listing returns the rights to list resources in all namespaces.
func listing(resources ...string) (all []Need) {
	for _, r := range resources {
		all = append(all, right("list", r, inAll))
	}
	return all
}

func (n Need) toObject(name string) Need { n.Name = name; return n }
func (n Need) setApart() Need            { n.Apart = true; return n }
func (n Need) ifServed() Need            { return n.ifServes(n) }
func (n Need) ifServes(other Need) Need  { n.With = other.Right; return n }
func (n Need) orElse(does string) Need   { n.Without = does; return n }
func (n Need) orWarns(does string) Need  { n.Without, n.Checked = does, true; return n }

// keepsRoom returns the right to list objects for which room is kept, and the rights to get what they refer to.
func keepsRoom(does string, listed Need, refersTo ...string) []Need {
	needs := []Need{listed.orWarns(does).ifServed()}
	for _, r := range refersTo {
		needs = append(needs, right("get", r, inAll).orWarns(does).ifServes(listed))
	}
	return needs
}

// needsByVerb returns the rights that the verbs of kubectl karve need if they read a cluster. With manifests and the URL of a Prometheus, they need none.
func needsByVerb(in Namespaces) []verbNeeds {
	settings := right("get", "configmaps", in.Controller).toObject(published.Name)
	leases := []Need{
		right("get", "leases.coordination.k8s.io", in.Controller).toObject(leader.Name).orElse("it does not warn if no controller works"),
		right("list", "leases.coordination.k8s.io", inAll).toObject(leader.Name).orElse("it looks for this Lease only in the namespace of `--karve-namespace`"),
	}
	shows := slices.Concat([]Need{settings.orElse("it says which prices and settings it assumes")}, leases,
		listing("nodes", "pods", "nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "gpunodeclasses.karve.sh"))
	plans := append(slices.Clone(shows), toPlan("it launches nothing in its plans, and says so")...)
	replays := append(slices.Clone(shows), toPlan("")...) // Without node classes, there is nothing to replay on.
	explains := append(slices.Clone(plans), right("list", "poddisruptionbudgets.policy", inAll).orElse("it says that none of them counts"))
	prometheus := func(does string) []Need {
		return []Need{right("list", "services", inAll).orElse(does), right("get", "services/proxy", in.Prometheus).setApart().orElse(does)}
	}
	rollouts := func(needs ...Need) []Need {
		return slices.Concat(leases, []Need{right("get", "gpuimagerollouts.karve.sh", inAll)}, needs)
	}
	return []verbNeeds{
		{[]string{"inspect", "nodes", "pods"}, shows},
		{[]string{"top nodes", "top pods"}, append(slices.Clone(shows), right("get", "pods/proxy", in.Agents).setApart().orElse("it shows no use of GPUs"))},
		{[]string{"plan"}, plans},
		{[]string{"replay"}, replays},
		{[]string{"advise"}, append(slices.Clone(replays), prometheus("")...)},
		{[]string{"explain"}, explains},
		{[]string{"ui"}, slices.Concat(explains, toFollow(explains), prometheus("the page shows no costs over time"))},
		{[]string{"cost"}, prometheus("")},
		{[]string{"doctor"}, toCheck(explains)},
		{[]string{"rollout status"}, rollouts(listing("gpuimagerollouts.karve.sh")...)},
		{[]string{"rollout pause", "rollout resume", "rollout promote", "rollout undo"}, rollouts(right("patch", "gpuimagerollouts.karve.sh", inAll).setApart())},
		{[]string{"version"}, append([]Need{settings.orElse("it does not know the version of the controller")}, leases...)},
	}
}

// toPlan returns the rights that plans need beyond those of verbs that only show the cluster. launchesNothing is what a verb does without the right to node classes.
func toPlan(launchesNothing string) []Need {
	needs := append(listing("namespaces", "persistentvolumeclaims", "persistentvolumes", "csinodes.storage.k8s.io", "storageclasses.storage.k8s.io", "daemonsets.apps"),
		right("list", "nodeoverlays.karpenter.sh", inAll).ifServed(),
		right("list", "gpuimagerollouts.karve.sh", inAll).orWarns("it takes the good image of a paused rollout for outdated").ifServed())
	for _, r := range clouds.NodeClassResources() {
		needs = append(needs, right("get", r.String(), inAll).orWarns(launchesNothing).ifServed())
	}
	needs = append(needs, keepsRoom("it keeps no room for CapacityBuffers", right("list", "capacitybuffers.autoscaling.x-k8s.io", inAll), "podtemplates", "deployments.apps", "replicasets.apps", "statefulsets.apps")...)
	needs = append(needs, keepsRoom("it keeps no room for ProvisioningRequests", right("list", "provisioningrequests.autoscaling.x-k8s.io", inAll), "podtemplates")...)
	for _, n := range listing("deviceclasses.resource.k8s.io", "devicetaintrules.resource.k8s.io", "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io", "resourceslices.resource.k8s.io") {
		needs = append(needs, n.orWarns("it ignores backend DRA").ifServed())
	}
	for _, api := range facts.PodGroupAPIs() {
		needs = append(needs, right("list", "podgroups."+string(api), inAll).orWarns("it ignores groups of pods").ifServed())
	}
	return needs
}

// toFollow returns the rights to watch what a verb lists.
func toFollow(needs []Need) (follows []Need) {
	for _, n := range needs {
		if n.Verb == "list" && n.Resource != "poddisruptionbudgets" && n.Resource != "leases" {
			n.Verb = "watch"
			if n.Checked = true; n.Without != "" { // An informer says nothing.
				n.Without = "the page may show them late"
			}
			follows = append(follows, n)
		}
	}
	return follows
}

// toCheck returns the rights that doctor needs, which skips what it may not read and checks none before it begins.
func toCheck(explains []Need) []Need {
	needs := append(slices.Concat(explains, listing("deployments.apps", "resourcequotas")),
		right("get", "customresourcedefinitions.apiextensions.k8s.io", inAll), right("list", "servicemonitors.monitoring.coreos.com", inAll).ifServed(),
		right("list", "podmonitors.monitoring.coreos.com", inAll).ifServed(), right("create", "subjectaccessreviews.authorization.k8s.io", inAll).setApart())
	for i := range needs {
		needs[i].Without, needs[i].Checked = "it skips the check", false
	}
	return needs
}

// NeedsOf returns the rights that a verb needs.
func NeedsOf(verb string, in Namespaces) []Need {
	for _, v := range needsByVerb(in) {
		if slices.Contains(v.verbs, verb) {
			return v.needs
		}
	}
	return nil
}

// UserRight is a right that verbs need of their user.
type UserRight struct {
	Right

	Apart bool
	// With are rights to resources of which the cluster must serve one for this right to be needed.
	With []Right
	// Verbs are those that need it.
	Verbs []string
}

// UserRights returns the rights of all verbs once.
func UserRights(in Namespaces) (all []UserRight) {
	at := map[Right]int{}
	for _, v := range needsByVerb(in) {
		for _, n := range v.needs {
			i, known := at[n.Right]
			if !known {
				i = len(all)
				at[n.Right] = i
				all = append(all, UserRight{Right: n.Right, Apart: n.Apart})
			}
			all[i].Verbs, all[i].With = append(all[i].Verbs, v.verbs...), append(all[i].With, n.With)
		}
	}
	return all
}

// PermissionTable returns the rights that the chart's ClusterRole for viewers does not have as a table in Markdown. Each row has a right, and verbs that
// do the same without it.
func PermissionTable(in Namespaces) string {
	where := map[string]string{in.Agents: " in the agents' namespace", in.Prometheus: " in the namespace of Prometheus"}
	var rows []Need
	verbs := map[Need][]string{}
	for _, v := range needsByVerb(in) {
		for _, n := range v.needs {
			if !n.Apart {
				continue
			}
			if verbs[n] == nil {
				rows = append(rows, n)
			}
			verbs[n] = append(verbs[n], v.verbs...)
		}
	}
	var b strings.Builder
	b.WriteString("| permission | verbs | without it |\n|---|---|---|\n")
	for _, n := range rows {
		typed := strings.ReplaceAll(strings.Join(verbs[n], "`, `"), "top nodes`, `top pods", "top")
		fmt.Fprintf(&b, "| `%s` `%s`%s | `%s` | %s |\n", n.Verb, n.resource(), where[n.Namespace], typed, cmp.Or(n.Without, "it fails"))
	}
	return b.String()
}
