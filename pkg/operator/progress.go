package operator

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/utils/clock"
)

// stuckAfter is how long a controller may work on one object. A plan takes less than a second, and a request to the API server or the cloud at most a minute.
const stuckAfter = 5 * time.Minute

// Metrics of controller-runtime that the health check reads.
const (
	activeWorkers  = "controller_runtime_active_workers"
	reconcileTotal = "controller_runtime_reconcile_total"
)

// progressCheck is a health check that fails if a controller has worked on one object for too long. The lease does not show this, because it is renewed
// independently of the workers. When the check fails, the kubelet restarts the container, and another replica takes the lease.
type progressCheck struct {
	gatherer prometheus.Gatherer
	clock    clock.PassiveClock

	mu   sync.Mutex
	seen map[string]progress
}

// progress counts the completed reconciliations of a busy controller. since is when the count last changed.
type progress struct {
	completed float64
	since     time.Time
}

func newProgressCheck(gatherer prometheus.Gatherer, clk clock.PassiveClock) *progressCheck {
	return &progressCheck{gatherer: gatherer, clock: clk, seen: map[string]progress{}}
}

// check is a healthz.Checker. It compares the metrics with those of earlier calls.
func (w *progressCheck) check(*http.Request) error {
	families, err := w.gatherer.Gather()
	if err != nil && len(families) == 0 {
		return fmt.Errorf("gathering metrics: %w", err)
	}
	active, completed := sums(families, activeWorkers), sums(families, reconcileTotal)
	now := w.clock.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	var stuck []string
	for name, workers := range active {
		last, known := w.seen[name]
		switch {
		case workers == 0:
			delete(w.seen, name)
		case !known || last.completed != completed[name]:
			w.seen[name] = progress{completed[name], now}
		case now.Sub(last.since) > stuckAfter:
			stuck = append(stuck, name)
		}
	}
	if len(stuck) > 0 {
		slices.Sort(stuck)
		return fmt.Errorf("controllers %q have completed nothing for more than %s", stuck, stuckAfter)
	}
	return nil
}

// sums returns the values of a metric, added up by controller.
func sums(families []*dto.MetricFamily, name string) map[string]float64 {
	all := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "controller" {
					all[label.GetValue()] += metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
				}
			}
		}
	}
	return all
}
