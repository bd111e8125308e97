package advice

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/replay"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

// startTime is more than a machine takes to start. Pods that begin within it of one another need headroom together.
const startTime = 2 * replay.Resolution

// standingHeadroom returns the headroom of a class that applies at all times, and its index. The index is -1 if there is none.
func standingHeadroom(class *v1alpha1.GPUNodeClass) (replicas int64, at int) {
	at = slices.IndexFunc(class.Spec.Headroom, func(h v1alpha1.Headroom) bool { return h.Schedule == "" })
	if at < 0 {
		return 0, at
	}
	return int64(class.Spec.Headroom[at].Replicas), at
}

// placeholders returns pods that hold the headroom of the scenario, as many at all times as replicas are to be free: real pods take the room of others, and Karve then
// restores it. The shapes are those after the workloads.
func (sc *scenario) placeholders() (templates []corev1.Pod, pods []replay.Pod) {
	if !slices.ContainsFunc(sc.cluster.GPUNodeClasses, func(c v1alpha1.GPUNodeClass) bool { return len(c.Spec.Headroom) > 0 }) {
		return nil, nil
	}
	for _, pool := range snapshot.Pools(&sc.cluster) {
		if pool.Class == nil {
			continue
		}
		replicas, _ := standingHeadroom(pool.Class)
		if replicas == 0 {
			continue
		}
		share, memory := pool.ReplicaShare()
		one := corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewMilliQuantity(share.MilliCPU, resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(share.MemoryBytes, resource.BinarySI),
			pool.Resource(): *resource.NewQuantity(1, resource.DecimalSI),
		}
		template := corev1.Pod{Spec: corev1.PodSpec{
			NodeSelector: map[string]string{karpv1.NodePoolLabelKey: pool.NodePool.Name}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: one, Limits: corev1.ResourceList{pool.Resource(): one[pool.Resource()]}}}},
		}}
		if memory > 0 && pool.Class.Spec.Sharing.Shared() {
			template.Annotations = map[string]string{v1alpha1.GPUMemoryAnnotation: amount.Text(*resource.NewQuantity(memory, resource.BinarySI))}
		}
		for range replicas {
			pods = append(pods, replay.Pod{Shape: len(sc.templates) + len(templates), Ends: sc.end, Placeholder: true})
		}
		templates = append(templates, template)
	}
	return templates, pods
}

// largestBurst returns the most replicas that pods of a pool began to hold within startTime, and how many pods began in all. Pods that were there from the start do not count.
func (sc *scenario) largestBurst(pool string) (peak int64, began int) {
	type start struct {
		at       time.Duration
		replicas int64
	}
	var starts []start
	for i := range sc.workloads {
		if sc.workloads[i].Pool != pool {
			continue
		}
		for _, r := range sc.workloads[i].Runs {
			if r.From > 0 {
				starts = append(starts, start{r.From, facts.GPURequestOf(&sc.templates[i]).Replicas})
			}
		}
	}
	slices.SortFunc(starts, func(a, b start) int { return cmp.Compare(a.at, b.at) })
	sum, first := int64(0), 0
	for _, s := range starts {
		sum += s.replicas
		for ; s.at-starts[first].at >= startTime; first++ {
			sum -= starts[first].replicas
		}
		peak = max(peak, sum)
	}
	return peak, len(starts)
}

// lessHeadroom returns the change to keep fewer replicas free, if the bursts of pods never needed as many. note says that they needed more.
func (sc *scenario) lessHeadroom(class *v1alpha1.GPUNodeClass) (c change, note string, ok bool) {
	pools := sc.poolsOf(class.Name)
	now, at := standingHeadroom(class)
	if at < 0 || len(pools) == 0 || sc.end < minSpan {
		return c, "", false
	}
	to, where, began := int64(-1), "", 0
	for _, pool := range pools {
		peak, n := sc.largestBurst(pool.Name)
		if began += n; peak > to {
			to, where = peak, pool.Name
		}
	}
	if to >= now {
		if to > now {
			note = fmt.Sprintf("the headroom of GPUNodeClass %s is %s, and pods with %d began within %s in NodePool %s: the others waited for a machine, unless pods ended before", class.Name, words.Count(int(now), "replica"), to, words.Age(startTime), where)
		}
		return c, note, false
	}
	left := slices.Clone(class.Spec.Headroom)
	do, patch := fmt.Sprintf("keep %d instead of %d replicas free", to, now), object{"headroom": nil}
	if to == 0 {
		left = slices.Delete(left, at, at+1)
		do = fmt.Sprintf("keep no replicas free, instead of %d", now)
	} else {
		left[at].Replicas = int32(to) //nolint:gosec // It is less than before.
	}
	if len(left) > 0 {
		patch["headroom"] = left
	} else {
		left = nil
	}
	c = change{Change: Change{
		Kind: Headroom, Object: "GPUNodeClass " + class.Name, Do: do,
		Evidence: []string{fmt.Sprintf("the largest burst: pods with %s began within %s, in NodePool %s; %s began in all", words.Count(int(to), "replica"), words.Age(startTime), where, words.Count(began, "pod"))},
		Risks:    []string{"in a burst larger than any measured one, pods wait for a machine, which takes minutes to start"},
		Patches:  []Patch{patchClass("gpunodeclass", class.Name, patch)},
	}}
	name := class.Name
	c.apply = func(sc *scenario) { sc.class(name).Spec.Headroom = left }
	return c, "", true
}
