package simulator

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/test/harness/cluster/machines"
)

const (
	registeredLabel = "karpenter.sh/registered"
	nodePoolLabel   = "karpenter.sh/nodepool"
	gpuCountLabel   = "karpenter.k8s.aws/instance-gpu-count"
)

// history is what a node's status does not contain.
type history struct {
	registered time.Time // when it was seen registered; zero before
	offered    bool      // it has had replicas, so the delay is over
	before     bool      // it was registered before the simulator started
	rule       *Rule     // the rule that it follows for its lifetime; nil to follow the current rules
}

// hasOffered reports whether the node has had replicas. For the time before the simulator started it relies on the status.
func (h history) hasOffered(node *corev1.Node, names map[corev1.ResourceName]int64) bool {
	for name := range names {
		if had, there := node.Status.Capacity[name]; h.before && there && !had.IsZero() {
			return true
		}
	}
	return h.offered
}

// decision is what the node's status should say.
type decision struct {
	capacity, allocatable resources
	offers                bool          // it offers replicas now
	again                 time.Duration // when to decide again; zero means not before something changes
	// driver is the DRA driver of the node, and "" if it has a device plugin. published are the replicas of each GPU in its ResourceSlice. Without any there is no slice.
	driver    string
	published []int64
}

// resources are quantities by name. nil means that the resource must be absent.
type resources map[corev1.ResourceName]*int64

// decide returns what the kubelet would report for the node's plugin now. It returns false for nodes that it does not manage.
func decide(node *corev1.Node, past history, rules Rules, now time.Time) (decision, bool) {
	plugin, ok := pluginOf(node, past, rules)
	if !ok {
		return decision{}, false
	}
	d := decision{capacity: resources{}, allocatable: resources{}, driver: plugin.driver}
	// The status of a simulated machine already contains its whole GPUs. On a real machine only the plugin adds them, under the resource name of the
	// replicas.
	d.hide(v1alpha1.ResourceGPU)
	for name := range plugin.replicas {
		d.hide(name)
	}
	if past.registered.IsZero() {
		return d, true
	}
	offered := past.hasOffered(node, plugin.replicas)
	if wait := past.registered.Add(plugin.rule.delay()).Sub(now); wait > 0 && !offered {
		d.again = wait
		return d, true
	}
	gone := false
	if flap := plugin.rule.Flap; flap != nil {
		since := now.Sub(past.registered)
		gone = since/flap.Duration%2 == 1
		d.again = flap.Duration - since%flap.Duration
	}
	for name, all := range plugin.replicas {
		replicas := plugin.rule.replicas(all)
		if gone {
			replicas = 0
		}
		switch {
		case plugin.driver != "": // The kubelet removes the slice of a driver that goes away.
			d.published, d.offers = spread(replicas, plugin.gpus), replicas > 0
		case replicas > 0:
			d.capacity[name] = &replicas
			d.allocatable[name] = &replicas
			d.offers = true
		case offered:
			// When a plugin goes away, the kubelet still counts its devices as capacity, all of them unhealthy.
			delete(d.capacity, name)
			d.allocatable[name] = &replicas
		}
	}
	return d, true
}

// spread returns the replicas of each of some GPUs, the most of them on the first.
func spread(replicas, gpus int64) []int64 {
	var each []int64
	for ; gpus > 0 && replicas > 0; gpus-- {
		n := (replicas + gpus - 1) / gpus
		each = append(each, n)
		replicas -= n
	}
	return each
}

func (d decision) hide(name corev1.ResourceName) {
	d.capacity[name] = nil
	d.allocatable[name] = nil
}

type plugin struct {
	rule Rule
	// replicas is the number of replicas of the node, by resource. A node with slots of memory has several.
	replicas map[corev1.ResourceName]int64
	// gpus is the number of GPUs, and driver the DRA driver that serves them, which is "" for a device plugin.
	gpus   int64
	driver string
}

// ruleOf returns the rule that applies to a node.
func ruleOf(node *corev1.Node, past history, rules Rules) Rule {
	if past.rule != nil {
		return *past.rule
	}
	// A rule by image applies in every pool.
	rule, named := rules[node.Annotations[machines.ImageAnnotation]]
	if !named {
		rule, named = rules[node.Labels[nodePoolLabel]]
	}
	if _, ours := node.Annotations[nodecontract.ResourceAnnotation]; ours && !named {
		return rules[DefaultKey]
	}
	return rule
}

// keepsTaint reports whether the node keeps the startup taint for now.
func keepsTaint(node *corev1.Node, past history, rules Rules) bool {
	return past.registered.IsZero() || ruleOf(node, past, rules).KeepTaint
}

func pluginOf(node *corev1.Node, past history, rules Rules) (plugin, bool) {
	p, resource := plugin{rule: ruleOf(node, past, rules)}, corev1.ResourceName(v1alpha1.ResourceGPUShared)
	if slots, err := nodecontract.ParseSlots(node.Annotations[nodecontract.SlotsAnnotation]); err == nil && !slots.IsZero() {
		p.replicas = map[corev1.ResourceName]int64{}
		for i, n := range slots.Wanted() {
			p.replicas[corev1.ResourceName(nodecontract.SlotResource(slots.SizesMiB[i]))] = n
		}
		return p, true
	}
	gpus, perGPU := node.Labels[gpuCountLabel], ""
	if name, ok := node.Annotations[nodecontract.ResourceAnnotation]; ok {
		resource = corev1.ResourceName(name)
		gpus, perGPU = node.Annotations[nodecontract.GPUsAnnotation], node.Annotations[nodecontract.ReplicasPerGPUAnnotation]
	} else if p.rule.ReplicasPerGPU == 0 {
		return p, false
	}
	if p.rule.Resource != "" {
		resource = corev1.ResourceName(p.rule.Resource)
	}
	if p.rule.ReplicasPerGPU != 0 {
		perGPU = strconv.Itoa(int(p.rule.ReplicasPerGPU))
	}
	// An invalid number counts as 0, so the node gets no replicas.
	g, _ := strconv.ParseInt(gpus, 10, 32)
	r, _ := strconv.ParseInt(perGPU, 10, 32)
	p.replicas, p.gpus = map[corev1.ResourceName]int64{resource: g * r}, g
	p.driver = nodecontract.DriverOf(node.Annotations[nodecontract.BackendAnnotation])
	if divided, err := nodecontract.ParseMIG(node.Annotations[nodecontract.MIGAnnotation]); err == nil && divided.Mixed() && r > 0 {
		p.replicas = map[corev1.ResourceName]int64{}
		for _, o := range mig.Offers(divided, g) {
			p.replicas[corev1.ResourceName(o.Resource)] = o.Replicas
		}
	}
	return p, g > 0
}

// change returns the part of want that differs from have, as a JSON merge patch, or nil if nothing differs.
func (want resources) change(have corev1.ResourceList) map[corev1.ResourceName]any {
	var changes map[corev1.ResourceName]any
	for name, n := range want {
		is, there := have[name]
		if n == nil && !there || n != nil && there && is.Cmp(*resource.NewQuantity(*n, resource.DecimalSI)) == 0 {
			continue
		}
		if changes == nil {
			changes = map[corev1.ResourceName]any{}
		}
		changes[name] = nil
		if n != nil {
			changes[name] = strconv.FormatInt(*n, 10)
		}
	}
	return changes
}
