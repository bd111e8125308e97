package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/doctor"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/promquery"
)

// facts reads the facts for the checks. It records what cannot be read.
func (c connection) facts(ctx context.Context, namespace string) *doctor.Facts {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r := factReader{connection: c, facts: &doctor.Facts{CLI: doctor.Released(buildVersion())}}
	var group sync.WaitGroup
	group.Go(r.version)
	group.Go(func() { r.crds(ctx) })
	group.Go(func() { r.cluster(ctx, namespace) })
	group.Go(func() { r.resourceQuotas(ctx) })
	group.Go(func() {
		r.programs(ctx)
		r.findLeader(ctx, cmp.Or(r.namespace, namespace))
		r.controllerRights(ctx)
		r.userRights(ctx, cmp.Or(r.namespace, namespace))
		r.monitors(ctx)
	})
	group.Wait()
	slices.SortFunc(r.facts.Unread, func(a, b doctor.Unread) int { return strings.Compare(a.What, b.What) })
	return r.facts
}

type factReader struct {
	connection

	facts *doctor.Facts
	// mu guards facts.Unread. Each of the other facts has a single writer.
	mu sync.Mutex
	// user is the user name of the controller's service account, or "" if unknown. namespace is the controller's namespace.
	user, namespace string
	// agents is the namespace of the agents, or "".
	agents string
	// controller holds the labels of the controller's pods. agent holds those of the agents' pods.
	controller, agent labels.Set
}

func (r *factReader) missed(what, right string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.facts.Unread = append(r.facts.Unread, doctor.Unread{What: what, Why: cmp.Or(missingRights(err), strings.ReplaceAll(err.Error(), "\n", " ")), Right: right})
}

func (r *factReader) version() {
	d, err := discovery.NewDiscoveryClientForConfig(r.config)
	if err == nil {
		info, asked := d.ServerVersion()
		if err = asked; err == nil {
			r.facts.Kubernetes = info.GitVersion
		}
	}
	if err != nil {
		r.missed("Kubernetes", "get /version", err)
	}
}

func (r *factReader) programs(ctx context.Context) {
	if found, err := r.controllers(ctx); err != nil {
		r.missed("the controller", "list deployments.apps in all namespaces", err)
	} else {
		r.facts.Controllers = []doctor.Program{}
		for i := range found {
			d := &found[i]
			r.facts.Controllers = append(r.facts.Controllers, doctor.DeploymentOf(d))
			r.namespace, r.controller = d.Namespace, d.Spec.Template.Labels
			r.user = fmt.Sprintf("system:serviceaccount:%s:%s", d.Namespace, d.Spec.Template.Spec.ServiceAccountName)
		}
	}
	var deployments appsv1.DeploymentList
	if err := r.List(ctx, &deployments, client.MatchingLabels{nameLabel: "karpenter"}); err != nil {
		r.missed("Karpenter", "list deployments.apps in all namespaces", err)
	} else {
		r.facts.Karpenters = []doctor.Program{}
		for i := range deployments.Items {
			r.facts.Karpenters = append(r.facts.Karpenters, doctor.DeploymentOf(&deployments.Items[i]))
		}
	}
	var daemonSets appsv1.DaemonSetList
	if err := r.List(ctx, &daemonSets, client.MatchingLabels{nameLabel: agentName}); err != nil {
		r.missed("the agents", "list daemonsets.apps in all namespaces", err)
		return
	}
	for i := range daemonSets.Items {
		d := &daemonSets.Items[i]
		r.facts.Agents = append(r.facts.Agents, doctor.DaemonSetOf(d))
		r.agent, r.agents = d.Spec.Template.Labels, d.Namespace
	}
}

// buildVersion returns the version of this program, or "unknown" if it was built without one.
func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

