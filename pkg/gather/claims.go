package gather

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/snapshot/facts"
)

// withClaims replaces changed pods that have claims for a GPU, and adds pods whose claims have changed. It does not change objects that belong to a
// cache.
func (g *Gatherer) withClaims(changes facts.Changes, full bool) {
	if !g.DRA {
		return
	}
	c := &g.claiming
	if full || c.pods == nil {
		c.pods, c.texts = map[string]*corev1.Pod{}, map[string]string{}
	}
	for name, pod := range changes.Pods {
		_, known := c.pods[name]
		switch {
		case pod != nil && (len(pod.Spec.ResourceClaims) > 0 || claims.Text(pod) != ""):
			c.pods[name], c.stale = pod, true
		case known:
			delete(c.pods, name)
			delete(c.texts, name)
			c.stale = true
		}
	}
	if !c.stale {
		return
	}
	c.stale = false
	objects := g.claimObjects(slices.Collect(maps.Values(c.pods)))
	for name, pod := range c.pods {
		g.visitObject("Pod", pod)
		seen := objects.On(pod)
		_, changed := changes.Pods[name]
		if text := claims.Text(seen); changed || text != c.texts[name] {
			c.texts[name], changes.Pods[name] = text, seen
		}
	}
}

// useClaims replaces pods that have claims for a GPU.
func (g *Gatherer) useClaims(pods []corev1.Pod) {
	var claiming []*corev1.Pod
	for i := range pods {
		if len(pods[i].Spec.ResourceClaims) > 0 {
			claiming = append(claiming, &pods[i])
		}
	}
	objects := g.claimObjects(claiming)
	for i := range pods {
		pods[i] = *objects.On(&pods[i])
	}
}

func (g *Gatherer) claimObjects(pods []*corev1.Pod) *claims.Objects {
	s := &g.state
	return claims.New(s.claims.value.Items, s.templates.value.Items, s.deviceClasses.value.Items, pods)
}

// PodsOn reads the pods of a node from the API server, with the requests in their ResourceClaims.
func (g *Gatherer) PodsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	if err := g.Live.List(ctx, pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return nil, fmt.Errorf("listing the pods of node %s: %w", node, err)
	}
	if !g.DRA || !slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return len(pod.Spec.ResourceClaims) > 0 }) {
		return pods.Items, nil
	}
	var (
		all       resourcev1.ResourceClaimList
		templates resourcev1.ResourceClaimTemplateList
		classes   resourcev1.DeviceClassList
	)
	for _, list := range []client.ObjectList{&all, &templates, &classes} {
		if err := g.Cached.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing %T: %w", list, err)
		}
	}
	objects := claims.New(all.Items, templates.Items, classes.Items, nil)
	for i := range pods.Items {
		pods.Items[i] = *objects.On(&pods.Items[i])
	}
	return pods.Items, nil
}
