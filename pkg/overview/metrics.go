package overview

import (
	"fmt"
	"io"
	"math"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Measured is the content of the metrics of a node's agent.
type Measured struct {
	// GPUs is keyed by index, and Instances by the UUID of the MIG instance.
	GPUs      map[int]Use
	Instances map[string]Use
	// Pods is keyed by namespace/name. It is nil if the agent measures no pods, and it has no pod without a process on a GPU.
	Pods map[string]Use
}

// Use is the use of one or several GPUs. Unknown values are nil.
type Use struct {
	UsedMiB *int64
	// SMPercent is the share of multiprocessor time, from 0 to 100. For a GPU it is the share of time in which a kernel ran.
	SMPercent *float64
}

const bytesPerMiB = 1 << 20

// parseMetrics reads metrics in the text format. Prometheus' parser panics on some invalid texts, such as a comment before empty braces.
func parseMetrics(text io.Reader) (families map[string]*dto.MetricFamily, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the text is invalid: %v", r)
		}
	}()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(text) //nolint:wrapcheck // The caller wraps it.
}

// ParseMetrics reads the metrics that an agent serves.
func ParseMetrics(text io.Reader) (Measured, error) {
	families, err := parseMetrics(text)
	if err != nil {
		return Measured{}, fmt.Errorf("reading the metrics of an agent: %w", err)
	}
	m := Measured{GPUs: map[int]Use{}, Instances: map[string]Use{}}
	for _, metric := range families["karve_gpu_instance_memory_used_bytes"].GetMetric() {
		if value := metric.GetGauge().GetValue(); isKnown(value) {
			var use Use
			use.addBytes(value)
			m.Instances[labelsOf(metric)["mig"]] = use
		}
	}
	for name, set := range map[string]func(*Use, float64){
		"karve_gpu_memory_used_bytes": (*Use).addBytes, "karve_gpu_utilization_ratio": (*Use).addRatio,
	} {
		for _, metric := range families[name].GetMetric() {
			labels := labelsOf(metric)
			index, err := strconv.Atoi(labels["index"])
			if value := metric.GetGauge().GetValue(); err == nil && isKnown(value) {
				use := m.GPUs[index]
				set(&use, value)
				m.GPUs[index] = use
			}
		}
	}
	for name, set := range map[string]func(*Use, float64){
		"karve_pod_gpu_memory_used_bytes": (*Use).addBytes, "karve_pod_gpu_sm_ratio": (*Use).addRatio,
	} {
		for _, metric := range families[name].GetMetric() {
			labels := labelsOf(metric)
			if value := metric.GetGauge().GetValue(); isKnown(value) {
				if m.Pods == nil {
					m.Pods = map[string]Use{}
				}
				key := labels["namespace"] + "/" + labels["pod"]
				use := m.Pods[key]
				set(&use, value)
				m.Pods[key] = use
			}
		}
	}
	return m, nil
}

// isKnown reports whether a value is one that an agent would write.
func isKnown(value float64) bool { return value >= 0 && value < 1<<62 && !math.IsNaN(value) }

// A pod may use several GPUs, and its containers are measured one by one.

func (u *Use) addBytes(value float64) {
	mib := int64(value / bytesPerMiB)
	if u.UsedMiB != nil {
		mib += *u.UsedMiB
	}
	u.UsedMiB = &mib
}

func (u *Use) addRatio(value float64) {
	percent := math.Round(value * 100)
	if u.SMPercent != nil {
		percent += *u.SMPercent
	}
	u.SMPercent = &percent
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := make(map[string]string, len(m.GetLabel()))
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

// Measure adds the agents' measurements, by the name of the Node. Pods without a process on a GPU are not measured, so their use stays unknown.
func (o *Overview) Measure(measured map[string]Measured) {
	for i := range o.Nodes {
		m, ok := measured[o.Nodes[i].Name]
		if !ok {
			continue
		}
		for j := range o.Nodes[i].GPUs {
			gpu := &o.Nodes[i].GPUs[j]
			use := m.GPUs[gpu.Index]
			if gpu.Instance != nil {
				use = m.Instances[gpu.UUID]
			}
			gpu.UsedMiB, gpu.SMPercent = use.UsedMiB, use.SMPercent
		}
	}
	for i := range o.Pods {
		p := &o.Pods[i]
		if use, ok := measured[p.Node].Pods[p.Namespace+"/"+p.Name]; ok {
			p.UsedMiB, p.SMPercent = use.UsedMiB, use.SMPercent
		}
	}
}

// Use returns the total used memory of a node's GPUs, and the mean of the shares of time. A value that is unknown for one of the GPUs is nil.
func (n *Node) Use() Use {
	if len(n.GPUs) == 0 {
		return Use{}
	}
	u := Use{UsedMiB: new(int64(0)), SMPercent: new(float64(0))}
	for i := range n.GPUs {
		gpu := &n.GPUs[i]
		if gpu.UsedMiB == nil {
			u.UsedMiB = nil
		}
		if gpu.SMPercent == nil {
			u.SMPercent = nil
		}
		if u.UsedMiB != nil {
			*u.UsedMiB += *gpu.UsedMiB
		}
		if u.SMPercent != nil {
			*u.SMPercent += *gpu.SMPercent / float64(len(n.GPUs))
		}
	}
	return u
}
