package sizing

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"karve.sh/karve/pkg/internal/docpage"
)

var update = flag.Bool("update", false, "rewrite the tables in docs/sizing.md")

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

func tables() string {
	var b strings.Builder
	b.WriteString("| pods, up to | nodes | NodeClaims | CPU request | memory request | memory limit |\n|---|---|---|---|---|---|\n")
	for _, l := range Lines {
		note := ""
		if l == Default {
			note = " (the chart's default)"
		}
		fmt.Fprintf(&b, "| %s%s | %s | %s | %dm | %dMi | %dMi |\n", thousands(l.UpTo.Pods), note, thousands(l.UpTo.Nodes), thousands(l.UpTo.NodeClaims), l.MilliCPU, l.RequestMiB, l.LimitMiB)
	}
	return b.String()
}

func TestThePageHasTheTables(t *testing.T) {
	t.Parallel()
	docpage.Check(t, "../../docs/sizing.md", "<!-- tables -->\n", "<!-- end of tables -->\n", tables(), *update)
}

// TestEachLineHasRoomForItsObjects holds what the lines promise: the Go runtime doubles the live heap before it collects garbage, decisions and bursts copy some of it, and the
// runtime has nine tenths of the limit.
func TestEachLineHasRoomForItsObjects(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for i, l := range Lines {
		live := Live(l.UpTo)
		if needs := 2 * live; Soft(l.LimitMiB*mib)*warnPercent/100 < needs {
			t.Errorf("%+v: twice the live heap is %d MiB, which is above the threshold of the warning", l, needs/mib)
		}
		if l.RequestMiB*mib < live || l.RequestMiB > l.LimitMiB {
			t.Errorf("%+v: the request is not between the live heap of %d MiB and the limit", l, live/mib)
		}
		if i > 0 && (Live(Lines[i-1].UpTo) >= live || Lines[i-1].LimitMiB > l.LimitMiB || Lines[i-1].MilliCPU > l.MilliCPU) {
			t.Errorf("%+v is not above the line before it", l)
		}
	}
}

func TestAWarningNamesTheLineToUse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		limit   int64
		held    Objects
		want    string
		wantNot string
	}{
		{"a larger cluster than the limit is for", 256 << 20, Objects{Pods: 9_000, Nodes: 900, NodeClaims: 100}, "limits.memory to 512Mi, as in the line for 10000 pods and 1000 nodes", ""},
		{"a small cluster with the limit of its line", 256 << 20, Objects{Pods: 10}, "limits.memory to 512Mi, as in the line for 10000 pods", ""},
		{"a cluster beyond the table", 2 << 30, Objects{Pods: 900_000, Nodes: 90_000}, "limits.memory to 3072Mi", "as in the line"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := Warning(c.limit*9/10, c.limit, c.held)
			if !strings.Contains(got, c.want) || c.wantNot != "" && strings.Contains(got, c.wantNot) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
