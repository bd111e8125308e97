package scale

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// samples holds the metrics of a program by name.
type samples map[string]*dto.MetricFamily

func scrape(ctx context.Context, url string) (samples, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("reading metrics: %w", err)
	}
	defer res.Body.Close() //nolint:errcheck // It was only read.
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(res.Body)
	if err != nil {
		return nil, fmt.Errorf("reading metrics: %w", err)
	}
	return families, nil
}

// sum returns the sum of a metric over all labels. It returns false if the metric does not exist.
func (s samples) sum(name string) (float64, bool) {
	family := s[name]
	if family == nil {
		return 0, false
	}
	sum := 0.0
	for _, m := range family.Metric {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
	}
	return sum, true
}

var inf = math.Inf(1)

// histogram maps each upper bound to the number of observations that do not exceed it. The last bound is infinite.
type histogram map[float64]float64

// add adds the observations of a metric over all labels.
func (h histogram) add(family *dto.MetricFamily) {
	for _, m := range family.GetMetric() {
		for _, b := range m.GetHistogram().GetBucket() {
			if !math.IsInf(b.GetUpperBound(), 1) {
				h[b.GetUpperBound()] += float64(b.GetCumulativeCount())
			}
		}
		h[inf] += float64(m.GetHistogram().GetSampleCount())
	}
}

// quantile returns the value that a share of the observations does not exceed. It estimates the value as PromQL's histogram_quantile does. It returns false
// if there are no observations.
func (h histogram) quantile(share float64) (float64, bool) {
	total := h[inf]
	if total == 0 {
		return 0, false
	}
	rank, below, lower := share*total, 0.0, 0.0
	for _, bound := range slices.Sorted(maps.Keys(h)) {
		if h[bound] >= rank {
			if math.IsInf(bound, 1) {
				return lower, true
			}
			return lower + (bound-lower)*(rank-below)/(h[bound]-below), true
		}
		below, lower = h[bound], bound
	}
	return lower, true
}

// count returns the number of observations.
func (h histogram) count() float64 { return h[inf] }