// crds checks which kinds are served, and compares Karve's CustomResourceDefinitions with those of this program.
func (r *factReader) crds(ctx context.Context) {
	r.facts.CRDs = map[string]doctor.CRD{}
	for _, name := range slices.Sorted(maps.Keys(doctor.NeededKinds)) {
		mappings, err := r.RESTMapper().RESTMappings(doctor.NeededKinds[name].GroupKind())
		if err != nil {
			continue // It is not served.
		}
		here := doctor.CRD{}
		for _, m := range mappings {
			here.Served = append(here.Served, m.GroupVersionKind.Version)
		}
		r.facts.CRDs[name] = here
	}
	for _, name := range slices.Sorted(maps.Keys(r.facts.CRDs)) {
		if !doctor.IsOurs(name) {
			continue
		}
		crd := &unstructured.Unstructured{}
		crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		if err := r.Get(ctx, client.ObjectKey{Name: name}, crd); err != nil {
			r.missed("the fields of CustomResourceDefinitions", "get customresourcedefinitions.apiextensions.k8s.io", err)
			return
		}
		here := r.facts.CRDs[name]
		here.Differs = doctor.DiffersFromOurs(crd)
		r.facts.CRDs[name] = here
	}
}

func (r *factReader) controllerRights(ctx context.Context) {
	if len(r.facts.Controllers) != 1 {
		return
	}
	all, err := doctor.NeededRights(r.facts.Controllers[0].Flags, r.namespace)
	if err != nil {
		r.missed("permissions of the controller", "", err)
		return
	}
	denied := make([]bool, len(all))
	if err := review(len(all), func(i int) (err error) {
		denied[i], err = r.denied(ctx, all[i])
		return err
	}); err != nil {
		r.missed("permissions of the controller", "create subjectaccessreviews.authorization.k8s.io", err)
		return
	}
	for i, no := range denied {
		if no {
			r.facts.Denied = append(r.facts.Denied, all[i])
		}
	}
}

// userRights checks whether the user has the rights for all verbs. namespace is the controller's.
func (r *factReader) userRights(ctx context.Context, namespace string) {
	in := doctor.Namespaces{Controller: namespace, Agents: cmp.Or(r.agents, namespace)}
	var services corev1.ServiceList
	if err := r.List(ctx, &services); err == nil {
		if found := promquery.Services(services.Items); len(found) > 0 {
			in.Prometheus = found[0].Namespace
		}
	}
	var wanted []doctor.UserRight
	var rights []doctor.Right
	for _, w := range doctor.UserRights(in) {
		if r.servesResource(w.Right) && slices.ContainsFunc(w.With, r.needs) && (w.Resource != "services/proxy" || in.Prometheus != "") {
			wanted, rights = append(wanted, w), append(rights, w.Right)
		}
	}
	allowed, err := r.may(ctx, rights)
	if err != nil {
		r.missed("your permissions", "create selfsubjectaccessreviews.authorization.k8s.io", err)
		return
	}
	for i, yes := range allowed {
		if !yes {
			r.facts.Lacking = append(r.facts.Lacking, wanted[i])
		}
	}
}

func (r *factReader) denied(ctx context.Context, right doctor.Right) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: r.user, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + r.namespace, "system:authenticated"},
		ResourceAttributes: attributesOf(right),
	}}
	err := r.Create(ctx, review)
	return !review.Status.Allowed, err
}

// monitors looks for a ServiceMonitor that selects the labels of the controller, and a PodMonitor that selects those of the agents.
func (r *factReader) monitors(ctx context.Context) {
	for _, m := range []struct {
		kind   string
		labels labels.Set
		found  *bool
	}{{"ServiceMonitor", r.controller, &r.facts.Monitors.Controller}, {"PodMonitor", r.agent, &r.facts.Monitors.Agent}} {
		kind := schema.GroupKind{Group: "monitoring.coreos.com", Kind: m.kind}
		served, err := serves(r.RESTMapper(), kind)
		if err == nil && !served {
			return
		}
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind.WithVersion("v1"))
		if err == nil {
			err = r.List(ctx, list)
		}
		if err != nil {
			r.missed(m.kind+"s", "list "+strings.ToLower(m.kind)+"s.monitoring.coreos.com in all namespaces", err)
			r.facts.Monitors.Served = false
			return
		}
		r.facts.Monitors.Served = true
		*m.found = slices.ContainsFunc(list.Items, func(o unstructured.Unstructured) bool { return doctor.MonitorSelects(&o, m.labels) })
	}
}

