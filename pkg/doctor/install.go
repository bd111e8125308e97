package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/version"
	"karve.sh/karve/pkg/words"
)

const (
	// neededKubernetes is the oldest minor version of Kubernetes 1 on which the charts install.
	neededKubernetes = 30
	// repairsItsOwn is the first minor version of Karpenter 1 whose node repair leaves the nodes of other pools alone.
	repairsItsOwn = 15
)

// minorVersion returns the minor version of a version 1, such as 37 of v1.37.2-eks-1a2b3c. It returns false for others.
func minorVersion(of string) (int, bool) {
	parts := strings.SplitN(strings.TrimPrefix(of, "v"), ".", 3)
	if len(parts) < 2 || parts[0] != "1" {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimRight(parts[1], "+"))
	return n, err == nil
}

func unread(f *Facts) []Finding {
	var all []Finding
	for _, u := range f.Unread {
		fix := "needs permission to " + u.Right
		if u.Right == "" {
			fix = "report it as a bug of kubectl-karve"
		}
		all = append(all, Finding{Unknown, u.What, "could not be checked: " + strings.TrimSuffix(u.Why, "."), fix})
	}
	return all
}

// controllerStopped reports that no controller works. Without leader election, there is no Lease.
func controllerStopped(f *Facts) []Finding {
	text := f.Leader.Warning()
	if text == "" || f.Controllers != nil && len(f.Controllers) == 0 || len(f.Controllers) == 1 && f.Controllers[0].Flags["leader-elect"] == "false" {
		return nil
	}
	logs := command("kubectl -n %s get lease %s -o yaml", f.Leader.Namespace, leader.Name)
	if len(f.Controllers) == 1 {
		p := f.Controllers[0]
		logs = command("kubectl -n %s describe deployment %s; kubectl -n %s logs deployment/%s", p.Namespace, p.Name, p.Namespace, p.Name)
	}
	return []Finding{{Error, "Lease " + f.Leader.Namespace + "/" + leader.Name, text, logs}}
}

func controllerMissing(f *Facts) []Finding {
	switch {
	case f.Controllers == nil: // It could not be read.
		return nil
	case len(f.Controllers) == 0:
		return []Finding{{Error, "controller", "no Deployment of Karve's controller was found", f.helm("upgrade --install karve charts/karve") + " --create-namespace: see docs/install.md"}}
	case len(f.Controllers) > 1:
		var names []string
		for _, p := range f.Controllers {
			names = append(names, p.String())
		}
		return []Finding{{Error, "controller", fmt.Sprintf("there are %d installations, which launch and delete the same nodes: %s", len(names), words.Named(names, maxNamed)), "helm uninstall all but one"}}
	}
	return nil
}

func controllerNotReady(f *Facts) []Finding {
	var all []Finding
	for _, p := range f.Controllers {
		if p.Ready == 0 {
			all = append(all, Finding{
				Error, p.String(), "none of its pods is ready, so nothing is launched and no node is deleted",
				command("kubectl -n %s describe deployment %s; kubectl -n %s logs deployment/%s", p.Namespace, p.Name, p.Namespace, p.Name),
			})
		}
	}
	return all
}

func kubernetesOld(f *Facts) []Finding {
	switch n, ok := minorVersion(f.Kubernetes); {
	case !ok:
		return nil
	case n < neededKubernetes:
		return []Finding{{Error, "Kubernetes", fmt.Sprintf("%s is older than v1.%d, which Karve needs", f.Kubernetes, neededKubernetes), "upgrade the cluster"}}
	case n < version.OldestKubernetes || n > version.NewestKubernetes:
		return []Finding{{Warning, "Kubernetes", fmt.Sprintf("%s was not tested with this release of Karve", f.Kubernetes), fmt.Sprintf("use v1.%d to v1.%d: see docs/versions.md", version.OldestKubernetes, version.NewestKubernetes)}}
	}
	return nil
}

