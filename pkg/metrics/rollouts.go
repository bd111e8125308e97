package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Rollout is what the metrics report about a GPUImageRollout.
type Rollout struct {
	// Step is the current one of Steps.
	Step  string
	Steps []string
	// Degraded reports whether something prevents new images.
	Degraded bool
	// ImageAge is the age of the current image, or 0 if unknown.
	ImageAge time.Duration
	// Nodes is the number of machines. Updated is how many of them run the current image.
	Nodes, Updated int64
	// Distrusted is the number of images that failed.
	Distrusted int
}

type rollouts struct {
	step, degraded, age, nodes, updated, distrusted *prometheus.GaugeVec
}

func newRollouts(made maker) rollouts {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return made.gauges("image_rollout", name, help, append([]string{"rollout"}, labels...)...)
	}
	return rollouts{
		step:       gauge("step", "1 for the current step of the GPUImageRollout, 0 for the others.", "step"),
		degraded:   gauge("degraded", "1 while the rollout cannot continue until you or AWS fix something."),
		age:        gauge("image_age_seconds", "Age of the image that the EC2NodeClass is pinned to."),
		nodes:      gauge("nodes", "Nodes of the EC2NodeClass, without the canary."),
		updated:    gauge("nodes_updated", "Nodes of the EC2NodeClass with the pinned image."),
		distrusted: gauge("distrusted_images", "Images that failed and are not tested again."),
	}
}

func (r rollouts) list() []*prometheus.GaugeVec {
	return []*prometheus.GaugeVec{r.step, r.degraded, r.age, r.nodes, r.updated, r.distrusted}
}

// Rollout records the state of a GPUImageRollout.
func (m *Metrics) Rollout(name string, now Rollout) {
	number := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	for _, step := range now.Steps {
		m.rollouts.step.WithLabelValues(name, step).Set(number(step == now.Step))
	}
	m.rollouts.degraded.WithLabelValues(name).Set(number(now.Degraded))
	m.rollouts.nodes.WithLabelValues(name).Set(float64(now.Nodes))
	m.rollouts.updated.WithLabelValues(name).Set(float64(now.Updated))
	m.rollouts.distrusted.WithLabelValues(name).Set(float64(now.Distrusted))
	if now.ImageAge == 0 {
		m.rollouts.age.DeleteLabelValues(name)
		return
	}
	m.rollouts.age.WithLabelValues(name).Set(now.ImageAge.Seconds())
}

// ForgetRollout deletes the metrics of a GPUImageRollout that no longer exists.
func (m *Metrics) ForgetRollout(name string) {
	for _, g := range m.rollouts.list() {
		g.DeletePartialMatch(prometheus.Labels{"rollout": name})
	}
}
