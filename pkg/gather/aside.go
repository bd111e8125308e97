package gather

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/watchdog"
)

// beginAside drops entries that are over. If other objects are set aside than at the last read, everything is read again.
func (g *Gatherer) beginAside() {
	if g.Watchdog == nil {
		return
	}
	held := sets.New[watchdog.Object]()
	for _, entry := range g.aside.held {
		held.Insert(entry)
	}
	all := g.Watchdog.Aside
	all.Expire(g.Clock.Now(), held.Has)
	if version := all.Version(); version != g.aside.version || g.aside.held == nil {
		g.aside = asideObjects{version, map[watchdog.Object]watchdog.Object{}}
		g.readAllAgain()
	}
}

// whyAside returns why an object is set aside, or "" if it is not.
func (g *Gatherer) whyAside(kind string, o metav1.Object) string {
	return g.whyAsideWith(kind, o, func() string { return contentOf(o) })
}

// whyAsideWith is like whyAside. content returns a text that differs once the object has changed in a way that may matter.
func (g *Gatherer) whyAsideWith(kind string, o metav1.Object, content func() string) string {
	is := watchdog.ObjectOf(kind, o)
	entry := g.Watchdog.Aside.Has(kind, o, g.Clock.Now(), content)
	if entry == nil {
		delete(g.aside.held, is)
		return ""
	}
	g.aside.held[is] = entry.Object
	return entry.Why()
}

// contentOf returns a text that differs once an object has changed in a way that may matter. Pods of one Deployment have the same.
func contentOf(o metav1.Object) string {
	if pod, ok := o.(*corev1.Pod); ok {
		return facts.Content(pod)
	}
	return fmt.Sprint(o.GetUID(), o.GetGeneration(), o.GetLabels(), o.GetAnnotations())
}

// withoutAside returns the objects that are not set aside.
func withoutAside[T any, P interface {
	*T
	metav1.Object
}](g *Gatherer, kind string, all []T) []T {
	if !slices.ContainsFunc(all, func(o T) bool { return g.whyAside(kind, P(&o)) != "" }) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(o T) bool { return g.whyAside(kind, P(&o)) != "" })
}

// markAside returns the objects, with the reason on those that are set aside.
func markAside[T any, P interface {
	*T
	metav1.Object
}](g *Gatherer, kind string, all []T) []T {
	for i := range all {
		if why := g.whyAside(kind, P(&all[i])); why != "" {
			all = slices.Clone(all)
			P(&all[i]).SetAnnotations(facts.SetAsideSpec(P(&all[i]).GetAnnotations(), why))
		}
	}
	return all
}

// leaveOut leaves the objects out that are set aside. A NodePool or a GPUNodeClass launches nothing.
func (g *Gatherer) leaveOut(c *facts.Cluster) {
	if len(g.Watchdog.Entries()) == 0 {
		return
	}
	c.NodePools, c.GPUNodeClasses = markAside(g, "NodePool", c.NodePools), markAside(g, "GPUNodeClass", c.GPUNodeClasses)
	c.DaemonSets = withoutAside[appsv1.DaemonSet](g, "DaemonSet", c.DaemonSets)
	c.Buffers = slices.DeleteFunc(slices.Clone(c.Buffers), func(b karpenter.Buffer) bool {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: b.Template.Annotations}, Spec: b.Template.Spec}
		return g.whyAsideWith("CapacityBuffer", &metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name}, func() string { return b.Name + facts.Content(pod) }) != ""
	})
	c.Requests = slices.Clone(c.Requests)
	for i := range c.Requests {
		r := &c.Requests[i]
		r.Sets = slices.Clone(r.Sets)
		for j := range r.Sets {
			if why := g.whyAside("Pod", facts.VirtualPod(r, j, 0)); why != "" {
				r.Sets[j].Template.Annotations = facts.SetAsideSpec(r.Sets[j].Template.Annotations, why)
			}
		}
	}
}

// withAside replaces changed objects that are set aside. It does not change objects that belong to a cache.
func (g *Gatherer) withAside(changes facts.Changes) {
	if len(g.Watchdog.Entries()) == 0 {
		return
	}
	replace(g, "Pod", changes.Pods, facts.SetAside)
	replace(g, "Node", changes.Nodes, facts.SetAsideNode)
	replace(g, "NodeClaim", changes.NodeClaims, facts.SetAsideClaim)
}

func replace[T any, P interface {
	*T
	metav1.Object
}](g *Gatherer, kind string, changes map[string]P, with func(P, string) P) {
	for range 2 { // The first time finds out what the object of a new entry is like, so that the second finds all that are like it.
		for name, o := range changes {
			if o == nil || facts.IsSetAside(o) {
				continue
			}
			if why := g.whyAside(kind, o); why != "" {
				changes[name] = with(o, why)
			}
		}
	}
}

// replaced is like replace for a list.
func replaced[T any, P interface {
	*T
	metav1.Object
}](g *Gatherer, kind string, all []T, with func(P, string) P) []T {
	if len(g.Watchdog.Entries()) == 0 {
		return all
	}
	changes := make(map[string]P, len(all))
	for i := range all {
		changes[watchdog.ObjectOf(kind, P(&all[i])).Name] = P(&all[i])
	}
	replace(g, kind, changes, with)
	all = slices.Clone(all)
	for i := range all {
		all[i] = *changes[watchdog.ObjectOf(kind, P(&all[i])).Name]
	}
	return all
}
