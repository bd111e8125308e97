package operator

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

func TestHealthCheckFailsOnceControllerIsStuck(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	active := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: activeWorkers}, []string{"controller"})
	total := prometheus.NewCounterVec(prometheus.CounterOpts{Name: reconcileTotal}, []string{"controller", "result"})
	registry.MustRegister(active, total)
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	w := newProgressCheck(registry, clk)
	probe := func(minutes int) (err error) { // like the kubelet, every ten seconds
		for range 6 * minutes {
			err = w.check(nil)
			clk.Step(10 * time.Second)
		}
		return err
	}
	busy := func(n float64) { active.WithLabelValues("provisioning").Set(n) }

	busy(0)
	if err := probe(60); err != nil {
		t.Errorf("an idle controller: %v", err)
	}
	busy(1)
	for range 60 {
		total.WithLabelValues("provisioning", "success").Inc()
		if err := probe(4); err != nil {
			t.Fatalf("a busy controller: %v", err)
		}
	}
	if err := probe(7); err == nil || !strings.Contains(err.Error(), "provisioning") {
		t.Errorf("a stuck controller: %v", err)
	}
	total.WithLabelValues("provisioning", "error").Inc()
	if err := probe(1); err != nil {
		t.Errorf("one that goes on after all: %v", err)
	}
	busy(0)
	if err := probe(60); err != nil {
		t.Errorf("one that is done: %v", err)
	}
}

// The names of the metrics are those of controller-runtime.
func TestControllerRuntimeExportsHealthCheckMetrics(t *testing.T) {
	t.Parallel()
	for _, name := range []string{activeWorkers, reconcileTotal} {
		err := ctrlmetrics.Registry.Register(prometheus.NewGauge(prometheus.GaugeOpts{Name: name}))
		if err == nil {
			t.Errorf("controller-runtime has no metric %s", name)
		}
	}
}