func karpenterMissing(f *Facts) []Finding {
	if f.Karpenters == nil {
		return nil
	}
	if len(f.Karpenters) == 0 {
		return []Finding{{Warning, "Karpenter", "no Deployment with the label app.kubernetes.io/name=karpenter was found: without Karpenter no machine is launched", "install Karpenter, or give its Deployment that label"}}
	}
	for _, p := range f.Karpenters {
		if p.Ready > 0 {
			return nil
		}
	}
	p := f.Karpenters[0]
	return []Finding{{Error, p.String(), "none of its pods is ready, so no machine is launched", command("kubectl -n %s describe deployment %s", p.Namespace, p.Name)}}
}

func karpenterUntested(f *Facts) []Finding {
	var all []Finding
	for _, p := range f.Karpenters {
		if n, ok := minorVersion(p.Version); p.Version != "" && (!ok || n < version.OldestKarpenter || n > version.NewestKarpenter) {
			all = append(all, Finding{
				Warning, p.String(), fmt.Sprintf("version %s of Karpenter was not tested with this release of Karve", p.Version),
				fmt.Sprintf("use Karpenter 1.%d to 1.%d: see docs/versions.md", version.OldestKarpenter, version.NewestKarpenter),
			})
		}
	}
	return all
}

func cliSkew(f *Facts) []Finding {
	var all []Finding
	for _, p := range f.Controllers {
		if isSkewed(f.CLI, p.Version) {
			all = append(all, Finding{Warning, "kubectl-karve", fmt.Sprintf("its version is %s, and that of %s is %s: its plans and explanations may differ from the controller's", f.CLI, p, p.Version), "install kubectl-karve " + p.Version})
		}
	}
	return all
}

func agentSkew(f *Facts) []Finding {
	var all []Finding
	for _, c := range f.Controllers {
		for _, a := range f.Agents {
			if isSkewed(a.Version, c.Version) {
				all = append(all, Finding{Warning, a.String(), fmt.Sprintf("its version is %s, and that of %s is %s", a.Version, c, c.Version), f.helm("upgrade karve charts/karve") + ", with the same tag for both images"})
			}
		}
	}
	return all
}

// isSkewed reports whether two versions are known and differ.
func isSkewed(a, b string) bool {
	return a != "" && b != "" && strings.TrimPrefix(a, "v") != strings.TrimPrefix(b, "v")
}

const maxRights = 5

func rightsDenied(f *Facts) []Finding {
	if len(f.Denied) == 0 {
		return nil
	}
	var names []string
	for _, r := range f.Denied {
		names = append(names, r.String())
	}
	return []Finding{{Error, "the controller's service account", "may not " + words.Named(names, maxRights), f.helm("upgrade karve charts/karve") + ", which creates the roles, or add the permissions in config/rbac to yours"}}
}

// sameSettings are the flags of the controller that take precedence over environment variables of Karpenter but must have the same value, with Karpenter's defaults.
var sameSettings = []struct{ flag, variable, value, standard string }{
	{"vm-memory-overhead-percent", "VM_MEMORY_OVERHEAD_PERCENT", "settings.vmMemoryOverheadPercent", "0.075"},
	{"reserved-enis", "RESERVED_ENIS", "settings.reservedENIs", "0"},
	{"isolated-vpc", "ISOLATED_VPC", "settings.isolatedVPC", "false"},
}

func settingsDiffer(f *Facts) []Finding {
	if len(f.Controllers) != 1 || len(f.Karpenters) != 1 {
		return nil
	}
	ours, theirs := f.Controllers[0], f.Karpenters[0]
	var all []Finding
	for _, s := range sameSettings {
		value, set := ours.Flags[s.flag]
		other, known := theirs.Env[s.variable]
		if !known {
			other = s.standard
		}
		if !set || other == "" || sameValue(value, other) {
			continue
		}
		all = append(all, Finding{
			Error, ours.String(), fmt.Sprintf("--%s is %q, and %s of %s is %q: Karve plans with machines that Karpenter does not launch", s.flag, value, s.variable, theirs, other),
			f.helm("upgrade karve charts/karve --reuse-values --set " + s.value + "=null"),
		})
	}
	return all
}

// sameValue reports whether two settings are equal, as numbers or as text.
func sameValue(a, b string) bool {
	x, err1 := strconv.ParseFloat(a, 64)
	y, err2 := strconv.ParseFloat(b, 64)
	return a == b || err1 == nil && err2 == nil && x == y
}

