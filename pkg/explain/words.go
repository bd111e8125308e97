package explain

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// bytesText formats an amount of memory in Gi or Mi, rounded down, so that it never overstates what is left.
func bytesText(n int64) string {
	const mi, gi = 1 << 20, 1 << 30
	switch {
	case n < 0:
		return "0Mi"
	case n >= gi:
		return strings.TrimSuffix(fmt.Sprintf("%d.%d", n/gi, n%gi*10/gi), ".0") + "Gi"
	}
	return strconv.FormatInt(n/mi, 10) + "Mi"
}

// cpusText formats thousandths of a CPU as Kubernetes does.
func cpusText(milli int64) string {
	return resource.NewMilliQuantity(max(0, milli), resource.DecimalSI).String()
}
