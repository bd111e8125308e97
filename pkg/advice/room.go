package advice

import (
	"cmp"
	"fmt"
	"slices"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/density"
)

const (
	// serving and batch are how busy the pods on a GPU may be together. Requests queue up long before a GPU is always busy; Jobs only take longer.
	serving = 0.7
	batch   = 1.0
	// reserved is the share of a GPU's memory from which a flat use is taken for a reservation: JAX takes 75 %, SGLang 88 % and vLLM 90 % of it at the start. flat is how
	// close the mean then is to the maximum.
	reserved = 0.7
	flat     = 0.97
)

// reserves reports whether the workload appears to reserve device memory, so that what it needs is not known.
func (w *Workload) reserves() bool {
	s := w.GPU.Share
	return s.Max >= reserved && s.Mean >= flat*s.Max
}

// unknown says why it is not known how much of a GPU the pods of the workload need. It returns "" if it is known.
func (w *Workload) unknown() string {
	g := &w.GPU
	switch {
	case g.Bytes.Samples == 0:
		return "its use of the GPU is not measured: metrics.pods of the agent (docs/node.md)"
	case g.Contended > g.Busy.Samples:
		return fmt.Sprintf("others kept its GPU busy in %d of %d samples, so that what it needs is not known", g.Contended, g.Contended+g.Busy.Samples)
	case w.measuredRarely(g.Busy) || w.measuredRarely(g.Bytes):
		return fmt.Sprintf("it has %d samples of GPU time and %d of memory, and needs %d over a day", g.Busy.Samples, g.Bytes.Samples, minSamples)
	case w.reserves():
		return fmt.Sprintf("it holds %.0f %% of the GPU's memory all the time, as frameworks that reserve it do, so what it needs is not known: lower what it reserves, such as --gpu-memory-utilization of vLLM", 100*g.Share.Max)
	}
	return ""
}

// need is what the pods on a GPU need in the worst case.
type need struct {
	// busy is the share of the GPU's time, and bytes its memory with the margin.
	busy, bytes float64
	// largest is the largest memory of a pod, with the margin.
	largest float64
}

// needOf returns the need of a number of pods on a GPU, if those are the ones that need most. The scheduler may place any of them together. More pods than ever ran are
// as large as the largest.
func needOf(workloads []*Workload, pods int64) need {
	var busy, bytes []float64
	for _, w := range workloads {
		for range min(int64(max(1, w.Most)), pods) {
			busy, bytes = append(busy, w.GPU.Busy.P95), append(bytes, w.GPU.Bytes.Max*margin)
		}
	}
	sum := func(all []float64) (total float64) {
		slices.SortFunc(all, func(a, b float64) int { return cmp.Compare(b, a) })
		for i := range pods {
			if at := int(i); at < len(all) {
				total += all[at]
			} else {
				total += all[0]
			}
		}
		return total
	}
	n := need{busy: sum(busy), bytes: sum(bytes)}
	n.largest = bytes[0]
	return n
}

// targetOf returns how busy a GPU may be with pods of the workloads.
func targetOf(workloads []*Workload) float64 {
	for _, w := range workloads {
		if w.Kind != "Job" && w.Kind != "CronJob" {
			return serving
		}
	}
	return batch
}

// fits reports whether a number of pods of the workloads may share a GPU with this much memory.
func fits(workloads []*Workload, pods, memory int64, strategy v1alpha1.Strategy) bool {
	n := needOf(workloads, pods)
	if strategy == v1alpha1.StrategyMPS && n.largest > float64(memory)/float64(pods) {
		return false // MPS limits each pod to its part.
	}
	return n.busy <= targetOf(workloads) && n.bytes <= float64(memory)
}

// safeReplicas returns how many pods of the workloads may share a GPU with this much memory, up to the limit.
func safeReplicas(workloads []*Workload, memory, limit int64, strategy v1alpha1.Strategy) int64 {
	n := int64(1)
	for n < limit && fits(workloads, n+1, memory, strategy) {
		n++
	}
	return n
}

// sharingRisks says what may become worse if this many pods share a GPU, as far as it was measured.
func sharingRisks(strategy v1alpha1.Strategy, pods int64) (risks []string) {
	mode, how := density.TimeSlicing, "time-slicing slows each of N busy pods down 1.11 N times (A100, nebuly-ai/nos)"
	if strategy == v1alpha1.StrategyMPS {
		mode, how = density.MPSThreads, "MPS slows each of N busy pods down 0.45 N + 0.5 times (A100, nebuly-ai/nos)"
	}
	if product, row, ok := density.Of(mode, pods); ok {
		how += fmt.Sprintf("; of %d, each has %.0f %% of the GPU (%s, docs/sharing-cost.md)", row.Pods, 100*row.Compute, product)
	}
	if strategy == v1alpha1.StrategyMPS {
		return []string{how, "each pod may use less GPU memory than before"}
	}
	return []string{how, "a pod that takes more GPU memory than was measured takes it from the others on its GPU: then one of them fails"}
}
