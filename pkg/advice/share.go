package advice

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

// shares returns the changes that move single workloads, whose pods have whole GPUs, to a NodePool that shares the same GPUs. replicas has the largest number
// that is advised for a GPUNodeClass, by its name.
func (sc *scenario) shares(sites []site, gpus map[string][]string, replicas map[string]int64) (all []change) {
	for i := range sites {
		from := &sites[i]
		if from.class.Spec.Sharing.Strategy != v1alpha1.StrategyNone {
			continue
		}
		members := slices.Clone(from.members)
		slices.SortStableFunc(members, func(a, b int) int { return cmp.Compare(sc.workloads[b].hours(), sc.workloads[a].hours()) })
		for _, j := range members {
			if c, ok := sc.share(j, sites, gpus, replicas); ok {
				all = append(all, c)
			}
		}
	}
	return all
}

// share returns the change that moves a workload to the first NodePool that shares the same GPUs and on whose GPUs it is safe beside all others there.
func (sc *scenario) share(i int, sites []site, gpus map[string][]string, replicas map[string]int64) (c change, ok bool) {
	w := &sc.workloads[i]
	if w.unknown() != "" || facts.GPURequestOf(&sc.templates[i]).Replicas != 1 {
		return c, false
	}
	for at := range sites {
		to := &sites[at]
		sharing := to.class.Spec.Sharing
		if !sharing.Shared() || to.fixed(sc) != "" || !to.known(sc) || to.memory == 0 {
			continue
		}
		together := append(slices.Concat(to.workloads(sc), to.incoming), w)
		if !fits(together, max(replicas[to.class.Name], to.replicas()), to.memory, sharing.Strategy) {
			continue
		}
		for _, pool := range to.pools {
			if !slices.Equal(gpus[w.Pool], gpus[pool]) {
				continue
			}
			if c, ok := sc.shareOn(i, pool, to, together); ok {
				to.incoming = append(to.incoming, w)
				return c, true
			}
		}
	}
	return c, false
}

// shareOn returns the change that moves a workload to a NodePool of a site, beside which all of together are safe. It returns false if the workload cannot be patched, or
// chooses its nodes by affinity.
func (sc *scenario) shareOn(i int, pool string, to *site, together []*Workload) (c change, ok bool) {
	w, template := &sc.workloads[i], &sc.templates[i]
	was, requests := facts.GPUResource(template)
	at := slices.IndexFunc(template.Spec.Containers, func(c corev1.Container) bool { return facts.ValueOf(c.Resources.Limits, was) > 0 })
	if !requests || at < 0 {
		return c, false
	}
	spec, patch := moving(&template.Spec, sc.pool(w.Pool), sc.pool(pool))
	is, one := corev1.ResourceName(to.class.Spec.Sharing.Resource()), *resource.NewQuantity(1, resource.DecimalSI)
	if is != was {
		container := template.Spec.Containers[at]
		resources := object{"limits": object{string(was): nil, string(is): 1}}
		if _, also := container.Resources.Requests[was]; also {
			resources["requests"] = object{string(was): nil, string(is): 1}
		}
		patch["containers"] = []any{object{"name": container.Name, "resources": resources}}
	}
	p := w.patchOf(object{"spec": patch})
	if affinity := spec.Affinity; p.Command == "" || affinity != nil && affinity.NodeAffinity != nil && affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		return c, false
	}
	replicas := to.replicas()
	n := needOf(together, replicas)
	c = change{Change: Change{
		Kind: Share, Object: w.String(), Namespace: w.Namespace, Do: fmt.Sprintf("share GPUs in NodePool %s, instead of a whole GPU for each pod", pool),
		Evidence: []string{
			fmt.Sprintf("GPU time p95 %.0f %%, mean %.0f %%; memory peak %s of %s; %s, %s", 100*w.GPU.Busy.P95, 100*w.GPU.Busy.Mean, gib(w.GPU.Bytes.Max), gib(float64(to.memory)),
				words.Count(w.Pods, "pod"), words.Count(w.GPU.Busy.Samples, "sample")),
			fmt.Sprintf("the %d busiest pods there, with these: %.0f %% of a GPU at p95, of %.0f %% that is safe; the %d with most GPU memory: %s, of %s", replicas, 100*n.busy, 100*targetOf(together), replicas, gib(n.bytes), gib(float64(to.memory))),
		},
		Risks:   append(sharingRisks(to.class.Spec.Sharing.Strategy, replicas), "the workload shares nodes with those of the NodePool, and what disrupts one disrupts the others"),
		Patches: []Patch{p},
	}}
	c.apply = func(sc *scenario) {
		pod := sc.template(i)
		pod.Spec.NodeSelector, pod.Spec.Tolerations = spec.NodeSelector, spec.Tolerations
		r := &pod.Spec.Containers[at].Resources
		for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
			if _, has := list[was]; has {
				delete(list, was)
				list[is] = one
			}
		}
	}
	return c, true
}
