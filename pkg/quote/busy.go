package quote

import (
	"fmt"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/density"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/table"
)

// Busy is what each pod on a GPU gets while all of them are busy, as measured.
type Busy struct {
	// Product is the GPU on which it was measured.
	Product string `json:"measuredOn"`
	density.Row
}

// busy returns what pods get that share a GPU in this way, or nil if it was not measured.
func busy(s *v1alpha1.Sharing, replicas int64) *Busy {
	mode := density.TimeSlicing
	switch s.Strategy {
	case v1alpha1.StrategyMPS:
		mode = density.MPSThreads
		if s.MPS != nil && s.MPS.ActiveThreadPercent != nil && int64(*s.MPS.ActiveThreadPercent) > nodecontract.DefaultMPS.Threads(replicas) {
			mode = density.MPS
		}
	case v1alpha1.StrategyTimeSlicing, v1alpha1.StrategyNone:
	default:
		return nil
	}
	if product, row, ok := density.Of(mode, replicas); ok {
		return &Busy{product, row}
	}
	return nil
}

var busyColumns = []table.Column{{Title: "COMPUTE", Right: true}, {Title: "REQUESTS", Right: true}}

// cells returns the share of the GPU's compute and the latency of requests.
func (b *Busy) cells() []string {
	switch {
	case b == nil:
		return []string{"-", "-"}
	case b.Requests < 1:
		return []string{fmt.Sprintf("%.0f %%", 100*b.Compute), fmt.Sprintf("%.0f %%", 100*b.Requests)}
	}
	return []string{fmt.Sprintf("%.0f %%", 100*b.Compute), fmt.Sprintf("%.1f ms", b.RequestP99)}
}

func (b *Busy) legend() string {
	return fmt.Sprintf(`
COMPUTE and REQUESTS are for pods that are all busy, as measured on an %s with 1, 2, 4, 8 and 16 pods; other numbers have the figures of the next larger one.
COMPUTE is the part of the GPU's throughput that each pod has. REQUESTS is the 99th percentile of the latency if each pod gets 100 requests per second with 2 ms
of work, or the part of the requests that it answers if they queue up.
`, b.Product)
}

// tableText returns a table, what its measured columns mean, and a note, which may be "".
func tableText(t *table.Table, measured *Busy, note string) string {
	text := t.String()
	if measured != nil {
		text += measured.legend()
	}
	if note != "" {
		text += "\n" + note + "\n"
	}
	return text
}
