package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Rollout is what is told of a GPUImageRollout.
type Rollout struct {
	// Step is the one of Steps that it is at.
	Step  string
	Steps []string
	// Degraded says that something keeps new images away.
	Degraded bool
	// ImageAge is how long ago the current image was made; 0 where that is not known.
	ImageAge time.Duration
	// Nodes is how many machines there are, Updated how many of them run the current image.
	Nodes, Updated int64
	// Distrusted is how many images failed.
	Distrusted int
}

type rollouts struct {
	step, degraded, age, nodes, updated, distrusted *prometheus.GaugeVec
}

func newRollouts(r prometheus.Registerer) rollouts {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "image_rollout", Name: name, Help: help}, append([]string{"rollout"}, labels...))
	}
	all := rollouts{
		step:       gauge("step", "1 for the current step of the GPUImageRollout, 0 for the others.", "step"),
		degraded:   gauge("degraded", "1 while a person or AWS has to fix something before new images roll out."),
		age:        gauge("image_age_seconds", "Age of the image that the EC2NodeClass is pinned to."),
		nodes:      gauge("nodes", "Nodes of the EC2NodeClass, without the canary."),
		updated:    gauge("nodes_updated", "Nodes of the EC2NodeClass with the pinned image."),
		distrusted: gauge("distrusted_images", "Images that failed and are not tried again."),
	}
	for _, g := range all.list() {
		r.MustRegister(g)
	}
	return all
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

// ForgetRollout takes the metrics of a GPUImageRollout away that is gone.
func (m *Metrics) ForgetRollout(name string) {
	for _, g := range m.rollouts.list() {
		g.DeletePartialMatch(prometheus.Labels{"rollout": name})
	}
}
