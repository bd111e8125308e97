package doctor

import (
	"cmp"
	"fmt"
	"maps"
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

// VerbNeeds are the rights that some verbs need, as they are typed.
type VerbNeeds struct {
	Verbs []string
	Needs []Need
}

// Namespaces are the namespaces of rights.
type Namespaces struct{ Controller, Agents, Prometheus string }

const (
	inAll      = ""
	noPeople   = "it says that none of them counts"
	noTopUse   = "it shows no use of GPUs"
	skipsCheck = "it skips the check"
)

func right(verb, resource, namespace string) Need {
	name, group, _ := strings.Cut(resource, ".")
	return Need{Right: Right{Group: group, Resource: name, Verb: verb, Namespace: namespace}}
}

// list returns the rights to list resources in all namespaces.
func list(resources ...string) (all []Need) {
	for _, r := range resources {
		all = append(all, right("list", r, inAll))
	}
	return all
}

func named(n Need, name string) Need   { n.Name = name; return n }
func apart(n Need) Need                { n.Apart = true; return n }
func served(n Need) Need               { return with(n, n) }
func with(n, other Need) Need          { n.With = other.Right; return n }
func without(n Need, does string) Need { n.Without = does; return n }
func checked(n Need, does string) Need { n.Without, n.Checked = does, true; return n }

// keep returns the right to list objects for which room is kept, and the rights to get what they refer to.
func keep(does string, listed Need, refersTo ...string) []Need {
	needs := []Need{served(checked(listed, does))}
	for _, r := range refersTo {
		needs = append(needs, with(checked(right("get", r, inAll), does), listed))
	}
	return needs
}

func each(needs []Need, of func(Need) Need) []Need {
	changed := make([]Need, len(needs))
	for i, n := range needs {
		changed[i] = of(n)
	}
	return changed
}

// Verbs returns the rights that the verbs of kubectl karve need if they read a cluster. With manifests and the URL of a Prometheus, they need none.
func Verbs(in Namespaces) []VerbNeeds {
	told := []Need{
		without(named(right("get", "configmaps", in.Controller), published.Name), "it says which prices and settings it assumes"),
		without(named(right("get", "leases.coordination.k8s.io", in.Controller), leader.Name), "it does not warn if no controller works"),
		without(named(right("list", "leases.coordination.k8s.io", inAll), leader.Name), "it looks for this Lease only in the namespace of `--karve-namespace`"),
	}
	shown := slices.Concat(told, list("nodes", "pods", "nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "gpunodeclasses.karve.sh"))
	var classes []Need
	for _, r := range clouds.NodeClassResources() {
		classes = append(classes, served(checked(right("get", r.String(), inAll), "it launches nothing in its plans, and says so")))
	}
	keeps := append(keep("it keeps no room for CapacityBuffers", right("list", "capacitybuffers.autoscaling.x-k8s.io", inAll), "podtemplates", "deployments.apps", "replicasets.apps", "statefulsets.apps"),
		keep("it keeps no room for ProvisioningRequests", right("list", "provisioningrequests.autoscaling.x-k8s.io", inAll), "podtemplates")...)
	plans := slices.Concat(shown, list("namespaces", "persistentvolumeclaims", "persistentvolumes", "csinodes.storage.k8s.io", "storageclasses.storage.k8s.io", "daemonsets.apps"),
		[]Need{
			served(right("list", "nodeoverlays.karpenter.sh", inAll)),
			served(checked(right("list", "gpuimagerollouts.karve.sh", inAll), "it takes the good image of a paused rollout for outdated")),
		}, classes, keeps,
		each(list("deviceclasses.resource.k8s.io", "devicetaintrules.resource.k8s.io", "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io", "resourceslices.resource.k8s.io"), func(n Need) Need {
			return served(checked(n, "it ignores backend DRA"))
		}))
	for _, api := range facts.PodGroupAPIs() {
		plans = append(plans, served(checked(right("list", "podgroups."+string(api), inAll), "it ignores groups of pods")))
	}
	replays := each(plans, func(n Need) Need {
		if slices.ContainsFunc(classes, func(c Need) bool { return c.Right == n.Right }) {
			n.Without = "" // There is nothing to replay on.
		}
		return n
	})
	explains := append(slices.Clone(plans), without(right("list", "poddisruptionbudgets.policy", inAll), noPeople))
	follows := slices.Clone(explains)
	for _, n := range explains {
		if n.Verb == "list" && n.Resource != "poddisruptionbudgets" && n.Resource != "leases" {
			n.Verb = "watch"
			if n.Checked = true; n.Without != "" { // An informer says nothing.
				n.Without = "the page may show them late"
			}
			follows = append(follows, n)
		}
	}
	prometheus := func(does string) []Need {
		return []Need{without(right("list", "services", inAll), does), without(apart(right("get", "services/proxy", in.Prometheus)), does)}
	}
	checks := slices.Concat(each(explains, func(n Need) Need { return without(n, skipsCheck) }),
		each(list("deployments.apps", "resourcequotas"), func(n Need) Need { return without(n, skipsCheck) }),
		[]Need{
			without(right("get", "customresourcedefinitions.apiextensions.k8s.io", inAll), skipsCheck), without(served(right("list", "servicemonitors.monitoring.coreos.com", inAll)), skipsCheck),
			without(served(right("list", "podmonitors.monitoring.coreos.com", inAll)), skipsCheck), without(apart(right("create", "subjectaccessreviews.authorization.k8s.io", inAll)), skipsCheck),
		})
	for i := range checks {
		checks[i].Checked = false
	}
	rollouts := func(verbs ...Need) []Need {
		return append(slices.Clone(told[1:]), verbs...)
	}
	return []VerbNeeds{
		{[]string{"inspect", "nodes", "pods"}, shown},
		{[]string{"top nodes", "top pods"}, append(slices.Clone(shown), without(apart(right("get", "pods/proxy", in.Agents)), noTopUse))},
		{[]string{"plan"}, plans},
		{[]string{"replay"}, replays},
		{[]string{"advise"}, append(slices.Clone(replays), prometheus("")...)},
		{[]string{"explain"}, explains},
		{[]string{"ui"}, append(follows, prometheus("the page shows no costs over time")...)},
		{[]string{"cost"}, prometheus("")},
		{[]string{"doctor"}, checks},
		{[]string{"rollout status"}, rollouts(right("get", "gpuimagerollouts.karve.sh", inAll), right("list", "gpuimagerollouts.karve.sh", inAll))},
		{[]string{"rollout pause", "rollout resume", "rollout promote", "rollout undo"}, rollouts(right("get", "gpuimagerollouts.karve.sh", inAll), apart(right("patch", "gpuimagerollouts.karve.sh", inAll)))},
		{[]string{"version"}, append([]Need{without(told[0], "it does not know the version of the controller")}, told[1:]...)},
	}
}

// NeedsOf returns the rights that a verb needs.
func NeedsOf(verb string, in Namespaces) []Need {
	for _, v := range Verbs(in) {
		if slices.Contains(v.Verbs, verb) {
			return v.Needs
		}
	}
	return nil
}

// May returns the right as in "you may not list pods".
func (r Right) May() string {
	text := r.action()
	if r.Name != "" {
		text += " " + r.Name
	}
	if r.Namespace != "" {
		text += " in the namespace " + r.Namespace
	}
	return text
}

// Lacking is a right that the user lacks.
type Lacking struct {
	Right

	Apart bool
	// With are rights to resources of which the cluster must serve one for this right to be needed.
	With []Right
	// Verbs are those that need it.
	Verbs []string
}

// Wanted returns the rights of all verbs once.
func Wanted(in Namespaces) (wanted []Lacking) {
	at := map[Right]int{}
	for _, v := range Verbs(in) {
		for _, n := range v.Needs {
			i, known := at[n.Right]
			if !known {
				i = len(wanted)
				at[n.Right] = i
				wanted = append(wanted, Lacking{Right: n.Right, Apart: n.Apart})
			}
			wanted[i].Verbs, wanted[i].With = append(wanted[i].Verbs, v.Verbs...), append(wanted[i].With, n.With)
		}
	}
	return wanted
}

// rightsLacking reports the rights that the user lacks: those that the chart's ClusterRole has, and others.
func rightsLacking(f *Facts) (findings []Finding) {
	for _, apart := range []bool{false, true} {
		by, last := map[string][]string{}, map[string]string{}
		for _, l := range f.Lacking {
			if l.Apart != apart {
				continue
			}
			verbs, may := strings.Join(l.Verbs, ", "), l.May()
			if last[verbs] == l.Verb {
				may = strings.TrimPrefix(may, l.Verb+" ")
			}
			by[verbs], last[verbs] = append(by[verbs], may), l.Verb
		}
		if len(by) == 0 {
			continue
		}
		var parts []string
		for _, verbs := range slices.SortedFunc(maps.Keys(by), func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) }) {
			parts = append(parts, fmt.Sprintf("%s (%s)", strings.Join(by[verbs], ", "), verbs))
		}
		fix := "kubectl create clusterrolebinding karve-viewers --clusterrole=karve-viewer --user=YOU, as an administrator: docs/cli.md#permissions"
		if apart {
			fix = "let an administrator bind you to a role with them, if you need these verbs: docs/cli.md#permissions"
		}
		findings = append(findings, Finding{Unknown, "your permissions", "you may not " + strings.Join(parts, "; "), fix})
	}
	return findings
}

// allVerbs shortens all verbs of a command to the command.
var allVerbs = strings.NewReplacer("top nodes`, `top pods", "top")

// Table returns the rights that the chart's ClusterRole for viewers does not have as a table in Markdown. Each row has a right, and verbs that do the same without it.
func Table(in Namespaces) string {
	where := map[string]string{in.Agents: " in the agents' namespace", in.Prometheus: " in the namespace of Prometheus"}
	var rows []Need
	verbs := map[Need][]string{}
	for _, v := range Verbs(in) {
		for _, n := range v.Needs {
			if !n.Apart {
				continue
			}
			if verbs[n] == nil {
				rows = append(rows, n)
			}
			verbs[n] = append(verbs[n], v.Verbs...)
		}
	}
	var b strings.Builder
	b.WriteString("| permission | verbs | without it |\n|---|---|---|\n")
	for _, n := range rows {
		resource := strings.TrimPrefix(Right{Group: n.Group, Resource: n.Resource}.action(), " ")
		fmt.Fprintf(&b, "| `%s` `%s`%s | `%s` | %s |\n", n.Verb, resource, where[n.Namespace], allVerbs.Replace(strings.Join(verbs[n], "`, `")), cmp.Or(n.Without, "it fails"))
	}
	return b.String()
}
