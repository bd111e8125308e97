// Package advice says what to change in a fleet so that it costs less, from what its pods used. It is pure: what was measured goes in, advice comes out.
//
// The percentiles are those of KRR (https://github.com/robusta-dev/krr, its simple strategy): CPU at the 95th percentile, memory at its maximum plus 15 %. A change is
// searched with plans for moments of the measured time, and advised only if a replay of that time with the planner and the consolidation of the controller confirms it.
package advice

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/snapshot/facts"
)

const (
	// minSpan and minSamples are how long and how often a workload must have been measured.
	minSpan    = 24 * time.Hour
	minSamples = 100
)

// Use is how much of something a pod used, or the pods of a workload.
type Use struct {
	// Samples is how often it was measured.
	Samples int `json:"samples"`
	// Mean is the average. P95 is the 95th percentile on the day on which that was highest, of the pod for which it was highest. Max is the maximum.
	Mean float64 `json:"mean"`
	P95  float64 `json:"p95"`
	Max  float64 `json:"max"`
}

// With returns the use in both of two times, or of both of two pods.
func (u Use) With(other Use) Use {
	n := u.Samples + other.Samples
	if n == 0 {
		return u
	}
	mean := (u.Mean*float64(u.Samples) + other.Mean*float64(other.Samples)) / float64(n)
	return Use{n, mean, max(u.P95, other.P95), max(u.Max, other.Max)}
}

// Container is the use of a container.
type Container struct {
	// CPU is in cores, and Memory in bytes.
	CPU, Memory Use
}

// Run is a time in which a pod held a machine. It counts from the start of the range.
type Run struct{ From, To time.Duration }

// Pod is what is known of a pod that held replicas.
type Pod struct {
	Namespace, Name string
	// Kind and Owner are the workload, as facts.OwnerOf returns it.
	Kind, Owner string
	// Pool is the NodePool on whose machines it ran.
	Pool string
	// Runs are in order.
	Runs []Run
	// Requests are the requests by container. It is nil if they are not known.
	Requests   map[string]corev1.ResourceList
	Containers map[string]Container
	GPU        GPU
}

// GPU is the use of a GPU.
type GPU struct {
	// Busy is the share of the GPU's multiprocessor time, without the samples in which others wanted the GPU too. Contended counts those.
	Busy      Use `json:"busy"`
	Contended int `json:"contendedSamples"`
	// Bytes is the device memory, and Share its share of the memory of the GPU.
	Bytes Use `json:"bytes"`
	Share Use `json:"share"`
}

// Workload is what is known of the pods with one owner.
type Workload struct {
	Namespace, Kind, Name string
	// Pool is the NodePool on which its pods ran for the longest time.
	Pool string
	// Template is a pod of the workload.
	Template corev1.Pod
	Pods     int
	Runs     []Run
	// Most is the most pods at a time.
	Most       int
	Containers map[string]Container
	GPU        GPU
}

// String returns the workload as kubectl names it.
func (w *Workload) String() string {
	return fmt.Sprintf("%s %s/%s", w.Kind, w.Namespace, w.Name)
}

func (w *Workload) hours() (sum float64) {
	for _, r := range w.Runs {
		sum += (r.To - r.From).Hours()
	}
	return sum
}

// measuredRarely reports whether a use was measured too rarely for advice.
func (w *Workload) measuredRarely(u Use) bool {
	first, last := w.Runs[0].From, time.Duration(0)
	for _, r := range w.Runs {
		first, last = min(first, r.From), max(last, r.To)
	}
	return u.Samples < minSamples || last-first < minSpan
}

// Workloads groups pods by their workloads. live are the pods of the cluster: the requests of a workload are those of its newest live pod, and its pods may run where
// that pod may. The pods of a workload without live pods have the requests that were measured, and run in the NodePool in which they ran. lost says which workloads are left out, because
// no requests are known.
func Workloads(pods []Pod, live []corev1.Pod) (all []Workload, lost []string) {
	newest := map[string]*corev1.Pod{}
	for i := range live {
		pod := &live[i]
		kind, name := facts.OwnerOf(pod)
		key := keyOf(pod.Namespace, kind, name)
		if before := newest[key]; before == nil || before.CreationTimestamp.Before(&pod.CreationTimestamp) {
			newest[key] = pod
		}
	}
	found, onPools := map[string]*Workload{}, map[string]map[string]float64{}
	for i := range pods {
		p := &pods[i]
		key := keyOf(p.Namespace, p.Kind, p.Owner)
		w := found[key]
		if w == nil {
			w = &Workload{Namespace: p.Namespace, Kind: p.Kind, Name: p.Owner, Containers: map[string]Container{}}
			found[key], onPools[key] = w, map[string]float64{}
		}
		w.add(p)
		for _, r := range p.Runs {
			onPools[key][p.Pool] += (r.To - r.From).Hours()
		}
		if newest[key] == nil && p.Requests != nil {
			w.Template = templateOf(p)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		w, on := found[key], onPools[key]
		w.Pool = slices.MaxFunc(slices.Sorted(maps.Keys(on)), func(a, b string) int { return cmp.Compare(on[a], on[b]) })
		if pod := newest[key]; pod != nil {
			w.Template = *pod.DeepCopy()
		}
		if w.Template.Spec.Containers == nil {
			lost = append(lost, fmt.Sprintf("%s is left out: it has no pod in the cluster, and there is no kube_pod_container_resource_requests of it", w))
			continue
		}
		w.Most = peakOf(w.Runs)
		all = append(all, *w)
	}
	return all, lost
}

func keyOf(namespace, kind, name string) string { return namespace + "/" + kind + "/" + name }

func (w *Workload) add(p *Pod) {
	w.Pods++
	w.Runs = append(w.Runs, p.Runs...)
	for name, c := range p.Containers {
		sum := w.Containers[name]
		w.Containers[name] = Container{sum.CPU.With(c.CPU), sum.Memory.With(c.Memory)}
	}
	g := &w.GPU
	*g = GPU{g.Busy.With(p.GPU.Busy), g.Contended + p.GPU.Contended, g.Bytes.With(p.GPU.Bytes), g.Share.With(p.GPU.Share)}
}

// templateOf returns a pod with the requests that were measured, for the NodePool in which the pod ran.
func templateOf(p *Pod) corev1.Pod {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{karpv1.NodePoolLabelKey: p.Pool},
			Tolerations:  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	for _, name := range slices.Sorted(maps.Keys(p.Requests)) {
		limits := corev1.ResourceList{}
		for resource, quantity := range p.Requests[name] {
			if strings.Contains(string(resource), "/") {
				limits[resource] = quantity
			}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: p.Requests[name], Limits: limits}})
	}
	return pod
}

func peakOf(runs []Run) int {
	type edge struct {
		at   time.Duration
		step int
	}
	var edges []edge
	for _, r := range runs {
		edges = append(edges, edge{r.From, 1}, edge{r.To, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.step, b.step)) })
	peak, n := 0, 0
	for _, e := range edges {
		n += e.step
		peak = max(peak, n)
	}
	return peak
}
