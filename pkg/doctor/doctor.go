// Package doctor checks an installation of Karve: versions, CRDs, rights, settings, pools, agents and pods. Each check is a function of [Facts], which
// hold the data that was read. It has no client and no clock.
package doctor

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Severity is the severity of a finding.
type Severity string

// Severities, the most severe first.
const (
	// Error is for findings that keep Karve from working, in whole or for some pools or nodes.
	Error Severity = "error"
	// Warning is for findings that will or may become an error, or that cost money.
	Warning Severity = "warning"
	// Unknown is for data that could not be read.
	Unknown Severity = "unknown"
)

// Finding is a problem.
type Finding struct {
	Severity Severity `json:"severity"`
	// Object is the object with the problem, such as NodePool gpu-shared.
	Object  string `json:"object"`
	Message string `json:"message"`
	// Fix is a command or a line of a manifest.
	Fix string `json:"fix"`
}

// Facts are data read from a cluster. Data that could not be read is nil, and listed in Unread.
type Facts struct {
	// CLI is the version of kubectl-karve, or "" if it was built without one.
	CLI string
	// Kubernetes is the version of the API server, such as v1.33.1.
	Kubernetes string
	// Controllers, Agents and Karpenters are the installed programs.
	Controllers, Agents, Karpenters []Program
	// Leader says whether a controller works. It is nil if its Lease cannot be read.
	Leader *leader.Leader
	// CRDs has the CustomResourceDefinitions of Karve and Karpenter by name.
	CRDs map[string]CRD
	// Denied are the rights that the controller needs and lacks.
	Denied []Right
	// Lacking are the rights of [Wanted] that the user lacks.
	Lacking  []Lacking
	Monitors Monitors
	// Cluster has the instance types of the controller if they can be read.
	Cluster *facts.Cluster
	Prices  []prices.Rule
	// Quotas are the limits of the cloud's account on vCPUs. They are nil if unknown.
	Quotas []catalog.Quota
	// ResourceQuotas are those of all namespaces.
	ResourceQuotas []corev1.ResourceQuota
	// AgentsOn has the names of the Nodes on which a pod of the agent is ready. It is nil if unknown.
	AgentsOn map[string]bool
	// Visible are the containers on nodes that name GPUs to the container runtime.
	Visible []Visible
	Unread  []Unread

	nodePools []snapshot.Pool
}

// Program is a Deployment or DaemonSet.
type Program struct {
	Kind, Namespace, Name string
	// Version is the tag of the image, or "" if the image has none.
	Version string
	// Wanted and Ready are numbers of pods.
	Wanted, Ready int32
	// Flags are the values of the program's flags. Env is its environment.
	Flags, Env map[string]string
}

func (p *Program) String() string { return p.Kind + " " + p.Namespace + "/" + p.Name }

// sets reports whether the feature gates of a Karpenter have this setting, such as NodeRepair=true.
func (p *Program) sets(gate string) bool {
	return slices.Contains(strings.Split(strings.ReplaceAll(p.Env["FEATURE_GATES"], " ", ""), ","), gate)
}

// CRD is an installed CustomResourceDefinition.
type CRD struct {
	// Served are the versions that the API server serves.
	Served []string
	// Differs reports whether the schema differs from that of this version of Karve. It is false for Karpenter's.
	Differs bool
}

// Right is an action that the controller must be allowed.
type Right struct {
	Group, Resource, Verb string
	// Namespace is "" for rights in all namespaces, and Name is "" for rights on all objects.
	Namespace, Name string
}

func (r Right) String() string {
	text := r.action()
	if r.Namespace != "" {
		text += " in namespace " + r.Namespace
	}
	return text
}

func (r Right) action() string {
	text := r.Verb + " " + r.Resource
	if r.Group != "" {
		text += "." + r.Group
	}
	return text
}

// Rights returns the rights that the rules of a role grant.
func Rights(namespace string, rules []rbacv1.PolicyRule) []Right {
	var all []Right
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					r := Right{Group: group, Resource: resource, Verb: verb, Namespace: namespace}
					if len(rule.ResourceNames) == 0 {
						all = append(all, r)
					}
					for _, r.Name = range rule.ResourceNames {
						all = append(all, r)
					}
				}
			}
		}
	}
	return all
}

// Monitors are the objects that make Prometheus scrape Karve.
type Monitors struct {
	// Served reports whether the API server serves the kinds of the Prometheus Operator.
	Served bool
	// Controller and Agent report whether there is a ServiceMonitor of the controller and a PodMonitor of the agent.
	Controller, Agent bool
}

// Unread is something that could not be read.
type Unread struct {
	// What names it, and Why is the error. Right is the permission that the user lacks, or "" if the fault is in kubectl-karve itself.
	What, Why, Right string
}

var checks = []func(*Facts) []Finding{
	unread, rightsLacking, controllerStopped, controllerMissing, controllerNotReady, kubernetesOld, karpenterMissing, karpenterUntested, cliSkew, agentSkew, crdsMissing, crdsDiffer, rightsDenied,
	settingsDiffer, pricesUnused, nodeRepair, claimsPlanned, reservationsOff, reservationsNotFound, reservationsUnused, classNotReady, catalogStale, quotasExceeded, quotasNear, poolNotReady, poolStopped, poolsUnhealthy, objectsSetAside, memoryWrong, limitsNear, resourceQuotasNear,
	agentMissing, agentStoodBack, gpusFaulty, gpuCordonInvalid, accessUnrestricted, devicesNamed, metricsUnread, resourceUnserved,
}

// Check returns all findings, the most severe first.
func Check(f *Facts) []Finding {
	var all []Finding
	for _, check := range checks {
		all = append(all, check(f)...)
	}
	order := []Severity{Error, Warning, Unknown}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Compare(slices.Index(order, a.Severity), slices.Index(order, b.Severity))
	})
	return all
}
