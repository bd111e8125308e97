package explain

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// bytes formats an amount of memory in Gi or Mi, rounded down, so that it never overstates what is left.
func bytes(n int64) string {
	const mi, gi = 1 << 20, 1 << 30
	switch {
	case n < 0:
		return "0Mi"
	case n >= gi:
		return strings.TrimSuffix(fmt.Sprintf("%d.%d", n/gi, n%gi*10/gi), ".0") + "Gi"
	}
	return strconv.FormatInt(n/mi, 10) + "Mi"
}

// cpus formats thousandths of a CPU as Kubernetes does.
func cpus(milli int64) string {
	return resource.NewMilliQuantity(max(0, milli), resource.DecimalSI).String()
}
