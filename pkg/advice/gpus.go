package advice

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

const (
	// maxReplicas and maxClients are the largest numbers of replicas that the API allows, and MPS.
	maxReplicas = 128
	maxClients  = 48
)

// site is a GPUNodeClass with the pools that name it, and the workloads in these pools.
type site struct {
	class *v1alpha1.GPUNodeClass
	pools []string
	// members are the indices of the workloads.
	members []int
	// incoming are workloads of other sites that may move to this one.
	incoming []*Workload
	// memory is the device memory of the smallest GPU that the pools may have, in bytes. It is 0 if it is not known.
	memory int64
	// untainted is a pool without a taint that keeps other pods away, or "".
	untainted string
}

func (sc *scenario) poolsOf(class string) (pools []*karpv1.NodePool) {
	for j := range sc.cluster.NodePools {
		if np := &sc.cluster.NodePools[j]; facts.IsOurs(np) && np.Spec.Template.Spec.NodeClassRef.Name == class {
			pools = append(pools, np)
		}
	}
	return pools
}

// sites returns the GPUNodeClasses of the scenario that have workloads.
func (sc *scenario) sites(s *planner.Snapshot) (all []site) {
	for i := range sc.cluster.GPUNodeClasses {
		x := site{class: &sc.cluster.GPUNodeClasses[i]}
		for _, np := range sc.poolsOf(x.class.Name) {
			x.pools = append(x.pools, np.Name)
			if !slices.ContainsFunc(np.Spec.Template.Spec.Taints, facts.KeepsPodsAway) {
				x.untainted = np.Name
			}
		}
		for j := range sc.workloads {
			if slices.Contains(x.pools, sc.workloads[j].Pool) {
				x.members = append(x.members, j)
			}
		}
		for _, o := range s.Offerings {
			if len(o.GPUs) > 0 && slices.Contains(x.pools, s.Pools[o.Pool].Name) && (x.memory == 0 || o.GPUs[0].MemoryBytes < x.memory) {
				x.memory = o.GPUs[0].MemoryBytes
			}
		}
		if len(x.members) > 0 {
			all = append(all, x)
		}
	}
	return all
}

func (x *site) workloads(sc *scenario) (all []*Workload) {
	for _, i := range x.members {
		all = append(all, &sc.workloads[i])
	}
	return all
}

// known reports whether it is known what each member needs of a GPU.
func (x *site) known(sc *scenario) bool {
	return !slices.ContainsFunc(x.workloads(sc), func(w *Workload) bool { return w.unknown() != "" })
}

func (x *site) replicas() int64 {
	if n := x.class.Spec.Sharing.Replicas; n != nil {
		return int64(*n)
	}
	return 1
}

// fixed says why the number of replicas of the class is not for Karve to advise. It returns "" if it is.
func (x *site) fixed(sc *scenario) string {
	s := &x.class.Spec.Sharing
	switch {
	case s.Strategy != v1alpha1.StrategyTimeSlicing && s.Strategy != v1alpha1.StrategyMPS && s.Strategy != v1alpha1.StrategyNone:
		return fmt.Sprintf("its strategy is %s", s.Strategy)
	case s.UsesDRA():
		return "its GPUs are shared by DRA"
	case len(s.Overrides) > 0 || s.MaxReplicas != nil:
		return "it has overrides or maxReplicas"
	case s.Strategy != v1alpha1.StrategyNone:
		return ""
	case x.untainted != "":
		return fmt.Sprintf("GPUs cannot be shared while NodePool %s has no taint that keeps other pods away", x.untainted)
	}
	for _, i := range x.members {
		if facts.GPURequestOf(&sc.templates[i]).Replicas > 1 {
			return fmt.Sprintf("%s requests several GPUs", &sc.workloads[i])
		}
	}
	return ""
}

// moreReplicas returns the change to more replicas of the GPUs of a class. note says why there is none, if that is worth to know.
func (sc *scenario) moreReplicas(x *site) (c change, note string, ok bool) {
	if why := x.fixed(sc); why != "" {
		return c, fmt.Sprintf("no advice on the replicas of GPUNodeClass %s: %s", x.class.Name, why), false
	}
	members := x.workloads(sc)
	for _, w := range members {
		if why := w.unknown(); why != "" {
			return c, fmt.Sprintf("no advice on the replicas of GPUNodeClass %s: of %s, %s", x.class.Name, w, why), false
		}
	}
	strategy, limit, pods := x.class.Spec.Sharing.Strategy, int64(maxReplicas), 0
	if strategy == v1alpha1.StrategyMPS {
		limit = maxClients
	}
	for _, w := range members {
		pods += w.Most
	}
	now := x.replicas()
	to := safeReplicas(members, x.memory, min(limit, max(now, int64(pods))), strategy)
	if to <= now || x.memory == 0 {
		return c, "", false
	}
	return sc.withReplicas(x, to), "", true
}