func (r *factReader) useQuotas(quotas published.Quotas) {
	r.facts.Quotas = quotas.Quotas
	if quotas.Problem != "" {
		r.missed("the quotas of the AWS account", "servicequotas:GetServiceQuota, for the controller: examples/iam/README.md", errors.New(quotas.Problem))
	}
}

func (r *factReader) findLeader(ctx context.Context, namespace string) {
	found := leader.Find(ctx, r, namespace, time.Now)
	if found.State == leader.Unknown {
		r.missed("whether a controller works", fmt.Sprintf("get leases.coordination.k8s.io %s in the namespace %s", leader.Name, namespace), errors.New(found.Message))
		return
	}
	r.facts.Leader = &found
}

func (r *factReader) resourceQuotas(ctx context.Context) {
	var list corev1.ResourceQuotaList
	if err := r.List(ctx, &list); err != nil {
		r.missed("ResourceQuotas", "list resourcequotas in all namespaces", err)
		return
	}
	r.facts.ResourceQuotas = list.Items
}

func (r *factReader) cluster(ctx context.Context, namespace string) {
	missing, err := r.missing()
	if missing != "" {
		return // It is a finding about a CustomResourceDefinition.
	}
	if err == nil {
		var m published.Source
		if m, err = published.OrBuiltin(ctx, r, namespace, nil); err == nil {
			r.useQuotas(m.Quotas)
			r.facts.Prices = m.Settings.Prices
			r.facts.Cluster, err = r.connection.cluster(ctx, m, pendingPods, boundAgents)
		}
	}
	if err != nil {
		r.missed("NodePools, nodes and pods", "list them, and what else the ClusterRole karve-viewer allows, in all namespaces", err)
		return
	}
	r.facts.AgentsOn = map[string]bool{}
	for i := range r.facts.Cluster.Pods {
		pod := &r.facts.Cluster.Pods[i]
		notReady := func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue }
		if isAgent(pod) && pod.Status.Phase == corev1.PodRunning && !slices.ContainsFunc(pod.Status.Conditions, notReady) {
			r.facts.AgentsOn[pod.Spec.NodeName] = true
		}
	}
	if err := r.visibleDevices(ctx); err != nil {
		r.missed("pods that name their GPUs", "list pods in all namespaces", err)
	}
}

// visibleDevices reads which containers name GPUs to the container runtime. It decodes only pods with the name of the variable.
func (r *factReader) visibleDevices(ctx context.Context) error {
	return each(ctx, r.core, "pods", []selection{{fields: "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}}, func(message []byte) error {
		if !bytes.Contains(message, []byte(doctor.VisibleDevices)) {
			return nil
		}
		var pod corev1.Pod
		if err := pod.Unmarshal(message); err != nil {
			return err
		}
		if !isAgent(&pod) {
			r.facts.Visible = append(r.facts.Visible, doctor.VisibleOf(&pod)...)
		}
		return nil
	})
}

// componentLabel identifies the component of Karve in a Deployment of its chart.
const componentLabel = "app.kubernetes.io/component"

// controllers returns the Deployments of Karve's controller. There should be one.
func (c connection) controllers(ctx context.Context) ([]appsv1.Deployment, error) {
	var list appsv1.DeploymentList
	if err := c.List(ctx, &list, client.MatchingLabels{componentLabel: "controller"}); err != nil {
		return nil, err
	}
	var found []appsv1.Deployment
	for _, d := range list.Items {
		if flagOf(&d, "settle-duration") != "" {
			found = append(found, d)
		}
	}
	return found, nil
}

// flagOf returns the value of a flag of a Deployment's containers, or "" if it is not set.
func flagOf(d *appsv1.Deployment, name string) string {
	for _, ctr := range d.Spec.Template.Spec.Containers {
		for _, arg := range ctr.Args {
			if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
				return value
			}
		}
	}
	return ""
}