// pricesUnused warns about rules for prices that change the price of no machine that a node class can launch.
func pricesUnused(f *Facts) []Finding {
	if f.Cluster == nil {
		return nil
	}
	var all []Finding
	types := func(yield func(map[string]string, []catalog.InstanceType) bool) {
		for ref, state := range f.Cluster.NodeClasses {
			if !yield(facts.PriceLabels(ref), state.InstanceTypes) {
				return
			}
		}
	}
	for _, i := range prices.NewBook(nil, f.Prices).Unused(types) {
		all = append(all, Finding{
			Warning, fmt.Sprintf("the rule for prices %q", f.Prices[i].Name), "it changes the price of no machine: no machine meets its requirements, a later rule sets the price of all of them, or it has a limit and lowers no price",
			"correct it in prices of the chart, or remove it: docs/prices.md",
		})
	}
	return all
}

// nodeRepair warns about Karpenter's feature gate that deletes unhealthy nodes before their pods have room elsewhere.
func nodeRepair(f *Facts) []Finding {
	var all []Finding
	for _, p := range f.Karpenters {
		n, known := minorVersion(p.Version)
		legacy, _ := strconv.ParseBool(p.Env["LEGACY_NODE_REPAIR"]) // It is unset, or Karpenter does not start with it.
		repairsAll := known && n < repairsItsOwn || legacy || p.Flags["legacy-node-repair"] == "true"
		if repairsAll && p.sets("NodeRepair=true") {
			all = append(all, Finding{
				Warning, p.String(), "its feature gate NodeRepair also deletes unhealthy nodes of Karve's pools, without room for their pods elsewhere",
				"settings.featureGates.nodeRepair=false in Karpenter's chart, or shorter times in Karve's: settings.notReadyTimeout and settings.gpuFaultTimeout",
			})
		}
	}
	return all
}

// claimsPlanned warns about the Karpenter setting that makes it plan for ResourceClaims. Karpenter does not read on which node a claim is allocated.
func claimsPlanned(f *Facts) []Finding {
	byDRA := func(c v1alpha1.GPUNodeClass) bool { return c.Spec.Sharing.UsesDRA() }
	if f.Cluster == nil || !slices.ContainsFunc(f.Cluster.GPUNodeClasses, byDRA) {
		return nil
	}
	var all []Finding
	for _, p := range f.Karpenters {
		if ignores, err := strconv.ParseBool(p.Env["IGNORE_DRA_REQUESTS"]); err == nil && !ignores {
			all = append(all, Finding{
				Warning, p.String(), "IGNORE_DRA_REQUESTS is false: for a pod that waits for the node on which its ResourceClaim is allocated, it may launch a machine on which the pod cannot run",
				"remove IGNORE_DRA_REQUESTS, or give pods with claims a node selector for Karve's NodePool: docs/dra.md#beside-karpenters-support-of-dra",
			})
		}
	}
	return all
}

// metricsUnread reports that the Prometheus Operator is installed but scrapes nothing of Karve.
func metricsUnread(f *Facts) []Finding {
	if !f.Monitors.Served {
		return nil
	}
	var all []Finding
	if len(f.Controllers) > 0 && !f.Monitors.Controller {
		all = append(all, Finding{Warning, "ServiceMonitor", "the Prometheus Operator is installed, but does not scrape the controller", f.helm("upgrade karve charts/karve --reuse-values --set serviceMonitor.enabled=true")})
	}
	if len(f.Agents) > 0 && !f.Monitors.Agent {
		all = append(all, Finding{Warning, "PodMonitor", "the Prometheus Operator is installed, but does not scrape the agents", f.helm("upgrade karve charts/karve --reuse-values --set node.podMonitor.enabled=true")})
	}
	return all
}

// rightsLacking reports the rights that the user lacks: those that the chart's ClusterRole has, and others.
func rightsLacking(f *Facts) (findings []Finding) {
	for _, apart := range []bool{false, true} {
		by, last := map[string][]string{}, map[string]string{}
		for _, l := range f.Lacking {
			if l.Apart != apart {
				continue
			}
			verbs, may := strings.Join(l.Verbs, ", "), l.String()
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