func (sc *scenario) withReplicas(x *site, to int64) change {
	name, members, sharing := x.class.Name, x.workloads(sc), x.class.Spec.Sharing
	c := change{Change: Change{Kind: Replicas, Object: "GPUNodeClass " + name}, minReplicas: x.replicas() + 1, maxReplicas: to}
	spec := object{"replicas": to}
	if sharing.Strategy == v1alpha1.StrategyNone {
		sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, ResourceName: v1alpha1.ResourceGPU}
		c.Kind, c.Do = Sharing, fmt.Sprintf("share its GPUs, which pods have for themselves: %d replicas", to)
		spec = object{"strategy": string(sharing.Strategy), "replicas": to, "resourceName": sharing.ResourceName}
		c.Risks = append(c.Risks, "all nodes of the class are replaced, within the budgets")
	} else {
		c.Do = fmt.Sprintf("raise the replicas of each GPU from %d to %d", x.replicas(), to)
	}
	pods, samples := 0, 0
	for _, w := range members {
		pods, samples = pods+w.Pods, samples+w.GPU.Busy.Samples
	}
	n := needOf(members, to)
	c.Evidence = []string{
		fmt.Sprintf("the %d busiest pods together: %.0f %% of a GPU at p95, of %.0f %% that is safe", to, 100*n.busy, 100*targetOf(members)),
		fmt.Sprintf("the %d with most GPU memory: %s at their peaks + 15 %%, of %s", to, gib(n.bytes), gib(float64(x.memory))),
		fmt.Sprintf("%s, %s, %s", words.Count(len(members), "workload"), words.Count(pods, "pod"), words.Count(samples, "sample")),
	}
	c.Risks = append(c.Risks, sharingRisks(sharing.Strategy, to)...)
	c.Patches = []Patch{patchClass("gpunodeclass", name, object{"sharing": spec})}
	sharing.Replicas = new(int32(to)) //nolint:gosec // It is at most 128.
	c.apply = func(sc *scenario) { sc.class(name).Spec.Sharing = sharing }
	c.withFewer = func(replicas int64) change { return sc.withReplicas(x, replicas) }
	return c
}

// requestFewer returns the change to request fewer replicas of a shared GPU, if a workload requests several.
func (sc *scenario) requestFewer(x *site, i int) (c change, ok bool) {
	w, template := &sc.workloads[i], &sc.templates[i]
	name, requests := facts.GPUResource(template)
	at := slices.IndexFunc(template.Spec.Containers, func(c corev1.Container) bool { return facts.ValueOf(c.Resources.Limits, name) > 0 })
	now := facts.GPURequestOf(template).Replicas
	if !requests || at < 0 || !x.class.Spec.Sharing.Shared() || x.fixed(sc) != "" || w.unknown() != "" || now < 2 || x.memory == 0 {
		return c, false
	}
	to := int64(1)
	fitsInto := func(n int64) bool {
		part := float64(n) / float64(x.replicas())
		return w.GPU.Busy.P95 <= part*targetOf([]*Workload{w}) && w.GPU.Bytes.Max*margin <= part*float64(x.memory)
	}
	for to < now && !fitsInto(to) {
		to++
	}
	if to == now || !x.known(sc) || !fits(x.workloads(sc), x.replicas(), x.memory, x.class.Spec.Sharing.Strategy) {
		return c, false // Others would come to the GPU.
	}
	container, quantity := template.Spec.Containers[at].Name, resource.NewQuantity(to, resource.DecimalSI)
	c = change{Change: Change{
		Kind: Fewer, Object: w.String(), Namespace: w.Namespace, Do: fmt.Sprintf("lower the request of %s %d -> %d", name, now, to),
		Evidence: []string{fmt.Sprintf("GPU time p95 %.0f %%, mean %.0f %%; memory peak %s of %s; %s, %s", 100*w.GPU.Busy.P95, 100*w.GPU.Busy.Mean, gib(w.GPU.Bytes.Max), gib(float64(x.memory)),
			words.Count(w.Pods, "pod"), words.Count(w.GPU.Busy.Samples, "sample"))},
		Risks: sharingRisks(x.class.Spec.Sharing.Strategy, x.replicas()),
		Patches: []Patch{w.patchOf(object{"spec": object{"containers": []any{object{
			"name": container, "resources": object{"requests": object{string(name): to}, "limits": object{string(name): to}},
		}}}})},
	}}
	c.apply = func(sc *scenario) {
		r := &sc.template(i).Spec.Containers[at].Resources
		for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
			if _, has := list[name]; has {
				list[name] = *quantity
			}
		}
	}
	return c, true
}
